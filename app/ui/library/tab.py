"""The tab "Library", and its clicks wherever they happen: order, removal, parts, preview."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.blocks import Block

from app.context.context_documents import Library
from app.context.page_ranges import understood
from app.runtime.events import WorkerEvent
from app.runtime.reopening import forget_texts, keep_texts
from app.runtime.saved_books import disk_state
from app.runtime.sessions import Removed, Session
from app.runtime.worker import EngineWorker
from app.ui.header import tab_heading
from app.ui.js_bridge import CLICKS, REDRAWN, WITH_ACT
from app.ui.library.drawing import LibraryDrawing, LibraryParts
from app.ui.library.find_tab import FindParts, build_find
from app.ui.library.page_viewer import NO_PAGE, Wanted, newest, preview
from app.ui.library.saved_tab import SavedParts, build_saved
from app.ui.library.view import EMPTY
from app.ui.reading.checklist_view import chosen
from app.ui.updates import Updates, lasting
from core.errors import CoreError

if TYPE_CHECKING:
    from app.ui.handlers import Handlers


class LibraryHandlers:
    """Handlers of its clicks."""

    def __init__(self, worker: EngineWorker, parts: LibraryParts, page: "Handlers") -> None:
        self._worker, self._parts, self._page = worker, parts, page

    def refresh(self, session_id: str) -> Updates:
        """The tab has become visible: update the budget, because the conversation has grown."""
        return LibraryDrawing(self._parts, self._worker.sessions.enter(session_id)).updates()

    @lasting
    def act(self, session_id: str, action: str | None) -> Iterator[Updates]:
        """One click: an action and its object, separated by colons."""
        verb, _, rest = (action or "").partition(":")
        session = self._worker.sessions.enter(session_id)
        key, _, detail = rest.partition(":")
        if verb == "preview":
            wanted = Wanted.parse(detail)
            yield {self._parts.preview: newest(session, "library", lambda: preview(session, key, *wanted))}
            return
        if verb == "dismiss" and key.isdecimal():
            session.uploads.dismiss(int(key))
            session.drop_files()
        try:
            change = changes(session.uploads.library, verb, key, detail)
            events: Iterator[WorkerEvent] = iter(())
            if verb == "fresh":
                self._worker.clear(session.id)
                yield self._page.talk(session)
                session.uploads.settled = Library()  # what did not fit before may fit now
                events = self._worker.read_book(session.id)
                yield self._page.fresh(session)
            elif verb == "keep":
                events = self._worker.save_book(session.id)
            elif verb == "reopen":
                events = self._worker.reading.reopen(session)
            elif verb == "keep-texts":
                keep_texts(session)
            elif verb == "forget-texts":
                forget_texts(session)
            elif verb == "recognise":
                events = self._worker.reading.recognise(session, key)
            elif verb == "forget-recognised":
                self._worker.reading.forget(session, key)
            elif verb == "stop-recognising":
                session.uploads.stop(int(key) if key.isdecimal() else 0)
            elif verb == "keep-not":
                disk_state(session).decline()
            elif change is not None:
                session.removed = None
                if verb in ("remove", "start-over", "only"):
                    session.removed = Removed(session.uploads.library, session.dialogue, session.carried)
                events = self._worker.arrange(session.id, change)
            elif verb == "undo" and session.removed is not None:
                events = self._worker.arrange(session.id, brought_back(session))
        except CoreError as error:
            session.uploads.error, events = error, iter(())
        if verb in ("remove", "start-over"):
            yield {self._parts.preview: NO_PAGE}
        yield from self._page.watch_library(session, events)


def brought_back(session: Session) -> Callable[[Library], Library]:
    """The change that undoes the newest removal; what was opened since stays, at the end. Its conversation goes on."""
    removed, session.removed = session.removed, None
    assert removed is not None, "nothing was removed"
    with session.lock:
        if session.dialogue is None:
            session.dialogue, session.carried = removed.dialogue, removed.carried
    before = removed.library
    return lambda now: Library((*before.books, *(one for one in now.books if before.index(one.key) is None)))


def changes(library: Library, verb: str, key: str, detail: str) -> Callable[[Library], Library] | None:
    """The change of a click; None: no change, or the book is no longer in the library.

    Raises:
        InvalidSetting: the typed part does not exist in the book.
    """
    if verb == "start-over":
        return lambda _: Library()
    if verb == "parts":
        chosen(library, detail)  # raises here, not on the engine's thread
        return lambda now: chosen(now, detail)
    index = library.index(key)
    if index is None:
        return None
    book = library.books[index]
    match verb:
        case "up" | "down":
            to = index + (1 if verb == "down" else -1)
            return (lambda now: now.move(index, to)) if 0 <= to < len(library.books) else None
        case "move" if detail.isdecimal() and len(detail) < 6:
            return lambda now: now.move(index, min(int(detail), len(now.books) - 1))
        case "remove":
            return lambda now: now.remove(index)
        case "only":
            return lambda _: Library((book,))
        case "choose":
            choice = understood(book.document, detail)
            return lambda now: now.choose(index, choice)
        case _:
            return None


def build_library_tab(choosing: gr.HTML) -> tuple[gr.Tab, LibraryParts, SavedParts, FindParts]:
    """The tab, its components, and those of the saved books and of Find. `choosing`: see `LibraryParts`."""
    with gr.Tab("Library", id="library", elem_id="library-tab") as tab, gr.Row(elem_id="library"):
        tab_heading("Library")
        act = gr.Textbox(visible=False, show_label=False)
        with gr.Column(elem_id="library-column", min_width=300, scale=1):
            find = build_find()
            drop = gr.File(
                show_label=False, label="Add to the library", elem_id="library-drop", file_count="multiple", height=72
            )
            coming = gr.HTML("", elem_id="library-incoming", js_on_load=CLICKS)
            library = gr.HTML(EMPTY, elem_id="library-list", js_on_load=CLICKS)
            kept = build_saved()
        with gr.Column(elem_id="library-page", min_width=300, scale=2):
            page = gr.HTML(NO_PAGE, elem_id="library-preview", js_on_load=CLICKS + REDRAWN)
    return tab, LibraryParts(act, coming, library, page, drop, choosing), kept, find


def listen(
    handlers: LibraryHandlers,
    session: gr.Textbox,
    others: tuple[gr.HTML, ...],
    outputs: list[Block],
    stream: dict[str, Any],
) -> None:
    """Clicks on the tab and on others with the same actions, such as the card beside the conversation.

    Args:
        stream: how long events run.
    """
    parts = handlers._parts
    for number, shown in enumerate((*others, parts.incoming, parts.library, parts.preview)):
        shown.click(
            handlers.act,
            [session, parts.act],
            outputs,
            api_name="library" if number == 0 else None,
            api_visibility="public" if number == 0 else "private",
            trigger_mode="multiple",  # accept a click while the model reads an earlier choice
            **(stream | {"js": WITH_ACT}),
        )
