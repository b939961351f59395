"""A plain typesetter: pages of A5 with running headers and page numbers."""

import io
import textwrap

from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from assets.tools.books.generated import Book

PAGE_WIDTH, PAGE_HEIGHT, MARGIN = 420, 595, 54  # points
LEADING, LINE_CHARACTERS, LINES_PER_PAGE = 14, 62, 33


def to_pdf(book: Book) -> bytes:
    """The book as a PDF."""
    writer = PdfWriter()
    for number, lines in enumerate(typeset(book.text), start=1):
        draw_page(writer, lines, book.title.upper(), number)
    writer.add_metadata({"/Title": book.title})
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def typeset(text: str) -> list[list[str]]:
    """Lines of every page; an empty line stands between paragraphs, and none ends with a page.

    A reader cannot see whether a paragraph ends with its page.
    """
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += [*textwrap.wrap(paragraph, LINE_CHARACTERS, break_on_hyphens=False), ""]
    pages, start = [], 0
    while start < len(lines) - 1:
        full = min(start + LINES_PER_PAGE, len(lines) - 1)
        inside = (end for end in range(full, start, -1) if end == len(lines) - 1 or (lines[end - 1] and lines[end]))
        end = next(inside, full)
        pages.append(lines[start:end])
        start = end
    return pages


def draw_page(writer: PdfWriter, lines: list[str], header: str, number: int) -> None:
    """Add a page with a running header, the lines and the page number."""
    page = writer.add_blank_page(PAGE_WIDTH, PAGE_HEIGHT)
    top = PAGE_HEIGHT - MARGIN
    commands = ["BT", "/F1 8 Tf", _text_line(MARGIN, top + 20, header), "/F1 10.5 Tf"]
    commands += [_text_line(MARGIN, top - LEADING * row, line or " ") for row, line in enumerate(lines)]
    commands += ["/F1 8 Tf", _text_line(PAGE_WIDTH / 2, MARGIN - 24, str(number)), "ET"]
    stream = StreamObject()
    stream.set_data("\n".join(commands).encode("cp1252"))
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Times-Roman"),
            NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    page[NameObject("/Contents")] = writer._add_object(stream.flate_encode())  # viewers show no other


def _text_line(x: float, y: float, text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"1 0 0 1 {x} {y} Tm ({escaped}) Tj"
