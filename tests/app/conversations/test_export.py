"""Exported Markdown as another program reads it: nothing of a text is HTML, an image or a link in disguise."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.conversations.export import as_markdown
from tests.app.conversations.test_tree import BOOK, a_dialogue, said

markdown_it = pytest.importorskip("markdown_it", reason="it comes with the packages of requirements.lock")
ATOMS = (
    "```\n", "~~~\n", "```a\n", "\\[\n", "\n\\]", "$$", "`", "``", "![x](http://a/p)", "<img src=http://a/p>", "[b][1]",
    "[page 12](http://a/q)", "\n[1]: http://a/\n", "\n\n", "\n", "    ", "- ", "> ", "1. ", "\u2028```\n", "\r", "\\",
    "| ", "a ", "]", "(", "[", "\ufdd00\ufdd0", "\0000\0",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=12).map("".join)


def seen(text: str) -> set[str]:
    """What a reader of Markdown finds, by its own names."""

    def names(tokens: list[markdown_it.token.Token]) -> Iterator[str]:
        for token in tokens:
            yield token.type
            yield from names(token.children or [])

    return set(names(markdown_it.MarkdownIt("commonmark").parse(text)))


FOREIGN = {"html_inline", "html_block", "image", "link_open"}


def test_this_reader_finds_them() -> None:
    assert seen("<b>\n\na <i> ![x](http://a/p) [b](http://a/)") >= FOREIGN


@given(TEXTS, st.tuples(TEXTS, TEXTS))
@example("Why?", ("```", "```\n![x](http://a/p)"))  # a block that stays open turns what follows inside out
@example("Why?", ("\\[\n```\n\\]\n```\n![x](http://a/p)", ""))  # no mathematics where it is no mathematics
@example("a\n```\nb\u2028```\n![x](http://a/p)", ("", ""))
def test_an_exported_conversation_loads_nothing(question: str, answers: tuple[str, str]) -> None:
    dialogue = replace(a_dialogue(), book=replace(BOOK, names=(question,)))
    for answer in answers:
        dialogue, _ = said(dialogue, question, answer)
    text = as_markdown(dialogue)
    assert not seen(text) & FOREIGN, text
    assert text.count("## Answer") == 2
