"""Markup to text: what a reader would see as lines, and what is no text."""

import pytest

from app.documents.archive import Refused
from app.documents.xhtml import read_markup


def text(body: str) -> str:
    return read_markup(f"<html><head><title>Not text</title></head><body>{body}</body></html>").text


def test_blocks_are_paragraphs_and_inline_elements_are_not() -> None:
    body = "<div><h2>Chapter 1:\n  The Quay</h2><p>The <i>old</i> pilot<b>s</b>\n stood.</p><p/>\n<p>He.</p></div>"
    assert text(body) == "Chapter 1: The Quay\n\nThe old pilots stood.\n\nHe."


def test_lists_keep_their_numbers_and_their_levels() -> None:
    body = "<p>Bring:</p><ol start='3'><li>rope<ul><li>long</li><li></li></ul></li><li><p>salt</p></li></ol><p>Go.</p>"
    assert text(body) == "Bring:\n\n3. rope\n  • long\n\n4. salt\n\nGo.".replace("\n\n4.", "\n4.")


def test_tables_are_rows_of_cells_with_empty_ones_in_their_places() -> None:
    rows = ["<th>Ship</th><th>Cargo</th>", "<td><p>Kestrel</p></td><td><p>tea</p></td>", "<td/><td>salt</td>"]
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    assert text(f"A<table>{table}</table>B") == "A\n\nShip | Cargo\nKestrel | tea\n| salt\n\nB"


def test_scripts_styles_and_drawings_are_no_text() -> None:
    body = "<script>if (a < b) x();</script><style/>A<svg><text>draw</text></svg>.<!-- no --><ruby>字<rt>ji</rt></ruby>"
    assert text(body) == "A.字"


def test_verse_keeps_its_lines_and_stanzas() -> None:
    lines = '<div class="line">Tiger, tiger</div><div class="line">burning bright</div>'
    assert text(f'<p>a</p><div class="line-block">{lines}</div><p>b</p>') == "a\n\nTiger, tiger\nburning bright\n\nb"
    stanza = '<div><p class="verse x">One</p><p class="verse">two</p></div>'
    assert text(stanza + stanza) == "One\ntwo\n\nOne\ntwo"
    assert text('<p class="versed">One</p><p>two</p>') == "One\n\ntwo"
    assert text("<p>One,<br/>&#160;&#160;two<br/> &emsp;&emsp;three &#160; four</p>") == "One,\n  two\n  three four"
    assert text("<p>&#160;&#160;One</p><p>a &#160;&#160;b</p>") == "One\n\na b", "only lines have indents"


def test_programs_have_no_numbers_of_lines_and_no_empty_ones() -> None:
    numbers = '<td class="linenos"><div><pre>1\n2</pre></div></td>'
    table = f'<table><tr>{numbers}<td class="code"><pre>def f():\n    pass</pre></td></tr></table>'
    assert text(table) == "def f():\n    pass"
    assert text('<pre><span class="linenos">1</span>a\n<span class="lineno">2</span>  b</pre>') == "a\n  b"
    assert text("<pre><div>a</div><div>  b</div></pre><p>c</p>") == "a\n  b\n\nc"
    colours = '<span class="k">def</span> <span class="nf">f</span>():\n    <span class="k">pass</span>\n'
    assert text(f"<pre><span></span>{colours}</pre>") == "def f():\n    pass"


def test_named_entities_of_html_are_resolved_and_others_stay() -> None:
    assert text("caf&eacute;&nbsp;&amp; bar&mdash;&#8220;&lt;b&gt;&#x201D; &harbour;") == "café & bar—“<b>” &harbour;"


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">',
        "<!DOCTYPE html>",
    ],
)
def test_a_plain_doctype_is_accepted(doctype: str) -> None:
    assert read_markup(f"<?xml version='1.0'?>{doctype}<html><body>Yes&nbsp;.</body></html>").text == "Yes ."


def test_declared_entities_are_refused() -> None:
    with pytest.raises(Refused, match="entities"):
        read_markup('<!DOCTYPE html [<!ENTITY a "b">]><html><body>&a;</body></html>')


@pytest.mark.parametrize("broken", ["<p>A.<p>B.</div></p>", "<body><p>A.</b><p>B.", "<p class=x'>A.</p><p>B."])
def test_sloppy_markup_is_still_read(broken: str) -> None:
    assert read_markup(broken).text == "A.\n\nB."
