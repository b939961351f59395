"""EPUB books as they come: good ones, odd ones, broken ones and hostile ones; and what is left of covers."""

import io

import pytest
from PIL import Image

from app.documents.errors import DamagedDocument, DocumentTooLarge, DrmProtected, UnsupportedFormat
from app.documents.metadata import COVER_START, MAX_AUTHORS, MAX_COVER_URL, byline, clean_authors, cover_url
from app.documents.readers import read_document
from tests.app.documents.conftest import MakeEpub
from tests.hostile.corpus import CONTAINER, LAUGHS, OUTSIDE, package, page

pytestmark = pytest.mark.usefixtures("in_this_process")

PARAGRAPH = f"<p>{' '.join(['The pilot counted the boats.'] * 20)}</p>"
LOST = "Missing or damaged, so that text is lost: sections {}."


def test_sections_become_one_text_in_reading_order(make_epub: MakeEpub) -> None:
    document = read_document(
        make_epub("<h1>Chapter 1</h1><p>One.</p>", "<h1>Chapter 2</h1><p>Two.</p>", title="The Pilot")
    )
    assert document.text == "Chapter 1\n\nOne.\n\nChapter 2\n\nTwo."
    assert (document.title, document.format, document.has_own_pages) == ("The Pilot", "epub", False)
    assert [document.page_text(page) for page in document.pages] == ["Chapter 1\n\nOne.\n\n", "Chapter 2\n\nTwo."]
    assert document.warnings == ()


@pytest.mark.parametrize("kind", ["text/x-oeb1-document", "text/xml", "Application/XHTML+xml; charset=utf-8"])
def test_sections_of_any_markup_are_read(make_epub: MakeEpub, kind: str) -> None:
    opf = package(["s1.xhtml"]).replace("application/xhtml+xml", kind)
    document = read_document(make_epub("<p>One.</p>", files={"OPS/b.opf": opf}))
    assert document.text == "One." and document.warnings == ()


@pytest.mark.parametrize(
    ("declared", "actual"),
    [
        *((name, "utf-8") for name in ("iso-8859-1", "us-ascii", "x-unheard-of", "zip")),
        ("utf-8", "cp1252"), ("", "cp1252"), ("iso-8859-2", "iso-8859-2"), ("utf-16", "utf-16"), ("utf-8", "utf-16"),
        ("x-unheard-of", "utf-8-sig"),
    ],
)  # fmt: skip
def test_utf8_is_read_as_such_whatever_is_declared_and_others_as_declared_or_as_they_are(
    make_epub: MakeEpub, declared: str, actual: str
) -> None:
    markup = f'<?xml version="1.0" encoding="{declared}"?><html><body>Über Größe</body></html>'
    assert read_document(make_epub("", files={"OPS/s1.xhtml": markup.encode(actual)})).text == "Über Größe"


def test_references_are_decoded_and_followed_through_folders_but_never_out_of_the_archive(make_epub: MakeEpub) -> None:
    names = ["../Text%20files/a%26b.xhtml#start", "https://example.org/a.xhtml", "../../../etc/passwd", "/etc/passwd"]
    document = read_document(make_epub(files={"OPS/b.opf": package(names), "Text files/a&b.xhtml": page("Inside.")}))
    assert (document.text, document.warnings) == ("Inside.", (LOST.format("2–4"),))


# -------------------- broken, protected and hostile ones


@pytest.mark.parametrize("name", ["META-INF/container.xml", "OPS/b.opf"])
@pytest.mark.parametrize("content", ["", "<package", "no markup", b"\xff\xfe\x00"])
def test_a_malformed_list_of_contents_is_damage(make_epub: MakeEpub, name: str, content: str | bytes) -> None:
    with pytest.raises(DamagedDocument, match="damaged and cannot be read as an EPUB"):
        read_document(make_epub(PARAGRAPH, files={name: content}))


@pytest.mark.parametrize("missing", [True, False])
def test_a_missing_section_or_one_with_a_wrong_checksum_is_reported_and_the_others_are_read(
    make_epub: MakeEpub, missing: bool
) -> None:
    path = make_epub("<p>One.</p>", PARAGRAPH, "<p>Three.</p>", files={"OPS/s2.xhtml": None} if missing else {})
    if not missing:
        content = bytearray(path.read_bytes())
        content[content.rfind(b"OPS/s2.xhtml") - 30] ^= 1  # its checksum in the list of files
        path.write_bytes(content)
    document = read_document(path)
    assert (document.text, document.warnings) == ("One.\n\nThree.", (LOST.format("2"),))


def test_an_encrypted_book_is_named_as_protected(make_epub: MakeEpub) -> None:
    encryption = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" xmlns:enc="http://www.w3.org/2001/04/xmlenc#">'
        '<enc:EncryptedData><enc:EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/><enc:CipherData>'
        '<enc:CipherReference URI="OPS/s1.xhtml"/></enc:CipherData></enc:EncryptedData></encryption>'
    )
    with pytest.raises(DrmProtected, match=r"book\.epub is encrypted \(DRM\)") as caught:
        read_document(make_epub("\x00\x01 noise", files={"META-INF/encryption.xml": encryption}))
    assert caught.value.hint == "Use a copy without DRM."


@pytest.mark.parametrize("head", [LAUGHS, OUTSIDE, OUTSIDE.replace("a SYSTEM", "% a SYSTEM")])
@pytest.mark.parametrize("name", ["META-INF/container.xml", "OPS/b.opf", "OPS/s1.xhtml"])
def test_entities_are_refused_wherever_they_are_declared(make_epub: MakeEpub, head: str, name: str) -> None:
    whole = {
        "META-INF/container.xml": CONTAINER,
        "OPS/b.opf": package(["s1.xhtml"]),
        "OPS/s1.xhtml": page("<p>&a;</p>"),
    }
    with pytest.raises(UnsupportedFormat, match="declares XML entities"):
        read_document(make_epub(PARAGRAPH, files={name: head + whole[name]}))


def test_a_section_that_unpacks_to_far_more_than_it_should_is_refused(make_epub: MakeEpub) -> None:
    with pytest.raises(DocumentTooLarge, match="holds more than any book"):
        read_document(make_epub(" " * 2_000_000))  # a thousand times its packed size


# -------------------- authors and covers


def test_authors_are_names_on_a_line() -> None:
    names = ["  Ann\n Reed ", "", " ; ", "Ann Reed", "\u202eEvil\x07", "B" * 500]
    assert clean_authors(names) == ("Ann Reed", "Evil", "B" * 100)
    assert len(clean_authors(f"Author {n}" for n in range(1000))) == MAX_AUTHORS
    assert byline(()) == "" and byline(("A", "B")) == "by A, B" and byline(("A", "B", "C")) == "by A, B and 1 more"


def picture(kind: str, image: Image.Image | None = None) -> bytes:
    stream = io.BytesIO()
    (image or Image.effect_noise((600, 800), 90).convert("RGB")).save(stream, kind)
    return stream.getvalue()


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
    document = read_document(make_epub(PARAGRAPH, files=files))
    assert document.cover == "" and "The pilot" in document.text
