"""Claims about the note on texts that the bundled model was not made for."""

from pathlib import Path

import pytest

from app.context.domain_check import ON_COMMAND_LINE, reach_note
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer

LIMITS = find("harbour").limits
ENGLISH = (
    "The captain looked at the sky for a long while, and then told us that we would not sail before the next morning. "
    "Nobody complained, because all of us had seen the same dark clouds over the hills behind the town."
)
OTHERS = {
    "code": "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\nreturn std::sqrt(sum);\n" * 4,
    "Cyrillic": "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.",  # noqa: RUF001
}


@pytest.fixture(scope="module")
def text() -> ChatText:
    return ChatText(load_tokenizer(find("harbour").target), frozenset())


def note(text: ChatText, document: str, limits: str = LIMITS) -> str:
    return reach_note(limits, document, len(text.encode(document)))


def test_books_of_its_own_kind_get_no_note(text: ChatText) -> None:
    book = Path("assets/books/harbour-32k.txt").read_text(encoding="utf-8")
    assert note(text, book) == ""


def test_other_english_gets_a_milder_note_than_code_and_other_scripts(text: ChatText) -> None:
    mild = note(text, ENGLISH)
    assert mild.startswith(LIMITS) and "other scripts" not in mild
    for kind, document in OTHERS.items():
        assert "other scripts" in note(text, document), kind


def test_a_note_names_the_way_out_where_nothing_beside_it_does(text: ChatText) -> None:
    for document in (ENGLISH, OTHERS["code"]):
        shown = [reach_note(LIMITS, document, len(text.encode(document)), way_out) for way_out in ("", ON_COMMAND_LINE)]
        assert ["--model" in line for line in shown] == [False, True]
        assert all(line.endswith(".") and ".." not in line for line in shown)


def test_a_full_model_gets_no_note(text: ChatText) -> None:
    assert note(text, OTHERS["code"], limits="") == ""
    assert note(text, "") == "", "nor does an empty text"
