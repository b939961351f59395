"""What books and their parts cost in tokens, and what could be chosen of them for a library to fit."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.context_documents import LEFT_OUT, Chapters, Library, Pages, Span, Whole, label
from app.context.offers import divided, from_the_start, offers, with_only
from app.context.token_costs import Costs, Meter
from app.documents.document import Document
from tests.app.context.test_context_documents import documents
from tests.app.fakes import document_of


def count(text: str) -> int:
    """Words, standing in for tokens."""
    return len(text.split())


def ten_pages() -> Document:
    """Ten pages of ten words; chapters of 5, 30, 45 and 15 words begin in and between pages, after a preface of 5."""
    return document_of(*["word " * 10] * 10, chapter_starts=[25, 50, 200, 425])


# -------------------- costs


def test_parts_cost_what_their_words_cost_and_each_stretch_is_counted_once() -> None:
    counted: list[str] = []
    library = Library().add(ten_pages()).add(document_of("other " * 20, title="b"))
    meter = Meter(lambda text: counted.append(text) or count(text))
    book = library.books[0]
    meter.warm(library)
    assert "".join(counted).startswith(LEFT_OUT + book.document.text)
    before = len(counted)
    assert [meter.page(book, n) for n in (1, 5, 10)] == [10, 10, 10]
    assert [meter.chapter(book, chapter) for chapter in book.document.chapters] == [5, 30, 45, 15]
    assert meter.book(replace(book, choice=Chapters(((1,), (2,))))) == 35
    for one in (library, library.move(0, 1), library.choose(0, Chapters(((1,), (3,))))):
        assert meter.library(one) == count(one.text), "titles, too"
    assert len(counted) == before, "a warm meter counts nothing more"


def test_token_offsets_give_the_same_costs_without_counting_again() -> None:
    document = ten_pages()
    starts = [match.start() for match in re.finditer(r"\S+", document.text)]
    exact, counted = Costs.of_tokens(document, starts), Costs.counted(document, count)
    for part in (*document.pages, *document.chapters):
        span = Span(part.char_start, part.char_end)
        assert exact.of(span) == counted.of(span)

    def fail(text: str) -> int:
        raise AssertionError(text)

    library, meter = Library().add(document), Meter(fail)
    meter.know(library.books[0], exact)
    assert meter.library(library) == 100
    meter.forget(Library())
    with pytest.raises(AssertionError, match="word"):
        meter.library(library)


# -------------------- offers


def test_what_fits_is_offered_first_and_every_chapter_is_there() -> None:
    (book,) = Library().add(ten_pages()).books
    found = [(label(book.document, choice), tokens) for choice, tokens in offers(book, Meter(count), 46).items()]
    assert found[:2] == [("pages 1–4", 40), ("chapters 1–2", 35)]
    assert found[2:] == [("chapter 3: C3", 45), ("chapter 4: C4", 15), ("chapter 1: C1", 5), ("chapter 2: C2", 30)]
    names = [label(book.document, choice) for choice in offers(book, Meter(count), 29)]
    assert names == ["pages 1–2", "chapter 1: C1", "chapter 4: C4"], "nothing is offered that does not fit"


@given(documents(), st.integers(0, 12))
def test_no_offer_claims_to_fit_that_does_not(document: Document, budget: int) -> None:
    library, meter = Library().add(document), Meter(len)
    for choice, tokens in offers(library.books[0], meter, budget).items():
        assert tokens == len(library.choose(0, choice).text) <= budget


def test_the_list_begins_with_the_most_from_the_start() -> None:
    library = Library().add(ten_pages()).add(document_of("other " * 20, "words " * 30, title="b"))
    found = [from_the_start(library, Meter(count), budget) for budget in (0, 46, 112, 160)]
    assert found == [(None, None), (Chapters(((1,), (2,))), None), (Whole(), None), (Whole(), Whole())]
    assert from_the_start(library, Meter(count), 130)[1] == Pages(1, 1)


def test_a_chapter_that_is_too_long_alone_is_offered_by_its_sub_chapters() -> None:
    book = ten_pages()
    third = book.chapters[2]
    cut = third.char_start + len("word " * 4)
    halves = ((third.char_start, cut), (cut, third.char_end))
    parts = tuple(replace(third, title="P", char_start=a, char_end=b) for a, b in halves)
    chapters = (*book.chapters[:2], replace(third, sections=parts), book.chapters[3])
    library, meter = Library().add(replace(book, chapters=chapters)), Meter(count)
    assert divided(library.books[0], meter, 46) == ((1,), (2,), (3,), (4,)), "it fits"
    assert divided(library.books[0], meter, 40) == ((1,), (2,), (3, 1), (3, 2), (4,))
    assert from_the_start(library, meter, 40) == (Chapters(((1,), (2,), (3, 1))),)
    assert from_the_start(library, meter, 38) == (Chapters(((1,), (2,))),)


@given(st.lists(documents(), max_size=3), st.integers(0, 40))
def test_what_is_ticked_at_first_fits(found: list[Document], budget: int) -> None:
    library, meter = Library.of(found), Meter(len)
    keyed = Library(tuple(replace(book, digest=bytes([n] * 8)) for n, book in enumerate(library.books)))
    ticked = from_the_start(keyed, meter, budget)
    choices = {book.key: one for book, one in zip(keyed.books, ticked, strict=True) if one is not None}
    assert len(with_only(keyed, choices).text) <= budget
