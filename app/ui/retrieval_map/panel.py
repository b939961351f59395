"""The retrieval map: the strip below the figures of an answer, and the page that a click opens beside the chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.blocks import Block

from app.runtime.events import AnswerBegun, PagesLoaded, WorkerEvent
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.js_bridge import CLICKS, CLOSES, REDRAWN, WITH_ACT
from app.ui.library.page_viewer import Wanted, newest, preview
from app.ui.retrieval_map.view import opened_page, where


@dataclass(frozen=True, slots=True, eq=False)
class WhereParts:
    """The components that events change."""

    strip: gr.HTML
    page: gr.HTML

    @property
    def all(self) -> list[Block]:
        """Both components."""
        return [self.strip, self.page]

    def updates(self, session: Session | None) -> dict[Block, Any]:
        """The present strip; an opened page closes, and one that is being drawn is not shown."""
        if session is not None:
            session.num_opened["read"] += 1
        return {**self.of_strip(session), self.page: ""}

    def of_strip(self, session: Session | None) -> dict[Block, Any]:
        """The present strip; an opened page stays."""
        return {self.strip: where(session) if session else ""}

    def follow(self, session: Session, events: Sequence[WorkerEvent]) -> dict[Block, Any]:
        """Updates for an answer's events; when an answer begins, the script closes a page of what was loaded before."""
        new = any(isinstance(event, AnswerBegun | PagesLoaded) for event in events)
        return {self.strip: where(session)} if new else {}


def build_where() -> WhereParts:
    """The components; the page is rendered later, beside the conversation."""
    strip = gr.HTML("", elem_id="where", js_on_load=CLICKS + REDRAWN)
    page = gr.HTML("", elem_id="where-page", js_on_load=CLICKS + CLOSES + REDRAWN, render=False)
    return WhereParts(strip, page)


def listen_where(
    worker: EngineWorker, parts: WhereParts, session: gr.Textbox, act: gr.Textbox, at_once: dict[str, Any]
) -> None:
    """Clicks on the strip and on the open page. `at_once`: how quick events run."""

    def show(session_id: str, action: str | None) -> Any:
        session = worker.sessions.find(session_id)
        return "" if session is None else newest(session, "read", lambda: opened(session, action or ""))

    for number, shown in enumerate((parts.strip, parts.page)):
        shown.click(
            show,
            [session, act],
            parts.page,
            api_name="where" if number == 0 else None,
            api_visibility="public" if number == 0 else "private",
            trigger_mode="multiple",  # accept a sharper image while one is drawn
            **(at_once | {"js": WITH_ACT}),
        )


def opened(session: Session, action: str) -> str:
    """The page that a click opens; empty if the action names none."""
    verb, _, rest = action.partition(":")
    if verb == "preview":
        key, _, detail = rest.partition(":")
        return preview(session, key, *Wanted.parse(detail))
    return opened_page(session, Wanted.parse(rest)) if verb == "page" and rest[:1].isdigit() else ""
