"""Words of real files: how many are lost, and how fast each is read.

    python -m assets.tools.documents.compared FOLDER [--markdown]

A file named MAKER-NAME was made of NAME.html, if that is there, and pandoc's plain text of it is the reference, else
that of the file itself.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path
from time import perf_counter

from app.documents.readers import read_document
from assets.tools.documents.table import print_folder

FORMATS = (".odt", ".rtf", ".pptx", ".docx", ".epub", ".html", ".fb2")
WORD = re.compile(r"[^\W_]+")
FOLDED = str.maketrans({"\u00ad": "", "\u2019": "'"})


def words(text: str) -> Counter[str]:
    """How often each word occurs."""
    return Counter(WORD.findall(text.translate(FOLDED).casefold()))


def reference(file: Path) -> str:
    """What another program finds in the file, or in what it was made of."""
    source = file.with_name(file.stem.partition("-")[2] + ".html")
    whole = source if source.exists() else file
    done = subprocess.run(["pandoc", "-t", "plain", "--wrap=none", whole], capture_output=True, check=True, timeout=120)
    return done.stdout.decode()


def measure(file: Path) -> list[str]:
    """The row of one file: words that are lost, and seconds."""
    expected = words(reference(file))
    started = perf_counter()
    found = words(read_document(file).text)
    lost = f"{100 * (expected - found).total() / max(1, expected.total()):.2f}%"
    return [file.name, f"{expected.total():,}", lost, f"{perf_counter() - started:.1f}"]


if __name__ == "__main__":
    print_folder("Words of real files.", FORMATS, ["file", "words", "lost", "seconds"], measure)
