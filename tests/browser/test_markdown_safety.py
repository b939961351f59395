"""Markdown of answers in a real browser: whatever a text says, nothing of it is run, fetched, linked or hidden."""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from app.markdown import PLACE, with_places
from app.ui.assets import SERVED
from tests.app.conversations.test_export import ATOMS
from tests.app.fakes import SECONDS
from tests.browser.journeys.page import EVIL

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.browser
VENDORED = ("markdown-it.min.js", "katex.min.js")


def names(text: str) -> set[str]:
    return set(text.split())


MATHS = names(
    """
    annotation math menclose merror mfrac mglyph mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot
    mrow ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover semantics
    """
)
ELEMENTS = MATHS | names(
    """
    blockquote br code em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul
    """
)
ATTRIBUTES = names("class start style title")  # style: of cells and KaTeX's errors
OF_MATHS = names(
    """
    accent accentunder columnalign columnlines columnspacing depth display displaystyle encoding fence height
    linebreak linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits
    notation rowalign rowlines rowspacing rspace scriptlevel separator side stretchy symmetric voffset width xmlns
    """
)
# Of each text every element with its attributes, whether anything was run, and the words.
LOOK = """(texts) => texts.map(([text, inserted]) => {
  const html = window.rendered(text, inserted);
  const place = Object.assign(document.createElement("div"), { innerHTML: html });
  document.body.append(place);
  const found = [...place.querySelectorAll("*")].map((one) => [
    one.localName, [...one.attributes].map(({ name, value }) => [name, value])]);
  const code = [...place.querySelectorAll("code")].map((one) => one.textContent);
  const told = { html, found, code, text: place.textContent.trim(), hacked: Boolean(window.hacked) };
  place.remove();
  return told;
})"""


class Renderer:
    """A page with nothing but the scripts that render Markdown."""

    def __init__(self, page: "playwright.Page") -> None:
        self.page, self.asked = page, list[str]()
        page.set_default_timeout(SECONDS * 1000)
        page.on("request", lambda request: self.asked.append(request.url))
        for name in VENDORED:
            page.add_script_tag(path=SERVED[name])
        ours = SERVED["markdown.js"].read_text(encoding="utf-8")
        page.add_script_tag(content=f"{ours}\nwindow.rendered = html;", type="module")
        page.wait_for_function("() => Boolean(window.rendered)")
        self.asked.clear()

    def looks(self, *texts: tuple[str, Sequence[str]]) -> list[dict[str, Any]]:
        """What texts become with what is inserted; nothing of them may be anything but text."""
        all_found: list[dict[str, Any]] = self.page.evaluate(LOOK, texts)
        assert not [text for (text, _), found in zip(texts, all_found, strict=True) if found["hacked"]]
        assert self.asked == [], texts
        return all_found

    def is_safe(self, *texts: str) -> dict[str, Any]:
        """Of all of them, in one call of the browser; what the last becomes."""
        found: dict[str, Any] = {}
        for text, found in zip(texts, self.looks(*((text, ()) for text in texts)), strict=True):
            for name, attributes in found["found"]:
                assert name in ELEMENTS, (text, name, found["html"])
                for attribute, value in attributes:
                    known = ATTRIBUTES | (OF_MATHS if name in MATHS else set())
                    assert attribute in known, (text, name, attribute, value)
                    assert attribute in ("class", "title") or "url(" not in value, (text, name, attribute, value)
        return found

    def marked(self, text: str) -> str:
        """The HTML of a text with a chip behind its WORD."""
        (found,) = self.looks((with_places(text, [text.index("WORD") + len("WORD")]), [CHIP]))
        return str(found["html"])


@pytest.fixture(scope="module")
def renderer(browser: "playwright.Browser") -> Renderer:
    return Renderer(browser.new_page())


HOSTILE = [
    EVIL,
    "<a href='javascript:window.hacked=1'>x</a>",
    "<svg/onload=window.hacked=1>", "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<math><mtext><img src=x onerror=window.hacked=1>", "<style>*{display:none}</style>", "</div></p><b>",
    "[x](javascript:window.hacked=1)", "[page 12](http://a/leak?q=x)", "[page 12][1]\n\n[1]: http://a/ 't'",
    "![x](http://elsewhere/pixel.png)", "![x][1]\n\n[1]: http://elsewhere/pixel.png", "<http://elsewhere/>",
    "http://elsewhere/ and www.elsewhere.com and me@elsewhere.com", "[`page 12`](http://a/)", "[x](<data:text/html,y>)",
    '```"onmouseover=window.hacked=1 x="\ncode\n```', "```<img src=x onerror=window.hacked=1>\ncode\n```",
    "~~~ \" onload='window.hacked=1'\ncode\n~~~", "    <b>indented</b>", "`<b>`",
    r"\(\href{javascript:window.hacked=1}{x}\)", r"\[\url{http://elsewhere/}\]", r"$$\includegraphics{http://a/p.png}$$",
    r"\(\htmlClass{a}{x}\htmlId{b}{y}\htmlStyle{color:red}{z}\htmlData{a=b}{w}\)", r"\(\html@mathml{<img>}{x}\)",
    r"\(\def\a{\a\a}\a\)", r"\(\text{<img src=x onerror=window.hacked=1>}\)", r"\(<img src=x>\)",
    r"$$\unicode{x3c}img\unicode{x3e}$$", r"\[\rule{999999em}{999999em}\]", r"\(\color{red;background:url(http://a/)}x\)",
    "x `a <b>\n\nc` y", "- a `x\n- <b> y`", "`x\ny` <b> `z`", "\\`a` <b> `c`", "| `a | <b> ` |\n|-|-|\n|<i>|<u>|",
    "- a\n  ```\n<b>\n  ```", "x ``` <b>\n```", "```a`b\n<b>\n```", "\\[\n```\n\\] <b>\n```", "a\u2028```\n<b>\n```",
    "```\nx\r```\r<b>", "\0000\0 <b> `\0`", "&lt;b&gt; &#60;b&#62; &#x3c;b&#x3e;", "<!-- <b> -->", "<![CDATA[<b>]]>",
    "\u202e<b>\ud800", "[[[[[" * 200, "*" * 3000, "> " * 300 + "<b>", "$$" * 500, "\\(" * 500 + "\\)" * 500,
    f"{PLACE}0{PLACE}<b>{PLACE}", f"`{PLACE}0{PLACE}`", f"```{PLACE}0{PLACE}\n{PLACE}1{PLACE}\n```",
]  # fmt: skip


