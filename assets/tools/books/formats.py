"""A book as a file of each format. Equal books give equal bytes. Its sentences contain no Markdown markup."""

from collections.abc import Callable, Mapping

from assets.tools.books.epub import to_epub
from assets.tools.books.generated import Book
from assets.tools.books.pdf import to_pdf


def to_text(book: Book) -> str:
    """The text itself."""
    return book.text + "\n"


def to_markdown(book: Book) -> str:
    """The same paragraphs, with the title and the chapters' first lines as headings."""
    return "\n\n".join([f"# {book.title}", *(f"## {chapter.text}" for chapter in book.chapters)]) + "\n"


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
