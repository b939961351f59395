from hypothesis import given
from hypothesis import strategies as st

from app.documents.document import Document, make_pages
from tests.app.fakes import document_of


def a_document(lengths: list[int]) -> Document:
    return document_of(*(chr(ord("a") + index % 26) * length for index, length in enumerate(lengths)))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_every_character_lies_on_exactly_one_page(lengths: list[int]) -> None:
    document = a_document(lengths)
    assert "".join(map(document.page_text, document.pages)) == document.text
    for char in range(len(document.text)):
        page = document.page_at(char)
        assert page.char_start <= char < page.char_end


def test_labels_that_name_two_pages_alike_are_replaced_by_positions() -> None:
    """A manual whose parts count from 1 again had chapters on "p. clxxviii–7", and "page 3" in six places."""
    assert [page.label for page in make_pages([0, 4, 6], 9, ["1", "2", "1"])] == ["1", "2", "3"]
