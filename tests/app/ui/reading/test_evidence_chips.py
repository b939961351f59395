"""Chips behind what an answer has of the book, lines under what it has not; nothing of either becomes HTML by them."""

import re
from dataclasses import replace

from app.context.open_book import Book
from app.conversations.exchange import Exchange
from app.conversations.export import as_json, as_markdown
from app.conversations.tree import BookRef, Dialogue
from app.documents.document import Document
from app.markdown import PLACE
from app.runtime.sessions import Session
from app.ui.library.page_viewer import Wanted
from app.ui.reading.chat_view import exchanges
from app.ui.reading.where import opened_page
from tests.app.fakes import document_of, finished, library_of

PAGES = ("It began at noon. ", "The carved teapot was lost\nin the spring tide. ", "The end of it.")
FOUND, INVENTED = '"the carved teapot was lost"', '"nobody ever knew why it was"'
OWN = '<span class="own" title="These words do not stand in the book: the model’s own wording">'


def a_session(*answers: str, documents: tuple[Document, ...] = (), digest: str = "d") -> Session:
    """A conversation with these answers about these documents, or about PAGES."""
    library = library_of(*(documents or (document_of(*PAGES),)))
    book = Book(library.books[0].document, 99, 99, library=library)
    dialogue = Dialogue.begin(BookRef.of(book, "d"), "Q?")
    for answer in answers:
        dialogue, node = dialogue.ask(dialogue.tip, "Q?")
        done = replace(finished("One."), text=answer)
        dialogue = dialogue.answer(node.id, Exchange("Q?", done, digest=digest))
    return Session("x", book=book, digest="d", dialogue=dialogue)


def key_of(session: Session) -> str:
    assert session.book is not None
    return session.book.library.books[0].key


def answers(session: Session) -> list[str]:
    """Their text, with what the page inserts at its marks."""
    return [
        re.sub(f"{PLACE}(\\d+){PLACE}", lambda mark, one=one: one["inserted"][int(mark[1])], one["text"])
        for one in exchanges(session).values()
    ]


def feet(session: Session) -> list[str]:
    """What stands below them."""
    return [one["foot"] for one in exchanges(session).values()]


def chip(session: Session, page: str, mark: str) -> str:
    """A pattern of the chip that opens a page."""
    act = f'data-act="page:{key_of(session)}:{page}:{mark}"'
    return f'<button type="button" class="chip quote found" {act} title="[^"<]*">page {page}</button>'


def test_quotations_have_a_chip_each_sentences_their_page_and_the_rest_a_faint_line() -> None:
    sentence = "It is this. The carved teapot was lost in the spring tide. I made all of this up."
    session = a_session(f"So {FOUND}, and {INVENTED}.", f"{FOUND} and again {FOUND}", sentence)
    told, twice, stands = answers(session)
    page = chip(session, "2", "18-44")
    amber = '<span class="chip quote not-found" title="[^"<]*">not in the book</span>'
    lost, was, tide = (f'<span class="stays">{word}' for word in ('lost"', 'was"', "tide."))  # no line ends before it
    assert re.fullmatch(f'So "the carved teapot was {lost}{page}</span>, and "nobody.* it {was}{amber}</span>.', told)
    assert twice.count(f"page:{key_of(session)}:2:18-44") == 2
    assert re.fullmatch(
        f'It is this. <span class="stands">The carved teapot was lost in the spring {tide}'
        f"{chip(session, '2', '18-63')}</span></span> {OWN}I made all of this up.</span>",
        stands,
    )
    html = opened_page(session, Wanted(key_of(session), 2, (18, 63)))
    assert '<mark class="quoted">The carved teapot was lost\nin the spring tide</mark>' in html and "Page 2" in html
    assert session.dialogue is not None and session.exchanges[0].finished.text == f"So {FOUND}, and {INVENTED}."
    assert "chip" not in as_markdown(session.dialogue) + as_json(session.dialogue), "what is kept has no chips"


def test_the_line_is_explained_a_refusal_has_none_and_of_a_mostly_own_answer_it_is_said_once() -> None:
    invented, quoted, refused = "Nobody ever sold it for a crown.", f"So {FOUND}.", "The book does not say."
    found = "The carved teapot was lost in the spring tide."
    own = [f"Nobody ever sold the {thing} for a crown." for thing in ("pot", "cup", "jug", "pan")]
    most, few, half = (" ".join([*many * [found], *some]) for many, some in ((1, own), (1, own[:3]), (4, own)))
    session = a_session(f"{FOUND}. {invented}", quoted, refused, most, few, half)
    assert [told.count('class="own"') for told in answers(session)] == [1, 0, 0, 0, 3, 4]
    shown = feet(session)
    assert ["<u>Underlined</u>: not in the book word for word" in foot for foot in shown] == [1, 0, 0, 0, 1, 1]
    assert ["Most of this answer is not in the book word for word" in foot for foot in shown] == [0, 0, 0, 1, 0, 0]
    assert "page 2" in answers(session)[3]
    two = a_session(invented, documents=(document_of(*PAGES), document_of("Other words. ", title="B")))
    assert "not in the books word for word" in feet(two)[0]


def test_a_changed_shelf_says_where_words_stand_now_and_not_that_they_never_stood_anywhere() -> None:
    text = f"So {FOUND}, and {INVENTED}. The carved teapot was lost in the spring. I made all of this up."
    session = a_session(text, digest="another")
    (told,) = answers(session)
    assert told.count("page 2") >= 2 and "not in the book" not in told and 'class="own"' not in told
    assert session.dialogue is not None
    session.dialogue = replace(session.dialogue, book=replace(session.dialogue.book, digest="another"))
    assert not session.fits and answers(session) == [text], "that book is not open"


def test_titles_and_signs_of_marks_cannot_leave_a_chip_and_tags_stay_in_pairs() -> None:
    evil = '"><img src=x onerror=alert(1)> **b** [x](javascript:y) $$x$$\n\n`'
    documents = document_of(*PAGES, title=evil), document_of("Quite another text.", title="Two")
    (told,) = answers(a_session(f"{FOUND} \ufdd00\ufdd0 {INVENTED}\0", documents=documents))
    assert re.fullmatch(
        r'"the carved teapot was <span class="stays">lost"<button type="button" class="chip quote found" '
        r'data-act="page:[0-9a-f]+:2:\d+-\d+" title="[^"<>]*">'
        r'page 2 of [^<>]*</button></span> \ufffd0\ufffd "nobody[^<"]*<span class="stays">was"'
        r"<span [^<>]*>not in the books</span></span>\0",
        told,
    )
    twice = document_of("The carved teapot was lost. ", "Then the carved teapot was lost. ")
    answer = "- **The carved teapot was lost.** It `was` so for ever. Nobody said that\nat all in here.\n\nSo be it."
    (told,) = answers(a_session(answer, documents=(twice,)))
    assert "and elsewhere: show it" in told and told.count("<span") == told.count("</span>") == 2
