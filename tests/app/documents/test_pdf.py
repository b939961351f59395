"""PDFs as they come: pages of prose, what the file says of itself, damage, and pages that are only pictures."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject, NumberObject, TextStringObject

from app.documents import readers
from app.documents.errors import DamagedDocument, DocumentTooLarge, DrmProtected, PasswordProtected
from app.documents.metadata import clean_authors
from app.documents.parsers import pdf as parser
from app.documents.parsing import ParserCrashed, ParsingLimits, parse
from app.documents.pdfium import PdfiumError
from app.documents.readers import extract_parsed, read_document
from tests.app.documents.conftest import MakePdf, write_lines
from tests.hostile.corpus import pages, pdf

pytestmark = pytest.mark.usefixtures("in_this_process")
PAGE = [
    "The old pilot stood on the quay and counted the boats that",
    "came in with the tide, as he had done on every evening of",
    "his life.",
]
BY_PYPDF = "PDFium could not read them and pypdf did, so that words may be run together: pages {}."


def test_a_pdf_becomes_prose_with_the_pages_it_came_from(make_pdf: MakePdf, writer: PdfWriter) -> None:
    writer.add_metadata({"/Title": " The\nHarbour "})
    path = make_pdf(["THE PILOT", *PAGE, "1"], ["THE PILOT", "On the second day he counted", "none.", "2"], PAGE)
    writer.set_page_label(0, 0, "/r")
    writer.set_page_label(1, 2, "/D", start=1)
    writer.write(path)
    document = read_document(path)
    assert document.page_text(document.pages[0]).strip() == f"THE PILOT\n{' '.join(PAGE)}"
    assert [(page.number, page.label) for page in document.pages] == [(1, "i"), (2, "1"), (3, "2")]
    assert (document.title, document.format, document.has_own_pages) == ("The Harbour", "pdf", True)
    assert document.warnings == ()


def test_a_password_is_needed_only_where_the_file_asks_for_one(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf(PAGE)
    writer.encrypt(user_password="", owner_password="secret", algorithm="AES-256")
    writer.write(path)
    assert read_document(path).text == " ".join(PAGE)
    writer.encrypt(user_password="secret", algorithm="AES-256")
    writer.write(path)
    with pytest.raises(PasswordProtected, match=r"book\.pdf is protected by a password"):
        read_document(path)


def test_a_pdf_that_is_encrypted_for_the_software_of_a_shop_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(pages(1), b"/Encrypt<</Filter/EBX_HANDLER/V 4/R 4>>/ID[(a)(b)]"))
    with pytest.raises(DrmProtected, match="opens in the software of its shop only"):
        read_document(tmp_path / "a.pdf")


def add_image(writer: PdfWriter, page: int) -> None:
    """Draw an image of one grey pixel on a page."""
    image = DecodedStreamObject()
    image.set_data(b"\x80")
    names = {"/Type": "/XObject", "/Subtype": "/Image", "/ColorSpace": "/DeviceGray"}
    image.update({NameObject(key): NameObject(value) for key, value in names.items()})
    image.update({NameObject(key): NumberObject(1) for key in ("/Width", "/Height")})
    image[NameObject("/BitsPerComponent")] = NumberObject(8)
    resources, contents = writer.pages[page]["/Resources"], writer.pages[page]["/Contents"].get_object()
    assert isinstance(resources, DictionaryObject) and isinstance(contents, DecodedStreamObject)
    resources[NameObject("/XObject")] = DictionaryObject({NameObject("/Im1"): writer._add_object(image)})
    contents.set_data(contents.get_data() + b" q 100 0 0 100 0 0 cm /Im1 Do Q")


@pytest.mark.parametrize("by", ["pdfium", "pypdf"])
def test_pdfs_state_authors_and_language(make_pdf: MakePdf, writer: PdfWriter, by: str) -> None:
    path = make_pdf(PAGE)
    writer.add_metadata({"/Author": "Ann Reed; Bo Quay"})
    writer.root_object[NameObject("/Lang")] = TextStringObject("en-NZ")
    writer.write(path)
    with path.open("rb") as stream:
        opened = next(parser.read(stream, by))
    assert opened["kind"] == "opened" and opened["language"] == "en-NZ"
    assert clean_authors(opened["authors"]) == ("Ann Reed", "Bo Quay")


# -------------------- damage


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.97])
def test_a_truncated_pdf_is_damaged_and_never_half_read(make_pdf: MakePdf, share: float) -> None:
    path = make_pdf(*[PAGE] * 5)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(DamagedDocument, match="cut off"):
        read_document(path)


def test_a_pdf_of_noise_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 20 + b"\nstartxref\n12\n%%EOF\n")
    with pytest.raises(DamagedDocument):
        read_document(tmp_path / "a.pdf")


@pytest.mark.parametrize("encoding", ["/Unheard", "/FlateDecode", "/LZWDecode"])
def test_one_malformed_page_is_reported_and_the_others_are_read(
    make_pdf: MakePdf, writer: PdfWriter, encoding: str
) -> None:
    path = make_pdf(PAGE, PAGE, PAGE)
    garbage = DecodedStreamObject()
    garbage.set_data(b"BT garbage")
    garbage[NameObject("/Filter")] = NameObject(encoding)
    writer.pages[1][NameObject("/Contents")] = writer._add_object(garbage)
    writer.write(path)
    document = read_document(path)
    assert document.warnings == ("Missing or damaged, so that text is lost: pages 2.",)
    assert document.page_text(document.pages[2]) == " ".join(PAGE)


def test_a_page_of_which_only_a_part_can_be_unpacked_is_reported(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf(PAGE, PAGE)
    whole = DecodedStreamObject()
    whole.set_data(write_lines(PAGE * 20))
    packed = whole.flate_encode()
    packed._data = packed._data[:120] + b"\xff" * 40 + packed._data[160:]
    writer.pages[1][NameObject("/Contents")] = writer._add_object(packed)
    writer.write(path)
    assert read_document(path).warnings == (parser.DAMAGE,)
    writer.encrypt("")
    writer.write(path)
    assert read_document(path).warnings == (), "what is encrypted is not looked at"


def test_more_text_than_any_context_holds_is_refused_while_it_is_read(make_pdf: MakePdf) -> None:
    with pytest.raises(DocumentTooLarge, match="200 characters"):
        list(extract_parsed("pdf", make_pdf(*[PAGE] * 9), "book.pdf", ParsingLimits(chars=200)))


def cannot_open(_: object) -> None:
    raise PdfiumError("no")


def crashing(kind: str, file: Path, name: str, limits: ParsingLimits, *more: list[str]) -> Generator[Any, None, Any]:
    if not more:
        raise ParserCrashed(name, "2 GB of memory")
    return parse(kind, file, name, limits, *more)


@pytest.mark.parametrize(("where", "what", "instead"), [(parser, "Pdfium", cannot_open), (readers, "parse", crashing)])
def test_what_pdfium_cannot_open_or_crashes_on_is_read_by_pypdf_and_says_so(
    make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch, where: object, what: str, instead: Callable[..., object]
) -> None:
    monkeypatch.setattr(where, what, instead)
    document = read_document(make_pdf(PAGE, PAGE))
    assert document.text.startswith(" ".join(PAGE)) and document.warnings == (BY_PYPDF.format("1–2"),)


# -------------------- on the paper


def test_small_letters_above_the_line_are_powers_if_they_are_digits(make_pdf: MakePdf) -> None:
    pieces = (("10", 11, 0), ("-6", 7, 4), (" and 24 m", 11, 0), ("2", 7, 4), (" on the 19", 11, 0), ("th", 7, 4),
              (", H", 11, 0), ("2", 7, -3), ("O 3", 11, 0), ("4", 11, 4))  # fmt: skip
    shown = " ".join(f"/F1 {size} Tf {rise} Ts ({text}) Tj" for text, size, rise in pieces)
    path = make_pdf(f"BT 50 700 Td {shown} ET".encode())
    assert read_document(path).text == "10^-6 and 24 m^2 on the 19th, H2O 34"


def test_a_turned_page_is_read_line_by_line(make_pdf: MakePdf, writer: PdfWriter) -> None:
    upward = "".join(f"0 1 -1 0 {100 + 14 * n} 50 Tm ({text}) Tj " for n, text in enumerate(PAGE))
    path = make_pdf(f"BT /F1 11 Tf {upward}ET".encode("cp1252"))
    writer.pages[0].rotate(90)
    writer.write(path)
    assert read_document(path).text == " ".join(PAGE)


def test_letters_that_a_font_does_not_explain_are_a_warning_that_names_recognition(make_pdf: MakePdf) -> None:
    plain = "The tide went out again. " * 4
    shifted = "".join(chr(ord(letter) - 29) if letter.isalpha() else letter for letter in plain)
    (warning,) = read_document(make_pdf(["A page with words that can be read."], [shifted] * 9)).warnings
    assert "Letters that make no words" in warning and "pages 2. Text recognition (OCR)" in warning
