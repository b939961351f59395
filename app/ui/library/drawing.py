"""The components of the tab Library that show the open documents, and their updates."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr
from gradio.blocks import Block

from app.runtime.sessions import Session
from app.ui.library.view import incoming, listing, listing_state
from app.ui.reading.checklist_view import checklist

if TYPE_CHECKING:
    from app.ui.updates import Updates


@dataclass(frozen=True, slots=True, eq=False)
class LibraryParts:
    """The components that events change."""

    act: gr.Textbox  # the clicked action, for programs; a browser sends its own
    incoming: gr.HTML
    library: gr.HTML
    preview: gr.HTML
    drop: gr.File
    choosing: gr.HTML  # on the tab Read: what is read of a library that is too long

    @property
    def of_library(self) -> list[Block]:
        """Components to update after a change of the library."""
        return [self.incoming, self.library, self.preview, self.choosing]


class LibraryDrawing:
    """The tab's updates during one event: the list is redrawn only after a change."""

    def __init__(self, parts: LibraryParts, session: Session) -> None:
        self._parts, self._session = parts, session
        self._state: tuple[object, ...] = ()
        self._incoming: str | None = None

    def updates(self) -> "Updates":
        """Updates since the last call."""
        new: Updates = {}
        if (state := listing_state(self._session)) != self._state:
            self._state = state
            new[self._parts.library] = listing(self._session)
            new[self._parts.choosing] = checklist(self._session)
        if (coming := incoming(self._session)) != self._incoming:
            self._incoming = new[self._parts.incoming] = coming
        return new
