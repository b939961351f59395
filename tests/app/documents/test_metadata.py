"""What files say of themselves: authors, languages and covers, cleaned, and never drawn as markup."""

import io

import pytest
from PIL import Image
from pypdf import PdfWriter

from app.documents import read_document
from app.documents.metadata import COVER_START, MAX_AUTHORS, MAX_COVER_URL, byline, clean_authors, cover_url
from tests.app.documents.conftest import MakeEpub, MakePdf, package

pytestmark = pytest.mark.usefixtures("in_this_process")

LINE = "The old pilot stood on the quay and counted the boats that came in with the tide."


def picture(kind: str, image: Image.Image | None = None) -> bytes:
    stream = io.BytesIO()
    (image or Image.effect_noise((600, 800), 90).convert("RGB")).save(stream, kind)
    return stream.getvalue()


def test_authors_are_names_on_a_line() -> None:
    assert clean_authors(["  Ann\n Reed ", "", " ; ", "Ann Reed", "\u202eEvil\x07", "B" * 500]) == (
        "Ann Reed",
        "Evil",
        "B" * 100,
    )
    assert len(clean_authors(f"Author {n}" for n in range(1000))) == MAX_AUTHORS
    assert byline(()) == "" and byline(("A", "B")) == "by A, B" and byline(("A", "B", "C")) == "by A, B and 1 more"


XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:creator><rdf:Seq><rdf:li>Ann Reed</rdf:li></rdf:Seq>
</dc:creator><dc:language><rdf:Bag><rdf:li>en-NZ</rdf:li></rdf:Bag></dc:language></rdf:Description></rdf:RDF>
</x:xmpmeta>"""


@pytest.mark.parametrize(("packet", "authors"), [(XMP, ("Ann Reed",)), (XMP[:300], ()), (XMP + " " * 300_000, ())])
def test_pdfs_may_tell_it_in_xmp_and_damage_there_hides_nothing(
    make_pdf: MakePdf, writer: PdfWriter, packet: str, authors: tuple[str, ...]
) -> None:
    path = make_pdf([LINE])
    writer.xmp_metadata = packet.encode()
    writer.write(path)
    document = read_document(path)
    assert document.authors == authors and LINE in document.text
    assert document.language == ("en-NZ" if authors else "")


ITEM = '<item id="c" href="c.jpg" media-type="image/jpeg" properties="cover-image"/>'


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_covers_are_drawn_anew_and_small(kind: str) -> None:
    url = cover_url(picture(kind))
    assert url.startswith(COVER_START) and 1_000 < len(url) <= MAX_COVER_URL
    assert cover_url(picture(kind)[:200]) == "" and cover_url(picture(kind) + b"<script>") != ""


@pytest.mark.parametrize(
    "content",
    [b"", b"<svg onload=alert(1)/>", b"\x89PNG\r\n\x1a\n" + b"\0" * 99, picture("GIF"), picture("BMP")],
    ids=["empty", "svg", "no png", "gif", "bmp"],
)
def test_other_pictures_are_no_covers(make_epub: MakeEpub, content: bytes) -> None:
    assert cover_url(content) == ""
    files = {"OPS/book.opf": package(["s1.xhtml"], more=ITEM), "OPS/c.jpg": content}
    document = read_document(make_epub(f"<p>{LINE}</p>", files=files))
    assert document.cover == "" and LINE in document.text


def test_a_huge_picture_is_no_cover_and_ends_no_book(make_epub: MakeEpub) -> None:
    huge = picture("PNG", Image.new("1", (10_000, 6_000)))
    assert cover_url(huge) == ""
    for content in (huge, b"\0" * 70_000_000):  # the second one is a bomb
        files = {"OPS/book.opf": package(["s1.xhtml"], more=ITEM), "OPS/c.jpg": content}
        document = read_document(make_epub(f"<p>{LINE}</p>", files=files))
        assert document.cover == "" and LINE in document.text
