"""Chips after the quotations in an answer: the page of the quoted words, or a note that the book lacks them.

They exist only in the chat: stored, copied and exported answers have none.
"""

from app.context.open_book import Book
from app.context.quotes import Quote
from app.conversations.tree import Node
from app.runtime.sessions import Session
from app.ui.library.page_viewer import Wanted
from app.ui.markdown import plain
from app.ui.retrieval_map.view import opened_quote, page_of, page_words


def chips(session: Session, node: Node) -> dict[int, str]:
    """HTML by the index of the character of a node's answer that it precedes.

    Empty unless the conversation is about the open book. For an answer about another library, only quotations that are
    found get a chip: a missing one may have been in that library.
    """
    book, exchange = session.book, node.exchange
    if book is None or exchange is None or not session.fits:
        return {}
    quotes = book.quotes(exchange.finished.text)
    return {
        place: _chip(book, node, number, quote)
        for number, quote in enumerate(quotes)
        for place in quote.places
        if quote.start is not None or exchange.digest == session.digest
    }


def _chip(book: Book, node: Node, number: int, quote: Quote) -> str:
    """A chip of tags, classes, titles and values only: the chat removes the rest. The script acts on the value."""
    if quote.start is None:
        books = "books" if len(book.library.books) > 1 else "book"
        title = f"No page of the open {books} has these words in this order"
        return f'<span class="chip quote not-found" title="{title}">not in the {books}</span>'
    page = plain(page_words(book, page_of(book, quote.start)))
    return (
        f'<button class="chip quote found" type="button" value="quote:{node.id}.{number}" '
        f'title="Word for word on {page}: show it">{page}</button>'
    )


def opened(session: Session, name: str, width: str = "") -> str:
    """The page that a click on a chip opens, as HTML; empty if the quotation is no longer there.

    Args:
        width: pixels that the browser can show.
    """
    node_id, _, number = name.partition(".")
    node = session.dialogue.find(node_id) if session.dialogue and session.fits else None
    if session.book is None or node is None or node.exchange is None or not number.isdecimal():
        return ""
    quotes = session.book.quotes(node.exchange.finished.text)
    wanted = Wanted.parse(f"{number}::{width}")
    return opened_quote(session, quotes[wanted.number], wanted.width) if wanted.number < len(quotes) else ""
