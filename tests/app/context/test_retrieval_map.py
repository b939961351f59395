"""From chunks of the retrieval cache to pages and passages, and the strip that shows both."""

import re
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.context_documents import Library
from app.context.open_book import Book
from app.context.retrieval_map import MOST_LOADS, Loaded, Loads, Weights, chunk_pages, mean
from app.conversations.tree import ROOT, BookRef, Dialogue
from app.runtime.sessions import Session
from app.ui.library.page_viewer import Wanted
from app.ui.reading.where import opened_page, where
from tests.app.fakes import document_of, library_of

NOTHING = [0.0] * 30_000  # is usual
SIZE, FRAME = 4, 3  # tokens of a chunk, tokens before the book; a token is a character here


def a_book(*pages: str, title: str = "A") -> Book:
    return book_of(Library().add(document_of(*pages, title=title)))


def book_of(library: Library) -> Book:
    starts = array("I", range(len(library.text)))
    return Book(
        library.books[0].document,
        len(starts),
        len(starts) + FRAME,
        library=library,
        starts=starts,
        chunk_size=SIZE,
        chunk_pages=chunk_pages(library, starts, FRAME, SIZE),
    )


def loaded(*chunks: int, at: float = 0.2) -> Loaded:
    """These chunks have a weight, and the sink has."""
    weights = [0.0] * (max(chunks) + 1)
    for chunk in (0, *chunks):
        weights[chunk] = at
    return Loaded(True).seen(weights)


def a_session(book: Book, was: Loaded | None, baseline: list[float] | None = None) -> Session:
    session = Session("x", book=book, digest="d", baseline=array("d", baseline) if baseline is not None else None)
    if was is not None:
        dialogue, node = Dialogue.begin(BookRef.of(book, "d"), "Q?").ask(ROOT, "Q?")
        session.dialogue = dialogue
        session.loads.put(node.id, was)
    return session


# -------------------- weights


@given(st.lists(st.lists(st.floats(0, 1, allow_subnormal=False), max_size=4), min_size=1, max_size=5))
def test_a_running_mean_is_the_mean(rows: list[list[float]]) -> None:
    total: Any = array("d")
    for number, row in enumerate(rows):
        total = mean(total, number, row)
    for at, value in enumerate(total):
        assert value == pytest.approx(sum(row[at] for row in rows if at < len(row)) / len(rows))


def test_what_is_chosen_for_any_question_weighs_nothing() -> None:
    """Chunk 0 is the sink; chunks 1 and 4 are chosen whatever is asked; only chunk 6 is of this question."""
    book = a_book("a" * 10, "b" * 10, "c" * 10)
    was = loaded(1, 4, 6)
    corrected = Weights(book, was, [0.2, 0.2, 0, 0, 0.2, 0, 0])
    assert [number for number, value in enumerate(corrected.excess) if value] == [6]
    assert list(corrected.pages()) == [0, 0, 1]
    assert not Weights(book, was, [0.2, 0.2, 0, 0, 0.2, 0, 0.2]).tells


def test_a_head_that_looks_a_fixed_way_back_tells_nothing() -> None:
    """Regression: on the bundled pair such heads outweighed the page that holds the answer in every question.

    Twenty chunks were there for the usual questions and 23, then 25 for this one: what was usual at 8 is expected at
    8 + 3 to 8 + 5 too, and 16, of which nothing is known to be usual, is of this question.
    """
    book = a_book("a" * 120, "b" * 120)
    baseline = [0.0] * 8 + [0.1] + [0.0] * 11
    first, then = [0.0] * 23, [0.0] * 25
    first[11], then[13], then[16] = 0.12, 0.12, 0.05
    was = Loaded(True).seen(first).seen(then)
    assert [chunk for chunk, value in enumerate(Weights(book, was, baseline).excess) if value] == [16]


@given(
    st.lists(st.text("ab ", min_size=1, max_size=9), min_size=1, max_size=8), st.sets(st.integers(1, 15), min_size=1)
)
def test_marked_passages_are_the_loaded_tokens_and_no_more_than_their_words(pages: list[str], chunks: set[int]) -> None:
    book = a_book(*pages)
    real = [chunk for chunk in sorted(chunks) if chunk < len(book.chunk_pages)]
    weights = Weights(book, loaded(*(real or [0])), NOTHING)
    chosen = {char for c in real for char in range(c * SIZE - FRAME, (c + 1) * SIZE - FRAME) if char < len(book.starts)}
    marked = {c for page in book.library.pages for one in weights.passages(page) for c in range(one.start, one.end)}
    assert marked >= chosen if weights.tells else not marked
    text = book.library.text
    for char in marked - chosen:
        assert text[char].isalnum(), "only the rest of a word is added"


# -------------------- the strip


BOOK = a_book("a" * 50)
EARLY = Loaded(True)


@pytest.mark.parametrize(
    ("session", "told"),
    [
        (a_session(BOOK, None), "Ask a question"),
        (a_session(BOOK, Loaded(False)), "loads no pages"),
        (a_session(BOOK, EARLY), "show with the first words"),
        (a_session(BOOK, loaded(3), [1, 0, 0, 1, *NOTHING]), "the same pages"),
        (a_session(BOOK, replace(loaded(1, 2), all_held=True)), "so short that all of it"),
        (a_session(replace(BOOK, chunk_pages=array("I"), starts=array("I")), loaded(3)), "does not tell"),
    ],
)
def test_the_strip_says_when_there_is_nothing_to_show(session: Session, told: str) -> None:
    html = where(session)
    assert told in html and where(Session("x")) == ""
    if told in ("Ask a question", "show with the first words"):
        assert html.count("bar-page nothing") == 1 and 'class="top"></p>' in html, "room for what comes"


def test_what_was_loaded_is_kept_for_the_newest_answers() -> None:
    loads = Loads()
    for number in range(MOST_LOADS + 1):
        loads.put(str(number), loaded(number))
    assert loads.get("0") is None and loads.get("1") is not None


def test_pages_of_several_books_are_told_apart() -> None:
    library = library_of(*(document_of(title * 9, title=title) for title in ("One & all", "Two")))
    html = where(a_session(book_of(library), loaded(34), NOTHING))
    assert "Two, page 1: most loaded" in html and "One &amp; all, page 1: nothing loaded" in html and "begins" in html


# -------------------- a page


def test_an_opened_page_marks_what_was_loaded_and_turns() -> None:
    book = a_book("The first page. ", "Here is <b>the teapot</b>, lost. ", "The end.")
    at = book.library.text.index("the teapot") + FRAME
    session = a_session(book, loaded(at // SIZE, at // SIZE + 1), NOTHING)
    key = book.library.books[0].key
    html = opened_page(session, Wanted(key, 2))
    assert "<b>" not in html and re.search(r'<mark class="strong">[^<]*teapot', html)
    assert f'"page:{key}:1"' in html and f'"page:{key}:3"' in html and "1 passage of this page" in html
    assert "Nothing of this page" in opened_page(session, Wanted(key, 1))
    assert "Page 3" in opened_page(session, Wanted(key, 99))
    assert opened_page(Session("x"), Wanted(key, 1)) == ""
    assert opened_page(session, Wanted("gone", 1)) == ""
