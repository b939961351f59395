"""Text as Markdown in a file: code stays as it is, HTML, images and named links do not; and marks in texts."""

import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.markdown import PLACE, standalone, with_places


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("![x](http://elsewhere/pixel.png)", "!&#91;x&#93;(http://elsewhere/pixel.png)"),
        ("`if a < b` <b>", "`if a < b` &lt;b>"),
        ("``a ` <b>`` <i>", "``a ` <b>`` &lt;i>"),
        ("```\n<b>\n```\n<i>", "```\n<b>\n```\n&lt;i>"),
        ("~~~\n<b>\n```\n~~~\n<i>", "~~~\n<b>\n```\n~~~\n&lt;i>"),
        ("1. so:\n\n   ```cpp\n   #include <vector>\n   ```", "1. so:\n\n   ```cpp\n   #include <vector>\n   ```"),
        ("[page 12](http://a/leak?q=x)", "[page 12&#93;(http://a/leak?q=x)"),
        ("[page 12][1]\n\n[1]: http://a/", "[page 12][1]\n\n[1&#93;: http://a/"),
        ("[`page 12`](http://a/)", "[`page 12`&#93;(http://a/)"),
        ("`list[0](x)` and list[0]", "`list[0](x)` and list[0]"),
        ("*emphasis* stays, > quotes too", "*emphasis* stays, > quotes too"),
        ("```\n<b> is left open", "```\n<b> is left open\n```"),
        ("a\r\n```\r<b>\r```", "a\n```\n<b>\n```"),
        ("", ""),
    ],
)
def test_markdown_keeps_its_marks_and_loses_its_html(text: str, shown: str) -> None:
    assert standalone(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "x `a <b>\n\nc` y",  # a span does not reach over paragraphs
        "- a `x\n- <b> y`",  # nor over items of a list
        "`x\ny` <b> `z`",  # spans are found from the first line on
        "\\`a <b> `",  # an escaped backtick opens nothing
        "| `a | <b> ` |",  # cells come before spans
        "- a\n  ```\n<b>\n  ```",  # the block ends with the item it stands in
        "x ``` <b>\n```",  # a fence begins a line
        "```a`b\n<b>\n```",  # no backtick in what follows a fence
        "a\u2028```\n<b>\n```",  # not every Unicode line break is one of Markdown's
        "```\nx\r```\r<b>",  # and some others are
    ],
)
def test_nothing_passes_for_code_that_markdown_would_not_take_for_it(text: str) -> None:
    assert "<b>" not in standalone(text)


@given(st.text(f"ab1{PLACE}", max_size=20), st.sets(st.integers(0, 20)))
def test_marks_stand_at_their_places_and_the_text_has_none_of_its_own(text: str, places: set[int]) -> None:
    wanted = sorted(place for place in places if place <= len(text))
    pieces = re.split(f"{PLACE}([0-9]+){PLACE}", with_places(text, wanted))
    assert pieces[1::2] == [str(number) for number in range(len(wanted))]
    assert "".join(pieces[::2]) == text.replace(PLACE, "\ufffd")
    assert list(accumulate(map(len, pieces[::2])))[:-1] == wanted
