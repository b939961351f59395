"""The books on disk, in the tab "Library": whether books are saved, their size limit, and their list."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from app.runtime.saved_books import SavedBooks
from app.ui import render
from app.ui.js_bridge import CLICKS, WITH_ACT
from app.ui.library.saved_view import SavedLine, saved_list
from app.ui.updates import Updates, lasting
from core.errors import CoreError, InvalidSetting

GIB = 1 << 30
CHOICES = [("Ask, with the size", "ask"), ("Always", "always"), ("Never", "never")]


@dataclass(frozen=True, slots=True, eq=False)
class SavedParts:
    """The components."""

    act: gr.Textbox
    keeping: gr.Radio
    cap: gr.Number
    listing: gr.HTML


class SavedHandlers:
    """One method per event. The list is drawn from the folder every time: other programs use it too."""

    def __init__(self, saved_books: SavedBooks, parts: SavedParts) -> None:
        self._saved_books, self._parts = saved_books, parts

    @lasting
    def show(self, _session_id: str) -> Iterator[Updates]:
        """The tab has become visible."""
        yield self.drawn()

    def act(self, _session_id: str, action: str | None) -> dict[Any, Any]:
        """A click on the list."""
        verb, _, book_id = (action or "").partition(":")
        folder = self._saved_books.folder
        if verb == "unkeep" and folder is not None:
            for book in folder.books():
                if book.id == book_id:
                    folder.remove(book)
        return self.drawn()

    def choose(self, _session_id: str, keeping: Any, cap_gib: float | None) -> dict[Any, Any]:
        """Set whether books are saved, and their size limit."""
        folder = self._saved_books.folder
        if folder is None:
            return self.drawn()
        try:
            if cap_gib is None:
                raise InvalidSetting("The size limit is empty.", hint="Give it in GiB, for example 40.")
            folder.choose(replace(folder.settings, keeping=keeping, cap_bytes=int(cap_gib * GIB)))
        except CoreError as error:
            return self.drawn(render.problem(error))
        return self.drawn()

    def drawn(self, problem: str = "") -> dict[Any, Any]:
        """Updates of everything from the folder's state."""
        folder = self._saved_books.folder
        if folder is None:
            return {self._parts.listing: '<p class="quiet">This start keeps no books.</p>'}
        lines = [
            SavedLine(book.id, book.name, book.label.num_tokens, book.size_bytes, book.used, book.label.read_seconds)
            for book in folder.books()
        ]
        settings = folder.settings
        return {
            self._parts.listing: problem + saved_list(lines, settings.cap_bytes, folder.notices),
            self._parts.keeping: settings.keeping,
            self._parts.cap: round(settings.cap_bytes / GIB, 2),
        }


def build_saved() -> SavedParts:
    """The components, initially folded."""
    with gr.Accordion("Saved books", open=False, elem_id="kept"):
        act = gr.Textbox(visible=False, show_label=False)
        keeping = gr.Radio(
            CHOICES,
            value="ask",
            label="Save what was read",
            info="A saved book opens in seconds after a restart. Its text is then on this machine’s disk.",
            elem_id="keeping",
        )
        cap = gr.Number(
            40, label="Room, GiB", info="The books unused for longest go first.", minimum=0, elem_id="kept-room"
        )
        listing = gr.HTML("", elem_id="kept-list", js_on_load=CLICKS)
    return SavedParts(act, keeping, cap, listing)


def wire_saved(
    saved_books: SavedBooks,
    parts: SavedParts,
    tab: gr.Tab,
    session: gr.Textbox,
    at_once: dict[str, Any],
    stream: dict[str, Any],
) -> None:
    """Connect each event to its handler."""
    handlers, shown = SavedHandlers(saved_books, parts), [parts.listing, parts.keeping, parts.cap]
    quiet: dict[str, Any] = {"api_visibility": "private"}
    tab.select(handlers.show, session, shown, **quiet, **stream)
    parts.listing.click(handlers.act, [session, parts.act], shown, **quiet, **(at_once | {"js": WITH_ACT}))
    for event in (parts.keeping.input, parts.cap.submit, parts.cap.blur):
        event(handlers.choose, [session, parts.keeping, parts.cap], shown, **quiet, **at_once)
