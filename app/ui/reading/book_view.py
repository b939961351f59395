"""The card beside the conversation: books read, uploads, and books that do not fit. A function of the session."""

from app import formats
from app.context.context_documents import Book as LibraryBook
from app.context.context_documents import label
from app.context.offers import Offer
from app.context.page_ranges import written
from app.context.uploads import Upload
from app.document_formats import SHORT
from app.documents.language import language_name
from app.documents.metadata import byline
from app.runtime.context_loader import room
from app.runtime.error_text import problem_and_hint
from app.runtime.events import BookMoving, Waiting
from app.runtime.saved_books import disk_state
from app.runtime.sessions import Session
from app.ui import render
from app.ui.library.saved_view import how_read, keep_line, on_disk
from app.ui.reading.budget_view import budget, fit_of, num_pages, page_tokens, pages_of_books
from app.ui.reading.live_strip import LEAST_SECONDS, page_reached, until, waiting_line
from app.ui.reading.recognition_view import offer_for_book, offer_for_upload, progress_of, stop_button
from core.errors import ContextTooSmall, CoreError

MOST_TITLES = 6  # in the card; the tab "Library" shows all


class BookView:
    """The state that the card shows."""

    def __init__(self, session: Session) -> None:
        self._session, self._uploads = session, session.uploads

    @property
    def reading(self) -> bool:
        """So Stop is offered."""
        return self._session.is_reading

    @property
    def paused(self) -> bool:
        """Stopped before the end."""
        if self.reading or self._uploads.too_long:
            return False
        unread = self._session.book is not None and not self._session.is_read
        return unread or (self._uploads.behind and bool(self._uploads.library.books or self._uploads.extracted))

    def html(self) -> str:
        """The card."""
        session, uploads = self._session, self._uploads
        parts = [render.problem(uploads.error)] if uploads.error else []
        parts += [failure(one) for one in uploads.pending if one.stage == "failed"]
        if parts and session.book:
            stays = "books below stay" if len(session.book.library.books) > 1 else "book below stays"
            parts.append(f'<p class="quiet">The {stays} open.</p>')
        if uploads.library.books:
            parts.append(self._titles())
        parts += [progress(one) for one in uploads.pending if one.stage != "failed"]
        if uploads.too_long:
            parts.append(self._too_long())
        if (moving := disk_state(session).doing) is not None:
            parts.append(_running(*_moving(moving)))
        elif session.doing is not None and self.reading:
            parts.append(_doing(session))
        elif not self.reading and session.book:
            parts.append(self._rest())
        if uploads.note:
            parts.append(f'<p class="quiet" role="status">{render.escape(uploads.note)}</p>')
        if fit := fit_of(session):
            parts.append(budget(fit, uploads.library))
        parts.append(_warnings(self._warned()))
        books, busy = uploads.library.books, {one.replaces for one in uploads.pending if one.stage != "failed"}
        parts += [offer_for_book(one, named=len(books) > 1) for one in books[:MOST_TITLES] if one.key not in busy]
        if uploads.library.books:
            parts.append(self._buttons())
        if not any(parts):
            parts.append('<p class="quiet">No book yet. Drop one below, or try a sample.</p>')
        parts.append(undo(session))
        return f'<section class="card book" aria-label="Book">{"".join(parts)}</section>'

    def _titles(self) -> str:
        books = self._uploads.library.books
        if len(books) == 1:
            return _facts(books[0], self._num_tokens(books[0]))
        rows = "".join(
            f"<li><span>{render.escape(one.document.title)}</span>"
            f"<i>{' · '.join(filter(None, (formats.plural(pages, 'page'), self._num_tokens(one))))}"
            f"{'' if one.is_whole else ' · in part'}</i></li>"
            for one, pages in zip(books[:MOST_TITLES], pages_of_books(self._uploads.library), strict=False)
        )
        more = f'<p class="quiet">and {len(books) - MOST_TITLES} more</p>' if len(books) > MOST_TITLES else ""
        title = formats.plural(len(books), "document") + ", read in this order"
        return f'<h3 class="book-title">{title}</h3><ol class="titles">{rows}</ol>{more}'

    def _num_tokens(self, book: LibraryBook) -> str:
        """Exact if the book is open alone, else counted by pages."""
        opened, meter = self._session.book, self._uploads.meter
        if opened and opened.library is self._uploads.library and len(opened.library.books) == 1:
            return formats.plural(opened.num_tokens, "token")
        return formats.plural(meter.book(book), "token") if meter else ""

    def _too_long(self) -> str:
        fit = self._uploads.fit
        assert fit is not None, "too long by no measure"
        error = ContextTooSmall(fit.needed, fit.context, possible=fit.possible)
        opened = self._session.book
        meanwhile = f"Until then questions go to {render.escape(opened.title)}." if opened else ""
        page = page_tokens(fit, self._uploads.library)
        pages, most = formats.plural(num_pages(self._uploads.library), "page"), max(0, int(room(fit) / page))
        problem = f"Too long to read at once: {pages}, and about {most:,} of them fit."
        return (
            '<div class="problem too-long" role="alert">'
            f'<strong title="{render.escape(error.problem)}">{problem}</strong>'
            f"<span>Nothing is cut by itself. {meanwhile}</span>"
            f"{render.link('Choose what is read', also='data-choosing')}</div>"
        )

    def _rest(self) -> str:
        session = self._session
        assert session.book is not None
        if not session.is_read:
            whole = session.book.num_opening - 1
            share, page = f"{session.num_read / whole:.0%}", page_reached(session.book, session.num_read)
            reached = f"{share}, {page}" if page else share
            note = f"Stopped at {render.escape(reached)}. Asking reads the rest first."
            tokens = f"{session.num_read:,} of {whole:,} tokens"
            return f'<div class="step paused" title="{tokens}"><p>{note}</p></div>'
        if session.displaced:
            state = disk_state(session)
            again = "takes it from disk" if state.kept_bytes or state.num_fetched else "reads it"
            told = f" ({formats.about(session.read_seconds)})" if session.read_seconds >= LEAST_SECONDS else ""
            note = f"Another page uses the model now. The next answer {again} again first{told}."
            return f'<div class="step paused"><p>{note}</p></div>{on_disk(session)}{keep_line(session)}'
        note = "Answers begin at once."
        return f'<div class="step done"><p>{how_read(session)} {note}</p></div>{on_disk(session)}{keep_line(session)}'

    def _warned(self) -> list[str]:
        books = self._uploads.library.books
        several = len(books) > 1
        return [f"{one.document.title}: {text}" if several else text for one in books for text in one.document.warnings]

    def _buttons(self) -> str:
        talk = ""
        if self._session.exchanges:
            talk = (
                " and end the incognito conversation" if self._session.incognito else "; the conversation stays listed"
            )
        links = (
            render.link("Choose pages and order", also='data-tab="Library"')
            + render.link("Find", title="Find words in all open documents (Ctrl+Shift+F)", also="data-find-open")
            + render.link("Start over", "start-over", title=f"Close all documents{talk}")
        )
        return f'<p class="card-buttons">{links}</p>'


