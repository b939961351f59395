"""Export of books: from a generated book to a text, Markdown, PDF or EPUB file, with questions beside it.

Equal books give equal bytes. Knows generated books, files and a function that counts tokens, but no models.
"""

from collections.abc import Callable, Mapping

from app.book_export.epub import to_epub
from app.book_export.files import NotWritten, check_free, write_together
from app.book_export.fitting import BookTooShort, Fitted, fit_book
from app.book_export.pdf import to_pdf
from app.book_export.plain import to_markdown, to_text
from app.book_export.questions import Row, choose_questions, to_json
from core.synthetic.book import Book

FORMATS: Mapping[str, Callable[[Book], bytes]] = {
    ".txt": lambda book: to_text(book).encode(),
    ".md": lambda book: to_markdown(book).encode(),
    ".pdf": to_pdf,
    ".epub": to_epub,
}


def as_read(book: Book, suffix: str) -> str:
    """The text that the app reads from a file of that format."""
    readings: Mapping[str, Callable[[Book], str]] = {".txt": to_text, ".md": to_markdown}
    return readings[suffix](book) if suffix in readings else book.text


__all__ = [
    "FORMATS",
    "BookTooShort",
    "Fitted",
    "NotWritten",
    "Row",
    "as_read",
    "check_free",
    "choose_questions",
    "fit_book",
    "to_json",
    "to_pdf",
    "write_together",
]
