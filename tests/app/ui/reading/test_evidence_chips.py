"""Chips behind the quotations in answers: page, not in the book; nothing of a book or a model becomes HTML by them."""

import re
from dataclasses import replace

from app.context.context_documents import Library
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
from tests.app.fakes import document_of, finished

PAGES = ("It began at noon. ", "The carved teapot was lost\nin the spring tide. ", "The end of it.")
FOUND, INVENTED = '"the carved teapot was lost"', '"nobody ever knew why it was"'


def a_document(title: str = "A", *pages: str) -> Document:
    return document_of(*(pages or PAGES), title=title)


def a_session(*answers: str, documents: tuple[Document, ...] = (), digest: str = "d") -> Session:
    """A conversation with these answers about these documents, or about PAGES."""
    library = Library()
    for document in documents or (a_document(),):
        library = library.add(document)
    book = Book(library.books[0].document, 99, 99, 999, library=library)
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


def test_every_answer_has_a_chip_behind_each_of_its_quotations() -> None:
    session = a_session(f"So {FOUND}, and {INVENTED}.", f"{FOUND} and again {FOUND}")
    told, twice = answers(session)
    key = key_of(session)
    act = f'data-act="page:{key}:2:18-44"'
    page = f'<button type="button" class="chip quote found" {act} title="[^"<]*">page 2</button>'
    amber = '<span class="chip quote not-found" title="[^"<]*">not in the book</span>'
    lost, was = (f'<span class="stays">{word}"' for word in ("lost", "was"))  # no line ends before a chip
    assert re.fullmatch(f'So "the carved teapot was {lost}{page}</span>, and "nobody.* it {was}{amber}</span>.', told)
    assert twice.count(act) == 2
    html = opened_page(session, Wanted(key, 2, (18, 44)))
    assert '<mark class="quoted">The carved teapot was lost</mark>' in html and "Page 2" in html


def test_an_underlined_sentence_is_explained_and_a_refusal_is_not_underlined() -> None:
    invented, quoted, refused = "Nobody ever sold it for a crown.", f"So {FOUND}.", "The book does not say."
    session = a_session(f"{FOUND}. {invented}", quoted, refused)
    key = r'class="own-key"[^>]*><u>Underlined</u>: not in the book word for word'
    keys = [re.findall(key, foot) for foot in feet(session)]
    assert [len(key) for key in keys] == [1, 0, 0]
    assert ['class="own"' in told for told in answers(session)] == [True, False, False]
    two = a_session(invented, documents=(a_document("A"), a_document("B", "Other words. ")))
    assert "not in the books word for word" in feet(two)[0]


def test_of_an_answer_that_is_mostly_the_models_own_wording_this_is_said_once() -> None:
    found = "The carved teapot was lost in the spring tide."
    own = [f"Nobody ever sold the {thing} for a crown." for thing in ("pot", "cup", "jug", "pan")]
    session = a_session(" ".join([found, *own]), " ".join([found, *own[:3]]), " ".join([*4 * [found], *own]))
    most, few, book = answers(session)
    assert 'class="own"' not in most and "page 2" in most
    assert few.count('class="own"') == 3 and book.count('class="own"') == 4
    told = ["Most of this answer is not in the book word for word" in foot for foot in feet(session)]
    assert told == [True, False, False]
    assert ["<u>Underlined</u>" in foot for foot in feet(session)] == [False, True, True]


def test_what_is_kept_copied_and_exported_has_no_chips() -> None:
    session = a_session(f"So {FOUND}, and {INVENTED}.")
    assert "chip" in answers(session)[0] and session.dialogue is not None
    assert session.exchanges[0].finished.text == f"So {FOUND}, and {INVENTED}."
    assert "chip" not in as_markdown(session.dialogue) and "chip" not in as_json(session.dialogue)


def test_a_changed_shelf_says_where_words_stand_now_and_not_that_they_never_stood_anywhere() -> None:
    session = a_session(f"So {FOUND}, and {INVENTED}.", digest="another")
    (told,) = answers(session)
    assert "page 2" in told and "not in the book" not in told
    assert session.dialogue is not None
    session.dialogue = replace(session.dialogue, book=replace(session.dialogue.book, digest="another"))
    assert not session.fits and answers(session) == [f"So {FOUND}, and {INVENTED}."], "that book is not open"


def test_titles_and_signs_of_marks_cannot_leave_a_chip() -> None:
    evil = '"><img src=x onerror=alert(1)> **b** [x](javascript:y) $$x$$\n\n`'
    documents = (a_document(evil), a_document("Two", "Quite another text."))
    (told,) = answers(a_session(f"{FOUND} \ufdd00\ufdd0 {INVENTED}\0", documents=documents))
    assert re.fullmatch(
        r'"the carved teapot was <span class="stays">lost"<button type="button" class="chip quote found" '
        r'data-act="page:[0-9a-f]+:2:\d+-\d+" title="[^"<>]*">'
        r'page 2 of [^<>]*</button></span> \ufffd0\ufffd "nobody[^<"]*<span class="stays">was"'
        r"<span [^<>]*>not in the books</span></span>\0",
        told,
    )


def test_sentences_of_the_book_have_their_page_and_the_rest_a_faint_line_with_what_it_means() -> None:
    answer = "It is this. The carved teapot was lost in the spring tide. I made all of this up."
    session = a_session(answer)
    (told,) = answers(session)
    key = key_of(session)
    page = (
        f'<button type="button" class="chip quote found" data-act="page:{key}:2:18-63" title="[^"<]*">page 2</button>'
    )
    own = '<span class="own" title="These words do not stand in the book: the model’s own wording">'
    stands = 'The carved teapot was lost in the spring <span class="stays">tide.'
    assert re.fullmatch(
        f'It is this. <span class="stands">{stands}{page}</span></span> {own}I made all of this up.</span>', told
    )
    html = opened_page(session, Wanted(key, 2, (18, 63)))
    assert '<mark class="quoted">The carved teapot was lost\nin the spring tide</mark>' in html and "Page 2" in html


def test_nothing_is_called_the_models_own_where_another_library_was_asked() -> None:
    (told,) = answers(a_session("The carved teapot was lost in the spring. I made all of this up.", digest="another"))
    assert "page 2" in told and 'class="own"' not in told


def test_words_that_stand_twice_say_so_and_tags_stay_in_pairs() -> None:
    twice = a_document("A", "The carved teapot was lost. ", "Then the carved teapot was lost. ")
    answer = "- **The carved teapot was lost.** It `was` so for ever. Nobody said that\nat all in here.\n\nSo be it."
    (told,) = answers(a_session(answer, documents=(twice,)))
    assert "and elsewhere: show it" in told
    assert told.count("<span") == told.count("</span>") == 2
    assert '"><img' not in told
