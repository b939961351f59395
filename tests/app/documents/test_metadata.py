"""What files say of themselves: authors, languages and covers, cleaned, and never drawn as markup."""

import io

import pytest
from PIL import Image
from pypdf import PdfWriter
from pypdf.generic import NameObject, TextStringObject

from app.documents.metadata import COVER_START, MAX_AUTHORS, MAX_COVER_URL, byline, clean_authors, cover_url
from app.documents.parsers.pdf import read as read_pdf
from app.documents.readers import read_document
from tests.app.documents.conftest import MakeEpub, MakePdf
from tests.hostile.corpus import package

pytestmark = pytest.mark.usefixtures("in_this_process")

LINE = "The old pilot stood on the quay and counted the boats that came in with the tide."


def picture(kind: str, image: Image.Image | None = None) -> bytes:
    stream = io.BytesIO()
    (image or Image.effect_noise((600, 800), 90).convert("RGB")).save(stream, kind)
    return stream.getvalue()


def test_authors_are_names_on_a_line() -> None:
    names = ["  Ann\n Reed ", "", " ; ", "Ann Reed", "\u202eEvil\x07", "B" * 500]
    assert clean_authors(names) == ("Ann Reed", "Evil", "B" * 100)
    assert len(clean_authors(f"Author {n}" for n in range(1000))) == MAX_AUTHORS
    assert byline(()) == "" and byline(("A", "B")) == "by A, B" and byline(("A", "B", "C")) == "by A, B and 1 more"


@pytest.mark.parametrize("by", ["pdfium", "pypdf"])
def test_pdfs_state_authors_and_language(make_pdf: MakePdf, writer: PdfWriter, by: str) -> None:
    path = make_pdf([LINE])
    writer.add_metadata({"/Author": "Ann Reed; Bo Quay"})
    writer.root_object[NameObject("/Lang")] = TextStringObject("en-NZ")
    writer.write(path)
    with path.open("rb") as stream:
        opened = next(read_pdf(stream, by))
    assert opened["kind"] == "opened" and opened["language"] == "en-NZ"
    assert clean_authors(opened["authors"]) == ("Ann Reed", "Bo Quay")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_covers_are_drawn_anew_and_small(kind: str) -> None:
    url = cover_url(picture(kind))
    assert url.startswith(COVER_START) and 1_000 < len(url) <= MAX_COVER_URL
    assert cover_url(picture(kind)[:200]) == "" and cover_url(picture(kind) + b"<script>") != ""


HUGE = picture("PNG", Image.new("1", (10_000, 6_000)))
OTHERS = {
    "empty": b"", "svg": b"<svg onload=alert(1)/>", "no png": b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "gif": picture("GIF"),
    "bmp": picture("BMP"), "huge": HUGE, "a bomb": b"\0" * 70_000_000,
}  # fmt: skip


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_other_pictures_and_huge_ones_are_no_covers_and_end_no_book(make_epub: MakeEpub, content: bytes) -> None:
    assert cover_url(content) == ""
    item = '<item id="c" href="c.jpg" media-type="image/jpeg" properties="cover-image"/>'
    files = {"OPS/b.opf": package(["s1.xhtml"], more=item), "OPS/c.jpg": content}
    document = read_document(make_epub(f"<p>{LINE}</p>", files=files))
    assert document.cover == "" and LINE in document.text
