"""Parts of a document by the words that people type, and by what a button stands for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.context_documents import Chapters, Choice, Pages, Whole, label
from app.context.page_ranges import understood, written
from app.documents.document import BEGINNING, Chapter, Document
from core.errors import InvalidSetting
from tests.app.context.test_context_documents import choices, documents
from tests.app.fakes import document_of

ROMAN = document_of(*"abcdefgh", labels=["i", "ii", "iii", "1", "2", "3", "A-1", "A-2"])
PLAIN = document_of(*"abcdefghij", chapter_starts=[0, 2, 5, 8])
PARTS = [
    Chapter(title=title, first_page=3, char_start=at, char_end=at + 1)
    for at, title in enumerate((BEGINNING, "2.1 Sails", "Section 2: Ropes"), 2)
]
DIVIDED = replace(
    PLAIN, chapters=(PLAIN.chapters[0], replace(PLAIN.chapters[1], sections=tuple(PARTS)), *PLAIN.chapters[2:])
)


@pytest.mark.parametrize(
    ("document", "typed", "choice"),
    [
        *((PLAIN, *case) for case in (
            ("", Whole()), (" ALL ", Whole()), ("2-5", Pages(2, 5)), ("pages 2 – 5", Pages(2, 5)),
            ("p. 10", Pages(10, 10)), ("pp.3-4", Pages(3, 4)), ("3 to 4", Pages(3, 4)), ("#2-#3", Pages(2, 3)),
            ("chapter 2", Chapters(((2,),))), ("Chapters 1, 3-4", Chapters(((1,), (3,), (4,)))),
            ("c1,2", Chapters(((1,), (2,)))), ("ch. 4 and 1", Chapters(((1,), (4,)))))),
        *((ROMAN, *case) for case in (
            ("ii-1", Pages(2, 4)), ("1-3", Pages(4, 6)), ("A-1", Pages(7, 7)), ("#1-#3", Pages(1, 3)),
            ("8", Pages(8, 8)))),
        *((DIVIDED, *case) for case in (
            ("chapter 2.1", Chapters(((2, 1),))), ("c1,2.0-2.2", Chapters(((1,), (2, 0), (2, 1), (2, 2)))),
            ("chapters 2.1 to 2.2, 2.2", Chapters(((2, 1), (2, 2)))), ("chapters 2, 2.1", Chapters(((2,),))))),
    ],
)  # fmt: skip
def test_what_people_type_is_understood_by_the_document_s_own_labels(
    document: Document, typed: str, choice: Choice
) -> None:
    assert understood(document, typed) == choice


NO_PARTS = ("9-2", "0", "11", "2-", "chapter 5", "c0", "²", "<b>", "1" * 30, "a-b-c")
NO_SUB_CHAPTERS = ("c2.3", "c1.1", "c2.1-3", "c2.2-2.1", "c2..1", "c2.1.1", "c2.-1", "c2.1.1.1.1.1.1")


@pytest.mark.parametrize("typed", (*NO_PARTS, *NO_SUB_CHAPTERS))
def test_what_is_no_part_is_said_with_what_there_is(typed: str) -> None:
    told = r"has no part .* Name pages from 1 to 10, such as 1-10, or chapters from 1"
    with pytest.raises(InvalidSetting, match=told):
        understood(DIVIDED if typed in NO_SUB_CHAPTERS else PLAIN, typed)


def test_a_part_is_called_by_its_own_number_where_its_title_has_one() -> None:
    named = [label(DIVIDED, understood(DIVIDED, typed)) for typed in ("c2.0", "c2.1", "c2.0-2.1", "c2.2", "c3")]
    assert named == [
        "chapter 2: C2 (beginning)",
        "chapter 2.1 Sails",
        "chapters 2 (beginning)–2.1",
        "Section 2: Ropes",
        "chapter 3: C3",
    ]


@given(st.data(), documents())
def test_what_a_button_stands_for_comes_back(data: st.DataObject, document: Document) -> None:
    choice = data.draw(choices(document))
    assert understood(document, written(choice)) == choice
