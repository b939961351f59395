"""How well real PDFs are read, by the program that made each: a table of speed, joined words and lost words.

    python -m assets.tools.documents.makers FOLDER [--markdown]        every PDF in a folder

Each file is read as the program reads it and compared with what PDFium alone says is on its pages. "Joined": the share
of words with more than 18 letters, ours and PDFium's. "Lost": words of PDFium's text that ours lacks, without the lines
that were dropped as headers and footers. Time is the processor's, of the reading process and of this one.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import NamedTuple

import pypdfium2
from pypdf import PdfReader

from app.documents.messages import Opened, PageRead
from app.documents.parsers.pdf import read
from app.documents.prose import clean_lines
from app.documents.readers import to_document
from app.documents.running_lines import drop_running_lines
from assets.tools.documents.table import measured, print_table

LONG_WORD = 18  # letters
WORD = re.compile(r"[^\W\d_]+")


class Row(NamedTuple):
    """One file; shares are of ours, of PDFium's or of pypdf's words."""

    name: str
    maker: str
    num_pages: int
    pages_per_second: float
    long_words: float
    plain_long_words: float
    pypdf_long_words: float
    lost_words: float

    def cells(self) -> list[str]:
        """The row for people."""
        name, maker, pages, pace, *shares = self
        return [name, maker, f"{pages:,}", f"{pace:,.0f}", *(f"{share:.2%}" for share in shares)]


HEAD = ["file", "made by", "pages", "pages/s", "over 18 letters", "PDFium", "pypdf", "lost"]


def measure(file: Path) -> Row:
    """Read one file in this process."""
    begun = process_time()
    opened: Opened | None = None
    pages: list[PageRead] = []
    with file.open("rb") as stream:
        for message in read(stream):
            if message["kind"] == "opened":
                opened = message
            if message["kind"] == "page":
                pages.append(message)
    assert opened, f"{file} cannot be opened"
    document = to_document("pdf", file.name, opened, pages)
    seconds = process_time() - begun
    lines = [clean_lines(page["text"]) for page in pages]
    dropped = Counter(words(line for page in lines for line in page))
    dropped -= Counter(words(line for page in drop_running_lines(lines) for line in page))
    plain, ours = list(words(plain_text(file))), list(words([document.text]))
    by_pypdf = [page.extract_text() for page in PdfReader(file).pages]
    return Row(
        file.name,
        maker(file),
        len(pages),
        len(pages) / seconds,
        long_share(ours),
        long_share(plain),
        long_share(words(by_pypdf)),
        num_lost(plain, ours, dropped) / max(1, len(plain)),
    )


def num_lost(plain: Sequence[str], ours: Sequence[str], dropped: Counter[str]) -> int:
    """How many of PDFium's words are not in ours. What a hyphen parts in one text and not in the other is no loss."""
    ours_whole, ours_joined = set(ours), {a + b for a, b in pairwise(ours)}
    missing = Counter(plain) - dropped - Counter(ours)
    parted = Counter(word for a, b in pairwise(plain) if a + b in ours_whole for word in (a, b))
    return sum(count for word, count in (missing - parted).items() if word not in ours_joined)


def maker(file: Path) -> str:
    """The program that wrote a PDF."""
    known = pypdfium2.PdfDocument(file).get_metadata_dict()
    return str(known.get("Producer") or known.get("Creator") or "unknown").split(" (")[0][:40]


def plain_text(file: Path) -> list[str]:
    """The text of the pages as PDFium gives it, words divided at the ends of lines made whole."""
    document = pypdfium2.PdfDocument(file)
    return [page.get_textpage().get_text_range().replace("\ufffe", "") for page in document]


def words(texts: Iterable[str]) -> Iterator[str]:
    """The words of some texts in small letters."""
    for text in texts:
        for line in clean_lines(text):
            yield from (found[0].casefold() for found in WORD.finditer(line))


def long_share(found: Iterable[str]) -> float:
    """The share of words that are longer than words are."""
    lengths = [len(word) for word in found]
    return sum(length > LONG_WORD for length in lengths) / max(1, len(lengths))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="assets.tools.documents.makers", description="Read real PDFs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", action="store_true", help="as in assets/docs/documents.md")
    args = parser.parse_args()
    rows = measured(sorted(args.folder.glob("*.pdf")), lambda file: measure(file).cells())
    print_table(HEAD, rows, markdown=args.markdown, names=2)


if __name__ == "__main__":
    main()
