"""How well scanned pages are read: pages of PDFs become pictures, and their recognised text is compared with the text.

    python -m assets.tools.documents.scans FILE.pdf[:FIRST-LAST[:ANGLE]]... [--markdown]

Needs requirements-ocr.txt. Pages are drawn in grey at 200 dpi and stored as JPEG, turned by ANGLE degrees. Both texts
go the program's whole way, headers and columns included. "Right": one minus the fewest letters to change, add or remove
(Levenshtein), as a share of the letters; white space counts as one space. "Words": the share of the text's words that
are in the recognised text. Seconds are of one processor core, the engine's start included.
"""

import argparse
import io
import re
import resource
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pypdfium2
from PIL import Image

from app.documents.document import Document
from app.documents.ocr import Ocr
from app.documents.readers import extract_document, read_document
from assets.tools.documents.makers import maker
from assets.tools.documents.table import measured, print_table

DPI = 200
HEAD = ["file", "made by", "pages", "letters", "right", "words", "s a page"]


class Source(NamedTuple):
    """Some pages of a file, and by how many degrees they are turned."""

    file: Path
    first: int = 1
    last: int = 1_000_000
    angle: float = 0.0


class Row(NamedTuple):
    """The outcome for one file."""

    name: str
    maker: str
    num_pages: int
    num_letters: int
    num_wrong: int
    words: float  # share that is there
    seconds: float  # of a page

    def cells(self) -> list[str]:
        """The row for people."""
        right = 1 - self.num_wrong / max(1, self.num_letters)
        return [self.name, self.maker, f"{self.num_pages}", f"{self.num_letters:,}", f"{right:.2%}",
                f"{self.words:.1%}", f"{self.seconds:.1f}"]  # fmt: skip


def make_scan(pdf: Path, scan: Path, *, dpi: int = 200, angle: float = 0.0) -> None:
    """Write the pages of a PDF as pictures."""
    pictures = []
    for page in pypdfium2.PdfDocument(pdf):
        picture = page.render(scale=dpi / 72, grayscale=True).to_pil().convert("L")
        if angle:
            picture = picture.rotate(angle, Image.Resampling.BICUBIC, fillcolor=255)
        packed = io.BytesIO()
        picture.save(packed, "JPEG", quality=75)
        pictures.append(Image.open(packed))
    pictures[0].save(scan, "PDF", resolution=dpi, save_all=True, append_images=pictures[1:])


def pages_of(source: Source, out: Path) -> None:
    """Write some pages of a file."""
    document, part = pypdfium2.PdfDocument(source.file), pypdfium2.PdfDocument.new()
    part.import_pages(document, list(range(source.first - 1, min(source.last, len(document)))))
    part.save(out)


def measure(source: Source, dpi: int, folder: Path) -> Row:
    """Recognise the pages of one file."""
    pdf, scan = folder / "text.pdf", folder / "scan.pdf"
    pages_of(source, pdf)
    make_scan(pdf, scan, dpi=dpi, angle=source.angle)
    wanted = " ".join(read_document(pdf).text.split())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    *_, document = extract_document(scan, ocr=Ocr(recognise=True))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert isinstance(document, Document)
    found = " ".join(document.text.split())
    needed = Counter(re.findall(r"\w+", wanted))
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    num_pages = len(document.pages)
    name = source.file.name + (f", turned by {source.angle:g}°" if source.angle else "")
    missing = needed - Counter(re.findall(r"\w+", found))
    words = 1 - missing.total() / max(1, needed.total())
    return Row(name, maker(source.file), num_pages, len(wanted), distance(wanted, found), words, seconds / num_pages)


def distance(a: str, b: str) -> int:
    """The fewest letters to change, add or remove to turn one text into another (Myers's bit-parallel algorithm)."""
    if not a:
        return len(b)
    places: dict[str, int] = {}
    for index, char in enumerate(a):
        places[char] = places.get(char, 0) | 1 << index
    every, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    up, down, score = every, 0, len(a)
    for char in b:
        same = places.get(char, 0)
        vertical = same | down
        horizontal = (((same & up) + up) ^ up) | same
        grows, shrinks = down | ~(horizontal | up), up & horizontal
        score += bool(grows & last) - bool(shrinks & last)
        grows, shrinks = grows << 1 | 1, shrinks << 1
        up, down = (shrinks | ~(vertical | grows)) & every, grows & vertical & every
    return score


def source_of(text: str) -> Source:
    """A file with its pages and its angle, as typed."""
    name, _, rest = text.partition(":")
    pages, _, angle = rest.partition(":")
    first, _, last = pages.partition("-")
    return Source(Path(name), int(first or 1), int(last or first or 1_000_000), float(angle or 0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="assets.tools.documents.scans", description="Read scanned PDFs.")
    parser.add_argument("sources", nargs="+", type=source_of, metavar="FILE.pdf[:A-B[:ANGLE]]")
    parser.add_argument("--markdown", action="store_true", help="as in assets/docs/documents.md")
    args = parser.parse_args()
    rows: list[Row] = []

    def cells(source: Source) -> list[str]:
        rows.append(measure(source, DPI, Path(folder)))
        return rows[-1].cells()

    with tempfile.TemporaryDirectory() as folder:
        table = measured(args.sources, cells)
    pages, letters = sum(row.num_pages for row in rows), sum(row.num_letters for row in rows)
    wrong = sum(row.num_wrong for row in rows)
    words = sum(row.words * row.num_letters for row in rows) / max(1, letters)
    seconds = sum(row.seconds * row.num_pages for row in rows) / max(1, pages)
    table.append(Row("all", "", pages, letters, wrong, words, seconds).cells())
    print_table(HEAD, table, markdown=args.markdown, names=2)


if __name__ == "__main__":
    main()
