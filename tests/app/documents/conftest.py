"""PDFs made by hand: lines at fixed places in a standard font, so that a test says exactly what is on the paper."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

MakePdf = Callable[..., Path]

FONT = DictionaryObject(
    {
        NameObject("/Type"): NameObject("/Font"),
        NameObject("/Subtype"): NameObject("/Type1"),
        NameObject("/BaseFont"): NameObject("/Times-Roman"),
        NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
    }
)


def write_lines(lines: Sequence[str]) -> bytes:
    """A content stream that shows each line 14 points below the last."""
    shown = [line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)") for line in lines]
    return "\n".join(["BT /F1 11 Tf 14 TL 50 800 Td", *(f"({line}) Tj T*" for line in shown), "ET"]).encode("cp1252")


@pytest.fixture
def writer() -> PdfWriter:
    return PdfWriter()


@pytest.fixture
def make_pdf(tmp_path: Path, writer: PdfWriter) -> MakePdf:
    """Write a PDF whose pages are lists of lines; `raw` contents go into the page as they are."""

    def make(*pages: Sequence[str] | bytes, name: str = "book.pdf") -> Path:
        for content in pages:
            page = writer.add_blank_page(595, 842)
            stream = DecodedStreamObject()
            stream.set_data(content if isinstance(content, bytes) else write_lines(content))
            page[NameObject("/Contents")] = writer._add_object(stream)
            fonts = DictionaryObject({NameObject("/F1"): FONT})
            page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        path = tmp_path / name
        writer.write(path)
        return path

    return make
