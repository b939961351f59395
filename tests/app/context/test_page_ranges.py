"""Parts of a document by the words that people type, and by what a button stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.context_documents import Chapters, Choice, Pages, Whole
from app.context.page_ranges import understood, written
from app.documents.document import Document, make_pages
from core.errors import InvalidSetting
from tests.app.context.test_context_documents import a_document, choices, documents

ROMAN = Document(
    name="a.pdf", title="a", format="pdf", text="abcdefgh", has_own_pages=True,
    pages=make_pages(range(8), 8, ["i", "ii", "iii", "1", "2", "3", "A-1", "A-2"]),
)  # fmt: skip
PLAIN = a_document("b", list("abcdefghij"), [0, 2, 5, 8])


@pytest.mark.parametrize(
    ("typed", "choice"),
    [
        ("", Whole()),
        (" ALL ", Whole()),
        ("2-5", Pages(2, 5)),
        ("pages 2 – 5", Pages(2, 5)),
        ("p. 10", Pages(10, 10)),
        ("pp.3-4", Pages(3, 4)),
        ("3 to 4", Pages(3, 4)),
        ("#2-#3", Pages(2, 3)),
        ("chapter 2", Chapters((2,))),
        ("Chapters 1, 3-4", Chapters((1, 3, 4))),
        ("c1,2", Chapters((1, 2))),
        ("ch. 4 and 1", Chapters((1, 4))),
    ],
)
def test_what_people_type_is_understood(typed: str, choice: Choice) -> None:
    assert understood(PLAIN, typed) == choice


@pytest.mark.parametrize(
    ("typed", "choice"),
    [("ii-1", Pages(2, 4)), ("1-3", Pages(4, 6)), ("A-1", Pages(7, 7)), ("#1-#3", Pages(1, 3)), ("8", Pages(8, 8))],
)
def test_pages_are_named_by_the_document_s_own_labels(typed: str, choice: Choice) -> None:
    assert understood(ROMAN, typed) == choice


@pytest.mark.parametrize("typed", ["9-2", "0", "11", "2-", "chapter 5", "c0", "²", "<b>", "1" * 30, "a-b-c"])
def test_what_is_no_part_is_said_with_what_there_is(typed: str) -> None:
    with pytest.raises(
        InvalidSetting, match=r"has no part .* Name pages from 1 to 10, such as 1-10, or chapters from 1"
    ):
        understood(PLAIN, typed)


@given(st.data(), documents())
def test_what_a_button_stands_for_comes_back(data: st.DataObject, document: Document) -> None:
    choice = data.draw(choices(document))
    assert understood(document, written(choice)) == choice