def test_nothing_of_a_hostile_text_is_more_than_text(renderer: Renderer) -> None:
    """Nor of what is there of it while it is still being written, nor of any combination of signs."""
    renderer.is_safe(
        *(text[:end] for text in HOSTILE for end in range(0, len(text), max(1, len(text) // 20))), *HOSTILE
    )
    draws = random.Random(7)
    atoms = [*ATOMS, *HOSTILE[:30], "\\(", "\\)", "$", "~~", "***", "# ", "|-|-|\n", "<", ">", '"', "'", "=", "&"]
    renderer.is_safe(*("".join(draws.choice(atoms) for _ in range(draws.randint(1, 9))) for _ in range(1500)))


@pytest.mark.parametrize(
    ("text", "shown", "code"),
    [
        ("`if a < b && c`", None, ["if a < b && c"]),
        ("```html\n<b>&amp;</b>\n```", None, ["<b>&amp;</b>\n"]),
        ("So:\n\n    a <b> \\( x \\)\n", None, ["a <b> \\( x \\)\n"]),
        ("`$$x$$` and `\\(y\\)` and `[a](b)`", None, ["$$x$$", "\\(y\\)", "[a](b)"]),
        ("```python\nif a < b:\n    return '&'  # still being", None, ["if a < b:\n    return '&'  # still being"]),
        ("a < b & c", "a < b & c", []), ("<b>x</b>", "<b>x</b>", []), ("&lt;b&gt;", "<b>", []),
        ("[page 12](http://a/q)", "[page 12](http://a/q)", []), ("![x](http://a/p)", "![x](http://a/p)", []),
        ("it costs $5 or $6", "it costs $5 or $6", []), ("[1]: http://a/", "[1]: http://a/", []),
        ("<http://a/>", "<http://a/>", []), (r"It is \(x + <b>", "It is (x + <b>", []),  # still being written
    ],
)  # fmt: skip
def test_code_and_what_is_no_markdown_here_stand_as_they_were_written(
    renderer: Renderer, text: str, shown: str | None, code: list[str]
) -> None:
    found = renderer.is_safe(text)
    assert found["code"] == code and (shown is None or found["text"] == shown)


@pytest.mark.parametrize(
    "text", [r"So \(a < b_1\) holds", r"$$\frac{x}{y} \times z$$", "\\[\nx^2\n\\]", "a\n$$\nx\n$$\nb"]
)
def test_mathematics_is_mathml_with_nothing_beside_it(renderer: Renderer, text: str) -> None:
    found = renderer.is_safe(text)
    assert [name for name, _ in found["found"]].count("math") == 1 and "katex-html" not in found["html"]
    assert not any(delimiter in found["text"] for delimiter in ("$$", "\\(", "\\["))
    assert r"\nosuch{" in renderer.is_safe(r"It is \(\nosuch{<b>\) here")["text"], "a wrong formula is text"


CHIP = '<button class="chip" data-act="quote:n.0">page 2</button>'


@pytest.mark.parametrize(
    "text",
    ["He said WORD and left", "*WORD* it is", "- one\n- WORD two", "| a |\n|-|\n| WORD |", "# WORD", "> WORD", "WORD"],
)
def test_what_is_inserted_stands_at_its_mark(renderer: Renderer, text: str) -> None:
    assert renderer.marked(text) == renderer.is_safe(text)["html"].replace("WORD", f"WORD{CHIP}")


@pytest.mark.parametrize(
    "text",
    [
        "`WORD`", "```\nWORD\n```", "```WORD\nx\n```", "    WORD", r"\(WORD\)", "$$WORD$$", "\\[\nWORD x\n\\]",
        "a `b WORD c` d", "- x\n  ```\n  WORD\n  ```", "~~~ WORD\n~~~",
    ],
)  # fmt: skip
def test_nothing_is_inserted_into_code_attributes_or_formulas(renderer: Renderer, text: str) -> None:
    assert renderer.marked(text) == renderer.is_safe(text)["html"], "as if nothing had been marked"


def test_a_mark_without_a_piece_and_a_number_that_is_none_are_nothing(renderer: Renderer) -> None:
    for number in ("7", "99999999999999999999"):
        assert renderer.is_safe(f"a{PLACE}{number}{PLACE}b")["text"] == "ab"
    assert re.search("a.*constructor.*b", renderer.is_safe(f"a{PLACE}constructor{PLACE}b")["text"])
