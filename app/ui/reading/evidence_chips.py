"""What an answer has from the book, as HTML in it: pages behind sentences and quotations, a faint line under the rest.

It exists only in the chat: stored, copied and exported answers have none.
"""

import re
from collections.abc import Mapping

from app.context.evidence import Passage, is_refusal
from app.context.open_book import Book
from app.conversations.tree import Node
from app.runtime.sessions import Session
from app.ui import render
from app.ui.library.page_viewer import Wanted
from app.ui.retrieval_map.view import opened_words, page_of, page_words

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
    book, text, underlined = session.book, node.exchange.finished.text, not _mostly_own(passages)
    for number, passage in passages.items():
        if passage.kind == "own" and not underlined:
            continue
        before, behind = _around(book, node, number, passage)
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
    if session.book is None or not any(passage.kind == "own" for passage in passages.values()):
        return ""
    key = KEY_OF_MOST if _mostly_own(passages) else KEY
    return f'<span class="own-key" title="{KEY_TITLE}">{key.format(book=_books(session.book))}</span>'


def _told(session: Session, node: Node) -> dict[int, Passage]:
    """The passages of a node's answer about which anything can be told, by their numbers."""
    book, exchange = session.book, node.exchange
    if book is None or exchange is None or not session.fits:
        return {}
    passages = book.evidence(exchange.finished.text)
    if is_refusal(exchange.finished.text, passages):
        return {}
    same = exchange.digest == session.digest
    return {number: one for number, one in enumerate(passages) if same or one.source is not None}


def _mostly_own(passages: Mapping[int, Passage]) -> bool:
    """Whether a model's own wording is most of an answer, in more than a few passages: said once, not underlined."""
    own = [one.end - one.start for one in passages.values() if one.kind == "own"]
    return len(own) > FEW_OWN and 2 * sum(own) > sum(one.end - one.start for one in passages.values())


def _books(book: Book) -> str:
    return "books" if len(book.library.books) > 1 else "book"


def _around(book: Book, node: Node, number: int, passage: Passage) -> tuple[str, str]:
    """The HTML before and behind a passage."""
    books = _books(book)
    if passage.kind == "own":
        return OWN.format(book=books), "</span>"
    chip = _chip(book, node, number, passage, books)
    return ("", chip) if passage.kind == "quotation" else (FOUND, f"{chip}</span>")


def _chip(book: Book, node: Node, number: int, passage: Passage, books: str) -> str:
    """The button that opens the page."""
    if passage.source is None:
        title = f"No page of the open {books} has these words in this order"
        return f'<span class="chip quote not-found" title="{title}">not in the {books}</span>'
    page = page_words(book, page_of(book, passage.source.start))
    more = " and elsewhere" if passage.again else ""
    title = f"Word for word on {page}{more}: show it"
    return render.button(render.escape(page), f"quote:{node.id}.{number}", tone="chip quote found", title=title)


def opened(session: Session, name: str, width: str = "") -> str:
    """The page that a click on a chip opens, as HTML; empty if its words are no longer there.

    Args:
        width: pixels that the browser can show.
    """
    node_id, _, number = name.partition(".")
    node = session.dialogue.find(node_id) if session.dialogue and session.fits else None
    if session.book is None or node is None or node.exchange is None or not number.isdecimal():
        return ""
    passages = session.book.evidence(node.exchange.finished.text)
    wanted = Wanted.parse(f"{number}::{width}")
    source = passages[wanted.number].source if wanted.number < len(passages) else None
    return opened_words(session, source, wanted.width) if source else ""
