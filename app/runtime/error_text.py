"""What a page or a client is told of an error: neither where things lie on this machine nor what an exception said.

Those who ask may sit elsewhere. The terminal, which is the owner's, says all.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from core.errors import CoreError
from core.models.hub import catalog

# Two names deep at least, so that neither "and/or" nor a web address is one; the last name stays. Names have spaces,
# apostrophes inside words, and whole parentheses.
NAME = r"""(?:[^\s\\/:*?"'<>|()]|(?<=\w)'(?=\w)|\([^()\\/]*\))++"""
PATH = re.compile(rf"(?<![\w:/\\.~-])(?:[A-Za-z]:|~|…)?[\\/]{{1,2}}(?:{NAME}(?:\ {NAME})*+[\\/])+")
HIDDEN = "…/"
RAW = re.compile(r"\(([A-Z]\w+): .*\)", re.DOTALL)  # an exception's name and what it said


def told(error: CoreError) -> tuple[str, str]:
    """The problem and the action of an error, as others may read them."""
    return without_paths(RAW.sub(r"(\1)", error.problem)), without_paths(error.hint)


def without_paths(text: str) -> str:
    """A text with the names of files and folders, but not of the folders they lie in."""
    for folder in (catalog.ROOT, Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix)):
        for name in {str(folder), folder.as_posix()}:  # may have spaces in it, where no pattern would see its end
            text = text.replace(f"{name}{os.sep}", HIDDEN).replace(f"{name}/", HIDDEN)
    return PATH.sub(HIDDEN, text)
