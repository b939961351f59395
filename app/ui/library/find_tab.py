"""Find at the top of the tab "Library": its components, and what a search does. It needs no model."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.context.find import Words, find
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.js_bridge import CLICKS
from app.ui.library.find_view import FIELD, MOST_SHOWN, found

# The newest search, also where the event waited for the one before and something else was clicked meanwhile.
WITH_SEARCH = "(id, act) => [window.triforceSession(), window.triforceFind.newest]"


@dataclass(frozen=True, slots=True, eq=False)
class FindParts:
    """The field, and the hits."""

    field: gr.HTML
    hits: gr.HTML


def build_find() -> FindParts:
    """The components."""
    field = gr.HTML(FIELD, elem_id="find", js_on_load=CLICKS)
    return FindParts(field, gr.HTML("", elem_id="found", js_on_load=CLICKS))


def searched(session: Session, action: str) -> str:
    """The hits of `find:NUMBER:OPTIONS:WORDS`; the number of hits to show comes from a browser and is bounded."""
    verb, _, rest = action.partition(":")
    number, _, rest = rest.partition(":")
    options, _, text = rest.partition(":")
    if verb != "find" or not number.isdecimal():
        return ""
    words, books = Words(text, exact="exact" in options, whole="whole" in options), session.uploads.open_books
    return found(words, books, find(words, books, min(int(number[:9]), MOST_SHOWN)))


def listen_find(
    worker: EngineWorker, parts: FindParts, session: gr.Textbox, act: gr.Textbox, at_once: dict[str, Any]
) -> None:
    """Searches. `at_once`: how quick events run."""

    def show(session_id: str, action: str | None) -> str:
        return searched(worker.sessions.enter(session_id), action or "")

    searches = at_once | {"js": WITH_SEARCH, "trigger_mode": "always_last"}  # a search during another is not lost
    parts.field.click(show, [session, act], parts.hits, api_name="find", **searches)
