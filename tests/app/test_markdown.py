"""Text as Markdown: code, mathematics and marks work, HTML and images do not."""

import time

import pytest

from app.markdown import literal


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
        (r"\(a[x](y)\)", r"\(a[x&#93;(y)\)"),
        ("*emphasis* stays, > quotes too", "*emphasis* stays, > quotes too"),
        (r"\(a < b\) and $$x & y$$", r"\(a &lt; b\) and $$x &amp; y$$"),
        (r"\[ `a` < ![k] \]", r"\[ `a` &lt; !&#91;k] \]"),
    ],
)
def test_markdown_keeps_its_marks_and_loses_its_html(text: str, shown: str) -> None:
    assert literal(text) == shown


def test_code_that_is_still_being_written_is_code() -> None:
    whole = "So:\n\n```python\nif a < b:\n    return '&'\n```\nDone <b>."
    for length in range(len(whole)):
        shown = literal(whole[:length])
        assert ("&lt;" not in shown and "&amp;" not in shown) or length >= whole.index("<b>"), shown


@pytest.mark.parametrize(
    "text",
    [
        "x `a <b>\n\nc` y",  # a span does not reach over paragraphs
        "- a `x\n- <b> y`",  # nor over items of a list
        "`x\ny` <b> `z`",  # spans are found from the first line on
        "\\`a` <b> `c`",  # an escaped backtick opens nothing
        "| `a | <b> ` |",  # cells come before spans
        "- a\n  ```\n<b>\n  ```",  # the block ends with the item it stands in
        "x ``` <b>\n```",  # a fence begins a line
        "```a`b\n<b>\n```",  # no backtick in what follows a fence
        "\\[\n```\n\\] <b>\n```",  # mathematics is taken out first, and the fence with it
        "a\u2028```\n<b>\n```",  # not every Unicode line break is one of Markdown's
        "```\nx\r```\r<b>",  # and some others are
        "\0000\0 <b> `\0`",
    ],
)
def test_nothing_passes_for_code_that_markdown_would_not_take_for_it(text: str) -> None:
    assert "<b>" not in literal(text)


def test_long_hostile_text_takes_no_time() -> None:
    started = time.process_time()
    for text in ("`" * 20_000, "` `` " * 4_000, "$$" * 5_000, "\\[" * 5_000, "```\n" * 5_000):
        literal(text)
    assert time.process_time() - started < 5
