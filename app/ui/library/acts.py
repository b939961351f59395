"""The acts on documents: opening, order, removal, parts, pages, Find; wherever they are offered."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from app.context.context_documents import Library
from app.context.find import Words
from app.context.page_ranges import understood
from app.context.upload_files import Claim, claim, forget
from app.documents.bundle import natural
from app.documents.document import Extracting
from app.runtime.events import WorkerEvent
from app.runtime.reopening import forget_texts, keep_texts
from app.runtime.saved_books import disk_state
from app.runtime.sessions import Removed, Session
from app.ui.acts import Act, Values
from app.ui.library.page_viewer import Wanted, newest, preview
from app.ui.library.view import MOST_HITS
from app.ui.reading.checklist_view import chosen
from app.ui.site import Site, follow

Change = Callable[[Library], Library]


# -------------------- opening and reading


def open_files(site: Site, session: Session, _detail: str, values: Values) -> None:
    """Open dropped files, by their places in the uploads folder, in natural order.

    Their copies are deleted once their text is in memory, or if they cannot be read; of PDFs when they are closed.
    """
    from gradio.utils import get_upload_folder

    files: list[Claim] = []
    forgetting = partial(forget, files, site.worker.sessions.files.holds)
    folder = Path(get_upload_folder())
    try:
        names = sorted((folder / str(name) for name in values["files"]), key=lambda file: natural(file.name))
        files += (claim(file, folder) for file in names)
        events = site.worker.open_books(session.id, [file.own for file in files])
    except BaseException:
        forgetting()
        raise
    follow(session, once_extracted(events, forgetting), ended=forgetting)


def once_extracted(events: Iterator[WorkerEvent], forgetting: Callable[[], None]) -> Iterator[WorkerEvent]:
    """Yield the same events; delete the copies after the last extraction, long before the model has read the texts."""
    for event in events:
        if not isinstance(event, Extracting):
            forgetting()
        yield event


def sample(site: Site, session: Session, name: str, _values: Values) -> None:
    """Open a sample book."""
    files = {one.file.name: one.file for one in site.samples}
    follow(session, site.worker.open_books(session.id, [files[name]]))


# -------------------- the library


def arrange(verb: str) -> Act:
    """An act that changes the library."""

    def act(site: Site, session: Session, detail: str, _values: Values) -> None:
        key, _, rest = detail.partition(":")
        change = changes(session.uploads.library, verb, key, rest)
        if change is None:
            return
        session.removed = None
        if verb in ("remove", "start-over"):
            session.removed = Removed(session.uploads.library, session.dialogue, session.carried)
            session.close("library")
            session.close("read")
        follow(session, site.worker.arrange(session.id, change))

    return act


def reopen(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """Open the books of the shown conversation in place of those that are open, which Undo brings back."""
    session.removed = Removed(session.uploads.library, None, carried=False)
    follow(session, site.worker.reading.reopen(session))


def undo(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """Bring back what was removed last; what was opened since stays, at the end. Its conversation goes on."""
    removed, session.removed = session.removed, None
    if removed is None:
        return
    with session.lock:
        if session.dialogue is None:
            session.dialogue = site.conversing.as_left(session, removed.dialogue)
            session.carried = removed.carried
    before = removed.library

    def back(now: Library) -> Library:
        return Library((*before.books, *(one for one in now.books if before.index(one.key) is None)))

    follow(session, site.worker.arrange(session.id, back))


def fresh(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """Begin a new conversation, because the library fits without the present one."""
    site.worker.clear(session.id)
    session.uploads.settled = Library()  # what did not fit before may fit now
    follow(session, site.worker.reading.catch_up(session))


def keep(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """Write the open book to disk, as was offered; other jobs go first."""
    disk_state(session).wanted = True
    site.worker.reading.save_later(session)


def dismiss(_site: Site, session: Session, number: str, _values: Values) -> None:
    """The reader has seen why a file could not be read."""
    session.uploads.dismiss(int(number))
    session.drop_files()


def changes(library: Library, verb: str, key: str, detail: str) -> Change | None:
    """The change of an act; None: no change, or the book is no longer in the library.

    Raises:
        InvalidSetting: the typed part does not exist in the book.
    """
    if verb == "start-over":
        return lambda _: Library()
    if verb == "parts":
        picked = chosen(library, detail)  # raises here, not on the engine's thread
        return (lambda now: chosen(now, detail)) if picked.books else None
    index = library.index(key)
    if index is None:
        return None
    if verb == "remove":
        return lambda now: now.remove(index)
    if verb == "choose":
        choice = understood(library.books[index].document, detail)
        return lambda now: now.choose(index, choice)
    to = index - 1 if verb == "up" else index + 1
    return (lambda now: now.move(index, to)) if 0 <= to < len(library.books) else None


# -------------------- looking into documents


def preview_page(_site: Site, session: Session, detail: str, _values: Values) -> None:
    """Show a page of a document: `KEY:NUMBER[:START-END]`."""
    newest(session, "library", lambda: preview(session, Wanted.parse(detail)))


def search(_site: Site, session: Session, detail: str, _values: Values) -> None:
    """Find words: `NUMBER:OPTIONS:WORDS`; the number of hits to show comes from a browser and is bounded."""
    number, _, rest = detail.partition(":")
    options, _, text = rest.partition(":")
    words = Words(text, exact="exact" in options, whole="whole" in options)
    session.finding = words, min(int(number[:9]), MOST_HITS)


def _followed(begin: Callable[[Site, Session, str], Iterator[WorkerEvent]]) -> Act:
    """An act that begins something whose events change the page."""
    return lambda site, session, detail, _: follow(session, begin(site, session, detail))


ACTS: dict[str, Act] = {
    "open": open_files,
    "sample": sample,
    "read-on": _followed(lambda site, session, _: site.worker.reading.catch_up(session)),
    "stop-reading": lambda site, session, *_: site.worker.stop_reading(session.id),
    "reopen": reopen,
    **{verb: arrange(verb) for verb in ("start-over", "parts", "up", "down", "remove", "choose")},
    "tick": lambda _, session, ticked, __: setattr(session, "ticked", ticked),
    "undo": undo,
    "fresh": fresh,
    "dismiss": dismiss,
    "keep": keep,
    "keep-not": lambda _, session, *__: disk_state(session).decline(),
    "keep-texts": lambda _, session, *__: keep_texts(session),
    "forget-texts": lambda _, session, *__: forget_texts(session),
    "recognise": _followed(lambda site, session, key: site.worker.reading.recognise(session, key)),
    "stop-recognising": lambda _, session, number, __: session.uploads.stop(int(number)),
    "forget-recognised": lambda site, session, key, _: site.worker.reading.forget(session, key),
    "preview": preview_page,
    "find": search,
}
