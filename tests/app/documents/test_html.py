"""Web pages as they come."""

from pathlib import Path

import pytest

from app.documents import read_document
from app.documents.archive import MAX_ENTRY_BYTES
from app.documents.errors import DocumentTooLarge, EmptyDocument, UnsupportedFormat
from app.documents.xhtml import read_markup

pytestmark = pytest.mark.usefixtures("in_this_process")

BODY = "The pilot counted the boats that came in with the tide."


def write(folder: Path, markup: str | bytes, name: str = "page.html") -> Path:
    path = folder / name
    path.write_bytes(markup if isinstance(markup, bytes) else markup.encode())
    return path


def test_a_web_page_is_its_text_with_title_and_chapters(tmp_path: Path) -> None:
    document = read_document(
        write(
            tmp_path,
            "<!DOCTYPE html><html><head><title> The\nHarbour </title><style>p {}</style></head><body>"
            '<nav><a href="/">Home</a></nav><header><h1>The Harbour</h1></header><script>alert("x")</script>'
            f"<h2>Quay</h2><p>{BODY}</p><ul><li>rope</li></ul><h2>Tide</h2>"
            f"<table><tr><th>Ship</th><td>Tea</td></tr></table><p>{BODY}</p><footer>Imprint</footer></body></html>",
        )
    )
    assert document.text == (f"The Harbour\n\nQuay\n\n{BODY}\n\n• rope\n\nTide\n\nShip | Tea\n\n{BODY}")
    assert (document.format, document.title, document.has_own_pages) == ("html", "The Harbour", False)
    assert [chapter.title for chapter in document.chapters] == ["Quay", "Tide"]
    assert document.warnings == ()


@pytest.mark.parametrize(
    "declaration",
    ['<meta charset="iso-8859-2">', "<META http-equiv=Content-Type content='text/html; charset=ISO-8859-2'>"],
)
def test_a_declared_charset_is_used(tmp_path: Path, declaration: str) -> None:
    markup = f"<html><head>{declaration}</head><body>Žluťoučký kůň</body></html>"
    assert read_document(write(tmp_path, markup.encode("iso-8859-2"))).text == "Žluťoučký kůň"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_mark_or_the_bytes_themselves_tell_the_charset(tmp_path: Path, encoding: str) -> None:
    markup = "<html><head><meta charset='x-unheard-of'></head><body>Größe „genug“</body></html>"
    assert read_document(write(tmp_path, markup.encode(encoding))).text == "Größe „genug“"


@pytest.mark.parametrize(
    "around",
    [
        "<nav>{}</nav>",
        "<footer>{}</footer>",
        "<div hidden>{}</div>",
        "<div aria-hidden='true'><div>{}</div></div>",
        "<div role='Navigation'>{}</div>",
        "<noscript>{}</noscript>",
        "<select><option>{}</select>",
        "<button>{}</button>",
        "<dialog>{}</dialog>",
    ],
)
def test_what_stands_around_the_text_is_left_out_of_a_page_and_of_no_book(around: str) -> None:
    markup = f"<html><body>{around.format('AROUND')}<p>{BODY}</p></body></html>"
    assert read_markup(markup, as_web_page=True).text == BODY
    assert "AROUND" in read_markup(markup).text


@pytest.mark.parametrize(
    "markup",
    [
        f"<nav><a>x</a><p>{BODY}</p></body></html>",
        f"<div hidden><p>{BODY}</p>",
        f"<nav><p>{BODY}</p></nav>",
        f"<head><title>T</title><p>{BODY}</p>",
        f"<article><footer>{BODY}</footer></article>",
        f"<div hidden='until-found'>{BODY}</div>",
        f"<p hidden>a<p>{BODY}",
    ],
    ids=["open nav", "open hidden", "all in nav", "open head", "footer of an article", "collapsed", "hidden paragraph"],
)
def test_sloppy_or_odd_pages_never_lose_their_text(markup: str) -> None:
    assert BODY in read_markup(f"<html>{markup}", as_web_page=True).text


def test_bad_pages_are_named_as_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(EmptyDocument, match="holds no text"):
        read_document(write(tmp_path, "<html><body><script>app()</script></body></html>"))
    with pytest.raises(EmptyDocument, match="nothing but images"):
        read_document(write(tmp_path, "<html><body><img src=a.png></body></html>"))
    with pytest.raises(UnsupportedFormat, match="declares XML entities"):
        read_document(write(tmp_path, '<!DOCTYPE html [<!ENTITY a "b">]><html>&a;</html>'))
    with pytest.raises(DocumentTooLarge):
        read_document(write(tmp_path, b"<html>" + b" " * MAX_ENTRY_BYTES))


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    markup = (
        "<html><title><script>x</script></title><body>&lt;script&gt;alert(1)&lt;/script&gt;\ufdd0\ufdd1</body></html>"
    )
    assert read_document(write(tmp_path, markup)).text == "<script>alert(1)</script>"
