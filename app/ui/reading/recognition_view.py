"""Pages that are only pictures, as the page shows them: the offer to recognise their text, and its progress."""

from app import formats
from app.context.context_documents import Book
from app.context.uploads import Upload
from app.documents.errors import INSTALL_OCR, ScannedDocument
from app.documents.ocr import expected_seconds, is_installed
from app.ui import render


def offer_for_book(book: Book, *, named: bool) -> str:
    """The offer for a book in the library, if it has pages that are only pictures. `named`: with its title."""
    document = book.document
    if book.file is None or not document.picture_pages:
        return ""
    title = document.title if named else ""
    return _offer(len(document.picture_pages), len(document.pages), book.key, title)


def offer_for_upload(upload: Upload) -> str:
    """The offer for a file that could not be read because its pages are pictures."""
    error = upload.error
    if upload.file is None or not isinstance(error, ScannedDocument):
        return ""
    return _offer(error.num_pictures, error.num_pages, str(upload.number), "")


def _offer(num_pictures: int, num_pages: int, key: str, title: str) -> str:
    """How many pages are pictures, and a button with the time it takes, or what to install."""
    are = "is a picture" if num_pictures == 1 else "are pictures"
    told = f"{num_pictures:,} of {formats.plural(num_pages, 'page')} {are}."
    told = render.escape(f"{title}: {told}" if title else told)
    if not is_installed():
        command = f"<code>{render.escape(INSTALL_OCR)}</code>"
        return f'<div class="recognition"><p>{told} To recognise their text, run this once: {command}</p></div>'
    took = formats.duration(max(1.0, expected_seconds(num_pictures)))
    words = f"<span>Recognise their text</span><i>about {took}</i>"
    return f'<div class="recognition"><p>{told}</p>{render.button(words, f"recognise:{key}", tone="offer")}</div>'


def progress_of(upload: Upload) -> tuple[str, str, float | None]:
    """The current step of recognition, its progress in words, and as a share."""
    if upload.num_pages is None:
        return "Recognising text", "", None
    left = f" · {formats.duration(upload.seconds_left)} left" if upload.seconds_left is not None else ""
    detail = f"page {min(upload.num_done + 1, upload.num_pages):,} of {upload.num_pages:,}{left}"
    return "Recognising text", detail, upload.num_done / max(upload.num_pages, 1)


def stop_button(upload: Upload) -> str:
    """Stops one recognition."""
    return render.link("Stop", f"stop-recognising:{upload.number}", title="Pages recognised until now are used.")
