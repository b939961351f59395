"""A book as plain text and as Markdown. Its sentences contain no Markdown markup."""

from core.synthetic.book import Book


def to_text(book: Book) -> str:
    """The text itself."""
    return book.text + "\n"


def to_markdown(book: Book) -> str:
    """The same paragraphs, with the title and the chapters' first lines as headings."""
    return "\n\n".join([f"# {book.title}", *(f"## {chapter.text}" for chapter in book.chapters)]) + "\n"