def undo(session: Session) -> str:
    """The newest removal, and the button that takes it back; "" without one."""
    if session.removed is None:
        return ""
    left = {book.key for book in session.uploads.library.books}
    gone = [book.document.title for book in session.removed.library.books if book.key not in left]
    what = gone[0] if len(gone) == 1 else formats.plural(len(gone), "document")
    told = f"Removed {render.escape(what)}. {render.link('Undo', 'undo')}"
    return f'<p class="quiet undo" role="status">{told}</p>' if gone else ""


def _doing(session: Session) -> str:
    """The current work and its progress."""
    doing = session.doing
    assert doing is not None
    if isinstance(doing, Waiting):
        return _running(waiting_line(doing), "", None)
    step = " · ".join(filter(None, ("Reading", page_reached(session.book, doing.done_tokens))))
    bar = render.bar(doing.done_tokens / max(doing.total_tokens, 1), step)
    notify = render.link("Tell me when it is read", also="data-notify")
    return (
        f'<div class="step" role="status"><p>{render.escape(step)}</p>{bar}'
        f'<p class="quiet reading-left">{until(doing)}{notify}</p></div>'
    )


def _moving(moving: BookMoving) -> tuple[str, str, float | None]:
    """The progress of rows copied from disk or to disk, in words and as a share."""
    step = {"opening": "Opening from disk", "saving": "Saving to disk"}[moving.what]
    counts = f"{step} · {moving.done_tokens:,} of {moving.total_tokens:,} tokens"
    return counts, "", moving.done_tokens / max(moving.total_tokens, 1)


