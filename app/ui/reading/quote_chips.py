"""Chips behind the quotations in an answer's text: the page where the words stand, or that they stand nowhere.

They are drawn into the chat only: an answer that is kept, copied or exported has none.
"""

from app.context.open_book import Book
from app.context.quotes import Quote
from app.conversations.tree import Node
from app.runtime.sessions import Session
from app.ui.markdown import plain
from app.ui.retrieval_map.view import opened_quote, page_of, page_words


def chips(session: Session, node: Node) -> dict[int, str]:
    """HTML by the character of a node's answer that it stands before.

    Empty unless the conversation is about what is open. Of an answer about another library only what is found is shown:
    what is not there now may have been there.
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
    """Only tags, classes, titles and values pass through the chat; the page's script acts on the value."""
    if quote.start is None:
        books = "books" if len(book.library.books) > 1 else "book"
        title = f"No page of the open {books} has these words in this order"
        return f'<span class="chip quote not-found" title="{title}">not in the {books}</span>'
    page = plain(page_words(book, page_of(book, quote.start)))
    return (
        f'<button class="chip quote found" type="button" value="quote:{node.id}.{number}" '
        f'title="Word for word on {page}: show it">{page}</button>'
    )


def opened(session: Session, name: str) -> str:
    """The page that a click on a chip asks for, as HTML; nothing where there is no such quotation any more."""
    node_id, _, number = name.partition(".")
    node = session.dialogue.find(node_id) if session.dialogue and session.fits else None
    if session.book is None or node is None or node.exchange is None or not number.isdecimal():
        return ""
    quotes = session.book.quotes(node.exchange.finished.text)
    return opened_quote(session.book, quotes[int(number)]) if int(number) < len(quotes) else ""
