"""The card of the book: opening, counting, reading with time left, read, stopped, or failed and why."""

from collections.abc import Sequence

from app import render
from app.documents.document import Document, Extracting
from app.sessions import Book, Session
from app.worker import BookOpened, Counting, ReadingEnded, Waiting, WorkerEvent
from core.errors import CoreError
from core.events import PrefillProgress

FORMATS = {"pdf": "PDF", "epub": "EPUB", "text": "TXT", "markdown": "MD"}
WAITING = {
    "loading": "Waits until the model is loaded",
    "own job": "Waits until the answer is written",
    "another page": "Waits: another page is using the model",
}


class BookView:
    """What the card shows. Apply events, then ask for the HTML."""

    reading: bool  # opening, waiting or reading
    paused: bool  # stopped before the end
    _opening: str | None  # name of the file that is being opened
    _book: Book | None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._step = self._detail = ""  # what is being done, and how far
        self._share: float | None = None  # of the step, None: not known
        self._error: CoreError | None = None
        self._opened = False  # a new book came in, and the page has not been told
        self._settle()

    def open(self, name: str) -> "BookView":
        """A file has arrived; its text is not extracted yet."""
        self._opening, self._step, self._share, self.reading = name, "Opening", None, True
        return self

    def apply(self, events: Sequence[WorkerEvent]) -> "BookView":
        """Take in what happened."""
        for event in events:
            self._detail = ""
            self._apply(event)
        return self

    def _apply(self, event: WorkerEvent) -> None:
        match event:
            case Extracting(num_done=done, num_pages=None):
                self._step, self._detail = "Extracting text", f"page {done + 1:,}" if done else ""
            case Extracting(num_done=done, num_pages=int(pages)):
                self._step, self._share = "Extracting text", done / max(pages, 1)
                self._detail = f"page {min(done + 1, pages):,} of {pages:,}"
            case Counting():
                self._step, self._share = "Counting tokens", None
            case Waiting(reason=reason):
                self._step, self._share, self.reading = WAITING[reason], None, True
            case BookOpened(book=book):
                self._book, self._opening, self._step, self._opened = book, None, "Reading begins", True
            case PrefillProgress() as progress:
                self._progress(progress)
            case ReadingEnded():
                self._settle()

    def _progress(self, progress: PrefillProgress) -> None:
        self.reading, self.paused = True, False
        read = progress.done_tokens - progress.reused_tokens
        self._share = progress.done_tokens / max(progress.total_tokens, 1)
        self._step = f"Reading · {progress.done_tokens:,} of {progress.total_tokens:,} tokens"
        if read > 0 and progress.elapsed_seconds > 0:
            self._detail = f"{render.figure(read / progress.elapsed_seconds)} tokens/s"
        if progress.remaining_seconds is not None and progress.done_tokens < progress.total_tokens:
            self._detail += f" · {render.duration(progress.remaining_seconds)} left"

    def _settle(self) -> None:
        """Nothing runs: show what the session holds."""
        session, self._opening, self.reading = self._session, None, False
        self._book, self.paused = session.book, session.book is not None and not session.is_read
        if session.book is None:
            self._note = ""
        elif self.paused:
            total = session.book.num_opening - 1
            self._note = f"Stopped at {session.num_read:,} of {total:,} tokens. Asking reads the rest first."
        else:
            how = f" once, in {render.duration(session.read_seconds)}" if session.read_seconds > 0 else ""
            self._note = f"Read{how}. Questions cost only their own tokens."

    def take_opened(self) -> bool:
        """True once after a new book came in."""
        opened, self._opened = self._opened, False
        return opened

    def fail(self, error: CoreError) -> "BookView":
        """The step that was running ended with an error; what was there before is kept."""
        self._error = error
        self._settle()
        return self

    def end(self) -> "BookView":
        """The stream is over, whatever its last event was."""
        self._settle()
        return self

    def html(self) -> str:
        """The card."""
        parts = [render.problem(self._error)] if self._error else []
        if self._error and self._book:
            parts.append('<p class="quiet">The book below stays open.</p>')
        if self._opening is not None:
            parts.append(f'<h3 class="book-title">{render.escape(self._opening)}</h3>')
            parts.append(self._running())
        elif self._book is not None:
            parts += [_facts(self._book), self._running() if self.reading else self._rest()]
            parts += [_meter(self._book), _warnings(self._book)]
        elif not self._error:
            parts.append('<p class="quiet">No book yet. Drop one below, or try a sample.</p>')
        return f'<section class="card book" aria-label="Book">{"".join(parts)}</section>'

    def _running(self) -> str:
        bar = '<div class="bar busy"><span></span></div>'
        if self._share is not None:
            bar = render.bar(self._share, self._step)
        return (
            f'<div class="step" role="status"><p>{render.escape(self._step)}</p>{bar}'
            f'<p class="quiet">{render.escape(self._detail) or "&nbsp;"}</p></div>'
        )

    def _rest(self) -> str:
        mark = "paused" if self.paused else "done"
        return f'<div class="step {mark}" role="status"><p>{render.escape(self._note)}</p></div>'


def _facts(book: Book) -> str:
    document = book.document
    facts = f"{FORMATS[document.format]} · {_extent(document)} · {render.plural(book.num_tokens, 'token')}"
    stem = document.name.rpartition(".")[0]
    name = "" if document.title in (document.name, stem) else document.name
    file = f'<p class="quiet file">{render.escape(name)}</p>' if name else ""
    return f'<h3 class="book-title">{render.escape(document.title)}</h3>{file}<p class="facts">{facts}</p>'


def _meter(book: Book) -> str:
    share = book.num_tokens / book.context
    label = f"{render.percent(share)} of the context ({book.context:,} tokens)"
    return f'<div class="context"><p class="quiet">{label}</p>{render.bar(share, label, tone="meter")}</div>'


def _extent(document: Document) -> str:
    if document.has_own_pages:
        return render.plural(len(document.pages), "page")
    return render.plural(len(document.text.split()), "word")


def _warnings(book: Book) -> str:
    items = "".join(f"<li>{render.escape(warning)}</li>" for warning in book.document.warnings)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>' if items else ""
