"""EPUB books as they come: good ones, odd ones, broken ones and hostile ones."""

import zipfile

import pytest

from app.documents.errors import DamagedDocument, DocumentTooLarge, DrmProtected, UnsupportedFormat
from app.documents.readers import read_document
from tests.app.documents.conftest import CONTAINER, MakeEpub, package, section

pytestmark = pytest.mark.usefixtures("in_this_process")

PARAGRAPH = f"<p>{' '.join(['The pilot counted the boats.'] * 20)}</p>"


def encryption(name: str, algorithm: str) -> str:
    return (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" '
        'xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData>'
        f'<enc:EncryptionMethod Algorithm="{algorithm}"/>'
        f'<enc:CipherData><enc:CipherReference URI="{name}"/></enc:CipherData></enc:EncryptedData></encryption>'
    )


# -------------------- good ones


def test_sections_become_one_text_in_reading_order(make_epub: MakeEpub) -> None:
    document = read_document(make_epub("<h1>Chapter 1</h1><p>One.</p>", "<h1>Chapter 2</h1><p>Two.</p>"))
    assert document.text == "Chapter 1\n\nOne.\n\nChapter 2\n\nTwo."
    assert (document.title, document.format, document.has_own_pages) == ("The Pilot", "epub", False)
    assert [document.page_text(page) for page in document.pages] == ["Chapter 1\n\nOne.\n\n", "Chapter 2\n\nTwo."]
    assert document.warnings == ()


def test_references_are_decoded_and_followed_through_folders(make_epub: MakeEpub) -> None:
    opf = package(["../Text%20files/a%26b.xhtml#start"])
    files = {"OPS/book.opf": opf, "Text files/a&b.xhtml": section("<p>Found.</p>")}
    assert read_document(make_epub(files=files)).text == "Found."


@pytest.mark.parametrize("declared", ["iso-8859-1", "us-ascii", "x-unheard-of", "zip"])
def test_utf8_is_read_as_such_whatever_is_declared(make_epub: MakeEpub, declared: str) -> None:
    markup = f'<?xml version="1.0" encoding="{declared}"?><html><body>Zähler „genug“</body></html>'
    assert read_document(make_epub("", files={"OPS/s1.xhtml": markup.encode()})).text == "Zähler „genug“"


@pytest.mark.parametrize(
    ("declared", "actual"),
    [("utf-8", "cp1252"), ("", "cp1252"), ("iso-8859-2", "iso-8859-2"), ("utf-16", "utf-16"), ("utf-8", "utf-16")],
)
def test_other_encodings_are_read_as_declared_or_as_they_are(make_epub: MakeEpub, declared: str, actual: str) -> None:
    markup = f'<?xml version="1.0" encoding="{declared}"?><html><body>Über Größe</body></html>'
    assert read_document(make_epub("", files={"OPS/s1.xhtml": markup.encode(actual)})).text == "Über Größe"


# -------------------- broken ones


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_truncated_archive_is_cut_off_and_never_half_read(make_epub: MakeEpub, share: float) -> None:
    path = make_epub(*[PARAGRAPH] * 30)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DamagedDocument, match=r"book\.epub is cut off"):
        read_document(path)


@pytest.mark.parametrize("name", ["META-INF/container.xml", "OPS/book.opf"])
@pytest.mark.parametrize("content", ["", "<package", "no markup", b"\xff\xfe\x00"])
def test_a_malformed_list_of_contents_is_damage(make_epub: MakeEpub, name: str, content: str | bytes) -> None:
    with pytest.raises(DamagedDocument, match="damaged and cannot be read as an EPUB"):
        read_document(make_epub(PARAGRAPH, files={name: content}))


def test_a_missing_section_is_reported_and_the_others_are_read(make_epub: MakeEpub) -> None:
    document = read_document(make_epub("<p>One.</p>", PARAGRAPH, "<p>Three.</p>", files={"OPS/s2.xhtml": None}))
    assert document.text == "One.\n\nThree."
    assert document.warnings == ("Missing or damaged, so that text is lost: sections 2.",)


def test_a_section_with_a_wrong_checksum_is_reported(make_epub: MakeEpub) -> None:
    stored = "<html><body><p>The checksum is of these words.</p></body></html>"
    path = make_epub("<p>One.</p>", "")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr("OPS/book.opf", package(["a.xhtml", "b.xhtml"]))
        archive.writestr("OPS/a.xhtml", stored)
        archive.writestr("OPS/b.xhtml", section("<p>Two.</p>"))
    path.write_bytes(path.read_bytes().replace(b"these words", b"other words"))
    document = read_document(path)
    assert (document.text, document.warnings) == ("Two.", ("Missing or damaged, so that text is lost: sections 1.",))


def test_a_reference_to_the_web_or_out_of_the_archive_finds_nothing(make_epub: MakeEpub) -> None:
    opf = package(["https://example.org/a.xhtml", "../../../etc/passwd", "/etc/passwd", "s.xhtml"])
    files = {"OPS/book.opf": opf, "OPS/s.xhtml": section("<p>Inside.</p>")}
    document = read_document(make_epub(files=files))
    assert document.text == "Inside."
    assert document.warnings == ("Missing or damaged, so that text is lost: sections 1–3.",)


# -------------------- protected ones


def test_an_encrypted_book_is_named_as_protected(make_epub: MakeEpub) -> None:
    files = {"META-INF/encryption.xml": encryption("OPS/s1.xhtml", "http://www.w3.org/2001/04/xmlenc#aes128-cbc")}
    with pytest.raises(DrmProtected, match=r"book\.epub is encrypted \(DRM\)") as caught:
        read_document(make_epub("\x00\x01 noise", files=files))
    assert caught.value.hint == "Use a copy without DRM."


# -------------------- hostile ones

BOMB = "<!DOCTYPE x [" + '<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {name} "{("&" + before + ";") * 10}">' for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)  # fmt: skip


def test_entities_are_refused_wherever_they_are_declared(make_epub: MakeEpub) -> None:
    external = '<!DOCTYPE x [<!ENTITY i SYSTEM "file:///etc/passwd">]>'
    for head in (f"{BOMB}]>", external, external.replace("i SYSTEM", "% i SYSTEM")):
        for path in (
            make_epub(PARAGRAPH, head=head, title="A title"),
            make_epub("", files={"OPS/s1.xhtml": f"{head}<html><body>&i;</body></html>"}),
            make_epub(PARAGRAPH, files={"META-INF/container.xml": head + CONTAINER.partition("?>")[2]}),
        ):
            with pytest.raises(UnsupportedFormat, match="declares XML entities"):
                read_document(path)


def test_a_section_that_unpacks_to_far_more_than_it_should_is_refused(make_epub: MakeEpub) -> None:
    with pytest.raises(DocumentTooLarge, match="unpacks to more than any book takes"):
        read_document(make_epub(" " * 2_000_000))  # a thousand times its packed size
