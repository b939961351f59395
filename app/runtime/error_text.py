"""What a page or a client may see of an error: no folders of this machine, and no text of an exception.

Readers may sit at other machines. The terminal, which belongs to the owner, shows everything.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from core.errors import CoreError
from core.models.hub import catalog

# Matches paths of at least two names, so neither "and/or" nor a web address; the last name stays. Names may contain
# spaces, apostrophes inside words, and whole parentheses.
NAME = r"""(?:[^\s\\/:*?"'<>|()]++|(?<=\w)'(?=\w)|\([^()\\/]*+\))+"""
PATH = re.compile(rf"(?<![\w:/\\.~-])(?:[A-Za-z]:|~|…)?[\\/]{{1,2}}(?:{NAME}(?:\ {NAME})*[\\/])+")
HIDDEN = "…/"
RAW = re.compile(r"\(([A-Z]\w+): .*\)", re.DOTALL)  # an exception's name and message


def problem_and_hint(error: CoreError) -> tuple[str, str]:
    """The problem and the action of an error, as other people may read them."""
    return without_paths(RAW.sub(r"(\1)", error.problem)), without_paths(error.hint)


def without_paths(text: str) -> str:
    """The text with names of files and folders, but without the folders that contain them."""
    for folder in (catalog.ROOT, Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix)):
        for name in {str(folder), folder.as_posix()}:  # may contain spaces, so no pattern would find its end
            text = text.replace(f"{name}{os.sep}", HIDDEN).replace(f"{name}/", HIDDEN)
    return PATH.sub(HIDDEN, text)


class EngineFault(CoreError):
    """A bug in this program, or a failure outside of it: the page goes on working."""

    def __init__(self, error: BaseException) -> None:
        if is_of_memory(error):
            super().__init__(
                "The memory was not enough for this.",
                hint="Close other programs, or choose a smaller context or model.",
            )
        else:
            super().__init__(
                f"The engine stopped with an error ({type(error).__name__}).",
                hint="Try again; if it comes back, start the reader again and report what the terminal shows.",
            )


def is_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, as reported by Python, a GPU's allocator or torch's CPU allocator."""
    names = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported here
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "not enough memory" in str(error))
    )
