"""What an answer has from the book, as HTML in it: pages behind sentences and quotations, a faint line under the rest.

It exists only in the chat: stored, copied and exported answers have none.
"""

import re
from collections.abc import Sequence

from app.context.evidence import Passage, is_refusal
from app.context.open_book import Book
from app.conversations.tree import Node
from app.runtime.sessions import Session
from app.ui import render
from app.ui.retrieval_map.view import page_act, page_of, page_words

OWN = '<span class="own" title="These words do not stand in the {book}: the model’s own wording">'
KEY = "<u>Underlined</u>: not in the {book} word for word, the model’s own wording"
KEY_OF_MOST = "Most of this answer is not in the {book} word for word: the model’s own wording"
KEY_TITLE = "It may be true or not: it says only that these words do not stand there"
FOUND = '<span class="stands">'
FEW_OWN = 3  # passages of a model's own wording that are underlined even where they are most of an answer
STAYS = '<span class="stays">'  # a last word and the chip behind it, which no line ends between
LAST_WORD = re.compile(r"(?<=\s)[^\W_]+[.,;:!?]?[\"'”’»]?\Z")  # without signs of Markdown


def chips(session: Session, node: Node) -> dict[int, str]:
    """HTML by the index of the character of a node's answer that it precedes.

    Empty unless the conversation is about the open book. For an answer about another library, only what is found is
    marked: the rest may have been in that library. An answer that says that the book does not tell claims nothing.
    """
    passages, inserted = _told(session, node), dict[int, str]()
    if session.book is None or node.exchange is None:
        return {}
    text, underlined = node.exchange.finished.text, not _mostly_own(passages)
    for passage in passages:
        if passage.kind == "own" and not underlined:
            continue
        before, behind = _around(session.book, passage)
        word = LAST_WORD.search(text[passage.start : passage.end]) if passage.kind != "own" else None
        stays, behind = (STAYS, f"{behind}</span>") if word else ("", behind)
        last = passage.start + (word.start() if word else 0)
        for place, html in ((passage.start, before), (last, stays), (passage.end, behind)):
            if html:
                inserted[place] = inserted.get(place, "") + html
    return inserted


def own_key(session: Session, node: Node) -> str:
    """What the faint line means, or that most is the model's own wording, as HTML above the figures; "": neither."""
    passages = _told(session, node)
    if session.book is None or not any(passage.kind == "own" for passage in passages):
        return ""
    key = KEY_OF_MOST if _mostly_own(passages) else KEY
    return f'<span class="own-key" title="{KEY_TITLE}">{key.format(book=_books(session.book))}</span>'


def _told(session: Session, node: Node) -> list[Passage]:
    """The passages of a node's answer about which anything can be told."""
    book, exchange = session.book, node.exchange
    if book is None or exchange is None or not session.fits:
        return []
    passages = book.evidence(exchange.finished.text)
    if is_refusal(exchange.finished.text, passages):
        return []
    same = exchange.digest == session.digest
    return [one for one in passages if same or one.source is not None]


def _mostly_own(passages: Sequence[Passage]) -> bool:
    """Whether a model's own wording is most of an answer, in more than a few passages: said once, not underlined."""
    own = [one.end - one.start for one in passages if one.kind == "own"]
    return len(own) > FEW_OWN and 2 * sum(own) > sum(one.end - one.start for one in passages)


def _books(book: Book) -> str:
    return "books" if len(book.library.books) > 1 else "book"


def _around(book: Book, passage: Passage) -> tuple[str, str]:
    """The HTML before and behind a passage."""
    books = _books(book)
    if passage.kind == "own":
        return OWN.format(book=books), "</span>"
    chip = _chip(book, passage, books)
    return ("", chip) if passage.kind == "quotation" else (FOUND, f"{chip}</span>")


def _chip(book: Book, passage: Passage, books: str) -> str:
    """The button that opens the page."""
    source = passage.source
    if source is None:
        title = f"No page of the open {books} has these words in this order"
        return f'<span class="chip quote not-found" title="{title}">not in the {books}</span>'
    index = page_of(book, source.start)
    page = page_words(book, index)
    more = " and elsewhere" if passage.again else ""
    title = f"Word for word on {page}{more}: show it"
    act = page_act(book, index, (source.start, source.end))
    return render.button(render.escape(page), act, tone="chip quote found", title=title)
