"""What books and their parts cost in tokens, each stretch counted once."""

import re

import pytest

from app.context.context_documents import LEFT_OUT, Chapters, Library, Span
from app.context.token_costs import Costs, Meter
from app.documents.document import Document
from tests.app.fakes import document_of


def count(text: str) -> int:
    """Words, standing in for tokens."""
    return len(text.split())


def ten_pages() -> Document:
    """Ten pages of ten words; chapters of 5, 30, 45 and 15 words begin in and between pages, after a preface of 5."""
    return document_of(*["word " * 10] * 10, chapter_starts=[25, 50, 200, 425])


def test_parts_cost_what_their_words_cost_and_each_stretch_is_counted_once() -> None:
    counted: list[str] = []

    def recording(text: str) -> int:
        counted.append(text)
        return count(text)

    library, meter = Library().add(ten_pages()), Meter(recording)
    book = library.books[0]
    for _ in range(3):
        assert meter.library(library) == 100
        assert [meter.page(book, n) for n in (1, 5, 10)] == [10, 10, 10]
        assert [meter.chapter(book, chapter) for chapter in book.document.chapters] == [5, 30, 45, 15]
        assert meter.library(library.choose(0, Chapters(((1,), (2,))))) == 35
        assert meter.library(library.choose(0, Chapters(((1,), (4,))))) == 20 + count(LEFT_OUT)
    assert "".join(counted).replace(LEFT_OUT, "") == book.document.text


def test_several_books_cost_their_titles_too() -> None:
    library = Library().add(document_of("a b", title="one")).add(document_of("c", title="two"))
    assert Meter(count).library(library) == count(library.text) == 3 + 3 + 2


def test_a_warm_meter_counts_nothing_more() -> None:
    library = Library().add(ten_pages()).add(document_of("other " * 20, title="b"))
    counted: list[str] = []
    meter = Meter(lambda text: counted.append(text) or count(text))
    meter.warm(library)
    before = len(counted)
    for one in (library, library.move(0, 1), library.choose(0, Chapters(((1,), (3,))))):
        assert meter.library(one) == count(one.text)
    assert len(counted) == before


def test_token_offsets_give_the_same_costs_without_counting_again() -> None:
    document = ten_pages()
    starts = [match.start() for match in re.finditer(r"\S+", document.text)]
    exact, counted = Costs.of_tokens(document, starts), Costs.counted(document, count)
    parts = [Span(page.char_start, page.char_end) for page in document.pages]
    parts += [Span(chapter.char_start, chapter.char_end) for chapter in document.chapters]
    assert [exact.of(part) for part in parts] == [counted.of(part) for part in parts]

    def fail(text: str) -> int:
        raise AssertionError(text)

    library, meter = Library().add(document), Meter(fail)
    meter.know(library.books[0], exact)
    assert meter.library(library) == 100
    meter.forget(Library())
    with pytest.raises(AssertionError, match="word"):
        meter.library(library)