def _running(step: str, detail: str, share: float | None) -> str:
    bar = '<div class="bar busy"><span></span></div>' if share is None else render.bar(share, step)
    return (
        f'<div class="step"><p>{render.escape(step)}</p>{bar}'
        f'<p class="quiet">{render.escape(detail) or "&nbsp;"}</p></div>'
    )


def progress(upload: Upload) -> str:
    """An upload: its name, the current step, its progress."""
    share, detail, stop = None, "", ""
    match upload.stage:
        case "waiting":
            step = "Waits until the text before it is extracted"
        case "extracting":
            step, done, pages = "Extracting text", upload.num_done, upload.num_pages
            if pages is not None:
                share, detail = done / max(pages, 1), f"page {min(done + 1, pages):,} of {pages:,}"
            elif done:
                detail = f"page {done + 1:,}"
        case "recognising":
            step, detail, share = progress_of(upload)
            stop = stop_button(upload)
        case "extracted":
            step = "Waits to be counted"
        case _:
            step = "Counting tokens"
    title = f'<h3 class="book-title">{render.escape(upload.name)}</h3>'
    return f'<div class="arrival">{title}{_running(step, detail, share)}{stop}</div>'


def failure(upload: Upload) -> str:
    """A file that could not be read, and why."""
    error = upload.error or CoreError(f"{upload.name} cannot be read.", hint="Choose another file.")
    problem, hint = problem_and_hint(error)
    offer = offer_for_upload(upload)
    return (
        f'<div class="problem{" calm" if offer else ""}" role="alert"><strong>{render.escape(problem)}</strong>'
        f"{offer or f'<span>{render.escape(hint)}</span>'}{render.dismiss(f'dismiss:{upload.number}')}</div>"
    )


def offer_button(books: tuple[LibraryBook, ...], offer: Offer) -> str:
    """A button for a choice that fits."""
    book = books[offer.book]
    name = f"{book.document.title}: {offer.label}" if len(books) > 1 else offer.label
    words = f"<span>{render.escape(name[:1].upper() + name[1:])}</span><i>{offer.num_tokens:,} tokens</i>"
    return render.button(words, f"choose:{book.key}:{written(offer.choice)}", tone="offer")


def _facts(book: LibraryBook, num_tokens: str) -> str:
    document = book.document
    chosen = "" if book.is_whole else label(document, book.choice)
    language = language_name(document.language)
    length = extent(book) if book.is_whole else f"of {extent(book)}"
    facts = " · ".join(filter(None, (SHORT[document.format], chosen, length, num_tokens, language)))
    stem = document.name.rpartition(".")[0]
    name = "" if document.title in (document.name, stem) else document.name
    told = " · ".join(filter(None, (byline(document.authors), name)))
    file = f'<p class="quiet file">{render.escape(told)}</p>' if told else ""
    title = f'<h3 class="book-title" dir="auto">{render.escape(document.title)}</h3>'
    return f'{title}{file}<p class="facts">{render.escape(facts)}</p>'


def extent(book: LibraryBook) -> str:
    """The length of a document, in the pages by which everything else on the page names its places."""
    return formats.plural(len(book.document.pages), "page")


def _warnings(warned: list[str]) -> str:
    items = "".join(f"<li>{render.escape(warning)}</li>" for warning in warned)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>' if items else ""
