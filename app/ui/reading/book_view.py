"""The card beside the conversation: books read, uploads, and books that do not fit. Functions of the session."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from app import formats
from app.context.context_documents import Book as LibraryBook
from app.context.context_documents import Library, label
from app.context.uploads import Fit, Upload
from app.document_formats import SHORT
from app.documents.errors import INSTALL_OCR, ScannedDocument
from app.documents.language import language_name
from app.documents.metadata import byline
from app.documents.ocr import expected_seconds, is_installed
from app.runtime.context_loader import room
from app.runtime.error_text import problem_and_hint
from app.runtime.events import Waiting
from app.runtime.reopening import keeping
from app.runtime.saved_books import LEAST_REUSED, disk_state
from app.runtime.sessions import Session
from app.ui import render
from app.ui.header import PAGE_TOKENS
from app.ui.reading.live_strip import LEAST_SECONDS, page_reached, time_left, waiting_line
from core.errors import ContextTooSmall, CoreError

MOST_TITLES = 6  # in the card; the tab "Library" shows all
MOST_READ_AGAIN = 64  # tokens at the end of an opening that are read again whatever is in memory
STEPS = {
    "waiting": "Waits until the text before it is extracted",
    "extracting": "Extracting text",
    "recognising": "Recognising text",
    "extracted": "Waits to be counted",
}
MOVING = {"opening": "Opening from disk", "saving": "Saving to disk"}
LIBRARY = render.link("Choose pages and order", also='data-tab="Library"')
KEEP_TITLE = "Write its text to the data folder, so that its conversations open it again with one click"
NOTIFY = render.link("Tell me when it is read", also="data-notify")
FORGET_TITLE = "The open book stays; its conversations no longer open it by themselves"


def is_paused(session: Session) -> bool:
    """Its reading was stopped before the end."""
    uploads = session.uploads
    if session.is_reading or uploads.too_long:
        return False
    unread = session.book is not None and not session.is_read
    return unread or (uploads.behind and bool(uploads.library.books or uploads.extracted))


def book_card(session: Session) -> str:
    """The card."""
    parts, books = problems(session), session.uploads.library.books
    if parts and session.book:
        stays = "books below stay" if len(session.book.library.books) > 1 else "book below stays"
        parts.append(f'<p class="quiet">The {stays} open.</p>')
    parts += [_titles(session)] if len(books) > 1 else [_facts(session, one) for one in books]
    parts += state(session)
    several = len(books) > 1
    warned = [f"{one.document.title}: {text}" if several else text for one in books for text in one.document.warnings]
    parts.append(warnings(warned, "Warnings"))
    parts += [recognition(session, one, named=several) for one in books[:MOST_TITLES]]
    if books:
        talk = " and end the incognito conversation" if session.incognito else "; the conversation stays listed"
        closing = f"Close all documents{talk if session.exchanges else ''}"
        parts.append(
            f'<p class="card-buttons">{LIBRARY}'
            f"{render.link('Find', title='Find words in all open documents (Ctrl+Shift+F)', also='data-find-open')}"
            f"{render.link('Start over', 'start-over', title=closing)}</p>"
        )
    body = "".join(parts) or '<p class="quiet">No book yet. Drop one below, or try a sample.</p>'
    return f'<section class="card book" aria-label="Book">{body}{undo(session)}</section>'


def state(session: Session) -> list[str]:
    """What is on its way, what the model has read or reads, and the budget."""
    uploads = session.uploads
    parts = [progress(one) for one in uploads.pending if one.stage != "failed"]
    if uploads.too_long:
        parts.append(_too_long(session))
    if (moving := disk_state(session).doing) is not None:
        step = f"{MOVING[moving.what]} · {moving.done_tokens:,} of {moving.total_tokens:,} tokens"
        parts.append(_running(step, share=moving.done_tokens / max(moving.total_tokens, 1)))
    elif session.is_reading:
        parts.append(_doing(session))
    elif session.book:
        parts.append(_rest(session))
    if uploads.note:
        parts.append(render.status(render.escape(uploads.note)))
    if (fit := fit_of(session)) is not None:
        parts.append(budget(fit, uploads.library))
    return parts


def problems(session: Session) -> list[str]:
    """What could not be opened, and why."""
    uploads = session.uploads
    found = [render.problem(uploads.error)] if uploads.error else []
    return found + [failure(one) for one in uploads.pending if one.stage == "failed"]


def warnings(warned: "list[str] | tuple[str, ...]", name: str) -> str:
    """What is odd about documents, as a list with a name; "" without any."""
    return render.items(warned, "warnings", f' aria-label="{render.escape(name)}"')


def _titles(session: Session) -> str:
    """Several documents."""
    library = session.uploads.library
    books = library.books
    rows = "".join(
        f"<li><span>{render.escape(one.document.title)}</span>"
        f"<i>{' · '.join(filter(None, (formats.plural(pages, 'page'), _num_tokens(session, one))))}"
        f"{'' if one.is_whole else ' · in part'}</i></li>"
        for one, pages in zip(books[:MOST_TITLES], pages_of_books(library), strict=False)
    )
    more = f'<p class="quiet">and {len(books) - MOST_TITLES} more</p>' if len(books) > MOST_TITLES else ""
    title = formats.plural(len(books), "document") + ", read in this order"
    return f'<h3 class="book-title">{title}</h3><ol class="titles">{rows}</ol>{more}'


def _facts(session: Session, book: LibraryBook) -> str:
    """A single document."""
    document = book.document
    length = extent(book) if book.is_whole else f"{label(document, book.choice)} of {extent(book)}"
    language = language_name(document.language)
    facts = " · ".join(filter(None, (SHORT[document.format], length, _num_tokens(session, book), language)))
    name = "" if document.title in (document.name, document.name.rpartition(".")[0]) else document.name
    told = " · ".join(filter(None, (byline(document.authors), name)))
    file = f'<p class="quiet file">{render.escape(told)}</p>' if told else ""
    title = f'<h3 class="book-title" dir="auto">{render.escape(document.title)}</h3>'
    return f'{title}{file}<p class="facts">{render.escape(facts)}</p>'


def _num_tokens(session: Session, book: LibraryBook) -> str:
    """Exact if the book is open alone, else counted by pages."""
    opened, uploads = session.book, session.uploads
    if opened and opened.library is uploads.library and len(opened.library.books) == 1:
        return formats.plural(opened.num_tokens, "token")
    return formats.plural(uploads.meter.book(book), "token") if uploads.meter else ""


def extent(book: LibraryBook) -> str:
    """The length of a document, in the pages by which everything else on the page names its places."""
    return formats.plural(len(book.document.pages), "page")


def _too_long(session: Session) -> str:
    fit, library, opened = session.uploads.fit, session.uploads.library, session.book
    assert fit is not None, "too long by no measure"
    why = ContextTooSmall(fit.needed, fit.context, possible=fit.possible).problem
    meanwhile = f"Until then questions go to {render.escape(opened.title)}." if opened else ""
    most = max(0, int(room(fit) / page_tokens(fit, library)))
    pages = formats.plural(num_pages(library), "page")
    told = f"Too long to read at once: {pages}, and about {most:,} of them fit."
    choose = render.link("Choose what is read", also="data-choosing")
    below = f"<span>Nothing is cut by itself. {meanwhile}</span>{choose}"
    return render.box(told, below, tone="too-long", title=why)


def undo(session: Session) -> str:
    """The newest removal, and the button that takes it back; "" without one."""
    left = {book.key for book in session.uploads.library.books}
    before = session.removed.library.books if session.removed else ()
    gone = [book.document.title for book in before if book.key not in left]
    what = gone[0] if len(gone) == 1 else formats.plural(len(gone), "document")
    told = f"Removed {render.escape(what)}. {render.link('Undo', 'undo')}"
    return render.status(told, "quiet undo") if gone else ""


# -------------------- what goes on


def _doing(session: Session) -> str:
    """The current work and its progress."""
    doing = session.doing
    if doing is None:
        return ""
    if isinstance(doing, Waiting):
        if doing.reason == "opening":  # what is on its way says more
            return "" if session.uploads.arriving else _running("Opening")
        return _running(waiting_line(doing))
    step = " · ".join(filter(None, ("Reading", page_reached(session.book, doing.done_tokens))))
    left, share = f"<b>{time_left(doing)}</b> {NOTIFY}", doing.done_tokens / max(doing.total_tokens, 1)
    return _running(step, left, share)


def _running(step: str, below: str = "", share: float | None = None) -> str:
    """A step with its bar; `below`: what stands below it, as HTML."""
    bar = '<div class="bar busy"><span></span></div>' if share is None else render.bar(share, step)
    told = below or "&nbsp;"
    return f'<div class="step"><p>{render.escape(step)}</p>{bar}<p class="quiet">{told}</p></div>'


def progress(upload: Upload) -> str:
    """An upload: its name, the current step, its progress."""
    share, detail, stop = None, "", ""
    done, pages = upload.num_done, upload.num_pages
    if upload.stage in ("extracting", "recognising"):
        if pages is not None:
            share, detail = done / max(pages, 1), f"page {min(done + 1, pages):,} of {pages:,}"
        elif done:
            detail = f"page {done + 1:,}"
    if upload.stage == "recognising":
        if pages is not None and upload.seconds_left is not None:
            detail += f" · {formats.duration(upload.seconds_left)} left"
        act = f"stop-recognising:{upload.number}"
        stop = render.link("Stop", act, title="Pages recognised until now are used.")
    step = _running(STEPS.get(upload.stage, "Counting tokens"), detail, share)
    return f'<div class="arrival"><h3 class="book-title">{render.escape(upload.name)}</h3>{step}{stop}</div>'


def failure(upload: Upload) -> str:
    """A file that could not be read, and why; if its pages are pictures, with the offer to recognise them."""
    error = upload.error or CoreError(f"{upload.name} cannot be read.", hint="Choose another file.")
    closes = f"dismiss:{upload.number}"
    if upload.file is None or not isinstance(error, ScannedDocument):
        return render.problem(error, closes=closes)
    offer = _recognition(error.num_pictures, error.num_pages, str(upload.number))
    return render.box(problem_and_hint(error)[0], offer, tone="calm", closes=closes)


def recognition(session: Session, book: LibraryBook, *, named: bool = False) -> str:
    """The offer to recognise text on the pictures of a book, unless that goes on. `named`: with its title."""
    document = book.document
    goes_on = any(one.replaces == book.key for one in session.uploads.pending if one.stage != "failed")
    if goes_on or book.file is None or not document.picture_pages:
        return ""
    whose = f"{document.title}: " if named else ""
    return _recognition(len(document.picture_pages), len(document.pages), book.key, whose)


def _recognition(num_pictures: int, num_pages: int, key: str, whose: str = "") -> str:
    """How many pages are pictures, and a button with the time it takes, or what to install."""
    are = "is a picture" if num_pictures == 1 else "are pictures"
    told = render.escape(f"{whose}{num_pictures:,} of {formats.plural(num_pages, 'page')} {are}.")
    if not is_installed():
        command = f"<code>{render.escape(INSTALL_OCR)}</code>"
        return f'<div class="recognition"><p>{told} To recognise their text, run this once: {command}</p></div>'
    took = formats.duration(max(1.0, expected_seconds(num_pictures)))
    words = f"<span>Recognise their text</span><i>about {took}</i>"
    return f'<div class="recognition"><p>{told}</p>{render.button(words, f"recognise:{key}", tone="offer")}</div>'


# -------------------- once it is read


def _rest(session: Session) -> str:
    """How far it is read, whether it is on disk, and whether its text is kept."""
    state, book = disk_state(session), session.book
    assert book is not None, "no book to tell of"
    if not session.is_read:
        whole = book.num_opening - 1
        share, page = f"{session.num_read / whole:.0%}", page_reached(book, session.num_read)
        note = f"Stopped at {f'{share}, {page}' if page else share}. Asking reads the rest first."
        title = f"{session.num_read:,} of {whole:,} tokens"
        return f'<div class="step paused" title="{title}"><p>{note}</p></div>'
    kind, note = "done", f"{how_read(session)} Answers begin at once."
    if session.displaced:
        again = "takes it from disk" if state.kept_bytes or state.num_fetched else "reads it"
        told = f" ({formats.about(session.read_seconds)})" if session.read_seconds >= LEAST_SECONDS else ""
        kind, note = "paused", f"Another page uses the model now. The next answer {again} again first{told}."
    return f'<div class="step {kind}"><p>{note}</p></div>{_on_disk(session)}'


def how_read(session: Session) -> str:
    """How the model got the book: read, fetched from disk, or found in memory."""
    state, whole = disk_state(session), session.book.num_opening - 1 if session.book else 0
    if state.num_fetched > whole - MOST_READ_AGAIN:
        return f"Opened from disk in {formats.duration(state.fetch_seconds)}."
    took = f"in {formats.duration(session.read_seconds)}" if session.read_seconds else "at once"
    if whole and session.num_reused >= LEAST_REUSED * whole:
        rest = whole - session.num_reused > MOST_READ_AGAIN
        where = "came from disk" if state.num_fetched else "was still in memory"
        return f"Read {took}; part of it {where}." if rest else f"Opened again {took}, from memory."
    return f"Read once, {took}." if session.read_seconds else "Read."


def _on_disk(session: Session) -> str:
    """Whether the book is saved, or the question whether to save it; else whether its text is kept for another time."""
    state, kept = disk_state(session), keeping(session)
    if state.offer is not None and not (state.kept_bytes or state.note or state.wanted):
        size = formats.amount(state.offer.size_bytes)
        return (
            f'<div class="keeping"><p>Save what was read? It takes {size} on disk, and the book then opens in seconds.'
            f"</p>{render.button('Save it', 'keep')}{render.link('Do not save', 'keep-not')}</div>"
        )
    told = f"Saved on disk: {formats.amount(state.kept_bytes)}." if state.kept_bytes else render.escape(state.note)
    line = f'<p class="quiet">{told}</p>' if told else ""
    if kept is None:
        return line
    keeps = render.link("Keep its text", "keep-texts", title=KEEP_TITLE)
    if kept:
        forgets = render.link("Delete the kept text", "forget-texts", title=FORGET_TITLE)
        keeps = f"Its text is kept: its conversations open it again. {forgets}"
    return f'{line}<p class="quiet">{keeps}</p>'


# -------------------- the budget of the context


TOKEN = "A token is a piece of a word. The context is all that the model has before it: {context:,} tokens."


class Part(NamedTuple):
    """A part of the context."""

    kind: str
    name: str
    num_tokens: int
    meaning: str


def fit_of(session: Session) -> Fit | None:
    """The present budget: since the library was opened, the conversation may have grown or changed its branch."""
    fit = session.uploads.fit
    if fit is None or not fit.fits or session.book is None:
        return fit
    return replace(fit, talk=session.num_talk)


def budget(fit: Fit, library: Library) -> str:
    """The meter, with a legend in pages like those that are open, and in tokens."""
    parts = list(_parts(fit, len(library.books)))
    over, page = fit.needed - fit.context, page_tokens(fit, library)
    said = ", ".join(f"{part.name} {_pages(part, page, library)}, {part.num_tokens:,} tokens" for part in parts)
    if over > 0:
        said += f": {over:,} tokens more than the context of {fit.context:,} holds"
    whole = max(fit.needed, fit.context)
    rows = "".join(
        f'<li title="{part.meaning}: {formats.percent(part.num_tokens / fit.context)} of the context">'
        f'<i class="key {part.kind}"></i><span>{part.name}</span><b>{render.escape(_pages(part, page, library))}</b>'
        f"<i>{formats.plural(part.num_tokens, 'token')}</i></li>"
        for part in parts
    )
    limit = f'<s style="left:{100 * fit.context / whole:.2f}%"></s>' if over > 0 else ""
    room = formats.plural(max(1, round(fit.context / page)), "page")
    head = f'<span title="{TOKEN.format(context=fit.context)}">Room for about {room} at once</span>'
    if over > 0:
        pages = formats.plural(max(1, ceil(over / page)), "page")
        head = f'<strong title="{over:,} tokens">About {pages} too many</strong>'
    bar = render.stack(((part.kind, part.num_tokens, part.name) for part in parts), whole, label=said, also=limit)
    return f'<div class="budget{" over" if over > 0 else ""}">{bar}<p class="quiet">{head}</p><ul>{rows}</ul></div>'


def page_tokens(fit: Fit, library: Library) -> float:
    """Tokens of a page of what is open, on average; of a printed page where nothing is."""
    pages = num_pages(library)
    return fit.books / pages if fit.books and pages else PAGE_TOKENS


def num_pages(library: Library) -> int:
    """The pages that are chosen, empty ones of whole books included, as everything else on the page counts them."""
    return sum(pages_of_books(library))


def pages_of_books(library: Library) -> list[int]:
    """The same, by book."""
    placed = Counter(page.book for page in library.pages)
    return [len(one.document.pages) if one.is_whole else placed[at] for at, one in enumerate(library.books)]


def _pages(part: Part, page: float, library: Library) -> str:
    """A part in pages: those of the books are counted, all others are as many as would take its tokens."""
    if part.kind == "books" and library.books:
        return formats.plural(num_pages(library), "page")
    return formats.plural(round(part.num_tokens / page), "page") if part.num_tokens >= page else "<1 page"


def _parts(fit: Fit, num_books: int) -> Iterator[Part]:
    yield Part("books", "Books" if num_books > 1 else "Book", fit.books, "The text of what is open")
    if fit.talk:
        yield Part("talk", "Conversation", fit.talk, "Your questions and the answers to them")
    stays = "Stays free for the next question, its answer, and the marks between them"
    yield Part("reserve", "Next answer", fit.reserve + fit.frame, stays)
    if fit.fits:
        room = "Room for further documents and for more of this conversation"
        yield Part("free", "Free", fit.context - fit.needed, room)
