"""Web pages as they come."""

from pathlib import Path

import pytest

from app.documents.parsers.html import read_markup
from app.documents.readers import read_document

pytestmark = pytest.mark.usefixtures("in_this_process")

BODY = "The pilot counted the boats that came in with the tide."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_mark_or_the_bytes_themselves_tell_the_charset(tmp_path: Path, encoding: str) -> None:
    markup = "<html><head><meta charset='x-unheard-of'></head><body>Größe „genug“</body></html>"
    (tmp_path / "page.html").write_bytes(markup.encode(encoding))
    assert read_document(tmp_path / "page.html").text == "Größe „genug“"


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
    assert read_markup(markup, as_web_page=True).lines.marked().text == BODY
    assert "AROUND" in read_markup(markup).lines.marked().text


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
    assert BODY in read_markup(f"<html>{markup}", as_web_page=True).lines.marked().text
