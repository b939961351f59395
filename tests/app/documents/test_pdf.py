from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject, NumberObject

from app.documents import readers
from app.documents.document import Extracting
from app.documents.errors import (
    DamagedDocument,
    DocumentTooLarge,
    PasswordProtected,
    ScannedDocument,
)
from app.documents.messages import Opened, PageRead
from app.documents.parsers import pdf as parser
from app.documents.parsing import ParserCrashed, ParsingLimits, parse
from app.documents.pdfium import PdfiumError
from app.documents.readers import extract_parsed, read_document, to_document
from tests.app.documents.conftest import MakePdf, write_lines

pytestmark = pytest.mark.usefixtures("in_this_process")
PAGE = [
    "The old pilot stood on the quay and counted the boats that",
    "came in with the tide, as he had done on every evening of",
    "his life.",
]


def test_a_pdf_becomes_prose_with_the_pages_it_came_from(make_pdf: MakePdf) -> None:
    path = make_pdf(["THE PILOT", *PAGE, "1"], ["THE PILOT", "On the second day he counted", "none.", "2"], PAGE)
    document = read_document(path)
    assert document.page_text(document.pages[0]).strip() == f"THE PILOT\n{' '.join(PAGE)}\n\n1".replace("\n\n1", "")
    assert [page.number for page in document.pages] == [1, 2, 3]
    assert document.format == "pdf"
    assert document.has_own_pages
    assert document.warnings == ()


def test_title_and_labels_come_from_the_document(make_pdf: MakePdf, writer: PdfWriter) -> None:
    writer.add_metadata({"/Title": " The\nHarbour "})
    path = make_pdf(PAGE, PAGE)
    writer.set_page_label(0, 0, "/r")
    writer.set_page_label(1, 1, "/D", start=1)
    writer.write(path)
    document = read_document(path)
    assert document.title == "The Harbour"
    assert [page.label for page in document.pages] == ["i", "1"]


def test_a_pdf_encrypted_without_a_user_password_opens(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf(PAGE)
    writer.encrypt(user_password="", owner_password="secret", algorithm="AES-256")
    writer.write(path)
    assert read_document(path).text == " ".join(PAGE)


def test_a_pdf_with_a_user_password_is_refused(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf(PAGE)
    writer.encrypt(user_password="secret", algorithm="AES-256")
    writer.write(path)
    with pytest.raises(PasswordProtected, match=r"book\.pdf is protected by a password"):
        read_document(path)


def add_image(writer: PdfWriter, page: int) -> None:
    """Draw an image of one grey pixel on a page."""
    image = DecodedStreamObject()
    image.set_data(b"\x80")
    names = {"/Type": "/XObject", "/Subtype": "/Image", "/ColorSpace": "/DeviceGray"}
    image.update({NameObject(key): NameObject(value) for key, value in names.items()})
    image.update({NameObject(key): NumberObject(1) for key in ("/Width", "/Height")})
    image[NameObject("/BitsPerComponent")] = NumberObject(8)
    objects = DictionaryObject({NameObject("/Im1"): writer._add_object(image)})
    resources = writer.pages[page]["/Resources"]
    assert isinstance(resources, DictionaryObject)
    resources[NameObject("/XObject")] = objects
    contents = writer.pages[page]["/Contents"].get_object()
    assert isinstance(contents, DecodedStreamObject)
    contents.set_data(contents.get_data() + b" q 100 0 0 100 0 0 cm /Im1 Do Q")


def test_scanned_pages_are_named_as_what_they_are(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf([], [], [])
    for page in range(3):
        add_image(writer, page)
    writer.write(path)
    with pytest.raises(ScannedDocument, match="3 pages are images") as caught:
        read_document(path)
    assert "OCR" in caught.value.hint


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.97])
def test_a_truncated_pdf_is_damaged_and_never_half_read(make_pdf: MakePdf, share: float) -> None:
    path = make_pdf(*[PAGE] * 5)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
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


def raw_pdf(make_pdf: MakePdf, *placed: tuple[str, int, int]) -> Path:
    """A page of words at places, drawn in that order."""
    shown = "".join(f"1 0 0 1 {x} {y} Tm ({text}) Tj " for text, x, y in placed)
    return make_pdf(f"BT /F1 11 Tf {shown}ET".encode("cp1252"))


def test_room_between_paragraphs_parts_them_and_two_columns_are_read_one_after_the_other(make_pdf: MakePdf) -> None:
    left = [(f"the left column line {number}", 50, 700 - 14 * number) for number in range(4)]
    right = [(f"the right column line {number}", 320, 700 - 14 * number) for number in range(4)]
    text = read_document(raw_pdf(make_pdf, *left, ("After some room", 50, 620), *right)).text
    order = ["left column line 0", "left column line 3", "After some room", "right column line 0", "column line 3"]
    assert [text.index(part) for part in order[:-1]] == sorted(text.index(part) for part in order[:-1])
    assert "\n\nAfter some room" in text


def test_a_turned_page_is_read_line_by_line(make_pdf: MakePdf, writer: PdfWriter) -> None:
    upward = "".join(f"0 1 -1 0 {100 + 14 * n} 50 Tm ({text}) Tj " for n, text in enumerate(PAGE))
    path = make_pdf(f"BT /F1 11 Tf {upward}ET".encode("cp1252"))
    writer.pages[0].rotate(90)
    writer.write(path)
    assert read_document(path).text == " ".join(PAGE)


def test_where_pdfium_cannot_open_a_file_pypdf_reads_it_and_says_so(
    make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_pdf(PAGE, PAGE)

    class Broken:
        def __init__(self, _: object) -> None:
            raise PdfiumError("no")

    monkeypatch.setattr(parser, "Pdfium", Broken)
    with path.open("rb") as stream:
        opened, *pages = list(parser.read(stream))
    document = to_document("pdf", "book.pdf", cast(Opened, opened), cast(list[PageRead], pages))
    assert document.text.startswith(" ".join(PAGE))
    told = "PDFium could not read them and pypdf did, so that words may be run together: pages 1–2."
    assert document.warnings == (told,)


def test_where_pdfium_crashes_pypdf_reads_the_file_in_a_new_process(
    make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashing(reader: str, file: Path, name: str, limits: ParsingLimits, *more: list[str]) -> Iterator[Extracting]:
        if not more:
            raise ParserCrashed(name, "2 GB of memory")
        return parse(reader, file, name, limits, *more)

    monkeypatch.setattr(readers, "parse", crashing)
    document = read_document(make_pdf(PAGE))
    assert document.text == " ".join(PAGE)
    assert "pypdf did" in document.warnings[0]


def test_letters_that_a_font_does_not_explain_are_a_warning_that_names_recognition(make_pdf: MakePdf) -> None:
    plain = "The tide went out again. " * 4
    shifted = "".join(chr(ord(letter) - 29) if letter.isalpha() else letter for letter in plain)
    document = read_document(make_pdf(["A page with words that can be read, for a change."], [shifted] * 9))
    (warning,) = document.warnings
    assert "Letters that make no words" in warning and "pages 2." in warning
    assert "Text recognition (OCR)" in warning


def test_a_page_of_five_metres_is_read(make_pdf: MakePdf, writer: PdfWriter) -> None:
    file = make_pdf(["The chart of the coast."])
    writer.pages[0].mediabox.upper_right = (14_173, 14_173)
    writer.write(file)
    assert read_document(file).text == "The chart of the coast."
