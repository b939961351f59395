"""Handlers of small buttons that the page's script reports: one event, one action, one update of the page.

Gradio does not know these buttons' HTML, so the script sends action and object as JSON. All of it is checked, because
it comes from a browser.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.events import Dependency

from app.runtime.conversation_actions import Parcel, file_name
from app.runtime.worker import EngineWorker
from app.ui import render
from app.ui.handlers import Handlers
from app.ui.library.page_viewer import newest
from app.ui.parts import Parts
from app.ui.reading import evidence_chips
from app.ui.reading.answer_card import answer_card
from app.ui.updates import Updates
from core.errors import CoreError, InvalidSetting


@dataclass(frozen=True, slots=True, eq=False)
class ListParts:
    """The components of the list of conversations, and hidden ones."""

    search: gr.Textbox
    listing: gr.HTML
    act: gr.Textbox  # the script's request
    parcel: gr.Textbox  # a text for the script to save or copy
    now: gr.Button  # hidden, pressed by the script: an immediate action
    again: gr.Button  # hidden, pressed by the script: an answer
    quote: gr.Button  # hidden, pressed by the script: the page of a quotation


@dataclass(frozen=True, slots=True)
class Act:
    """A request of the script."""

    verb: str
    id: str  # of a conversation or an exchange
    text: str = ""

    @classmethod
    def parse(cls, packed: str) -> "Act":
        """Read the script's JSON.

        Raises:
            InvalidSetting: not a valid request.
        """
        try:
            data = json.loads(packed)
            verb, _, name = str(data["act"]).partition(":")
            return cls(verb, name, str(data.get("text", "")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidSetting("The page sent something unknown.", hint="Reload the page.") from error


class ChatActions:
    """The actions of small buttons."""

    def __init__(self, worker: EngineWorker, handlers: Handlers, parts: Parts, own: ListParts) -> None:
        self._worker, self._handlers, self._parts, self._own = worker, handlers, parts, own
        conversing = self._conversing = handlers.conversing
        self._changes: dict[str, Callable[[str, str], None]] = {
            "open": conversing.open,
            "delete-conversation": conversing.delete,
            "undelete": lambda session_id, _: conversing.undelete(session_id),
            "new": lambda session_id, _: conversing.new(session_id),
            "incognito": lambda session_id, _: conversing.incognito(session_id),
            "keep": lambda session_id, _: conversing.stop_editing(session_id),
            "switch": conversing.switch,
            "branch": conversing.branch,
            "delete": conversing.remove,
        }

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        """Components that an action may change."""
        return [*self._parts.of_card, *self._parts.of_conversation, self._parts.box, self._own.parcel]

    def now(self, session_id: str, packed: str) -> Updates:
        """Do the requested action and show the changed page."""
        parts = self._parts
        try:
            act = Act.parse(packed)
            updates = self._special(session_id, act)
            if updates is not None:
                return updates
            change = self._changes.get(act.verb)
            if change is None:
                raise InvalidSetting("The page sent something unknown.", hint="Reload the page.")
            change(session_id, act.id)
        except CoreError as error:
            known = self._worker.sessions.find(session_id)
            return (self._handlers.talk(known) if known else {}) | {parts.about: render.problem(error)}
        current = self._worker.sessions.get(session_id)
        shown = self._handlers.talk(current) | self._handlers.book(current)  # the card tells what the talk takes
        return shown | ({parts.box: ""} if act.verb == "keep" else {})

    def _special(self, session_id: str, act: Act) -> Updates | None:
        """Actions that do not change the chat."""
        conversing, parts = self._conversing, self._parts
        if act.verb in ("markdown", "json"):
            parcel = conversing.export(session_id, act.id, "json" if act.verb == "json" else "markdown")
            return {self._own.parcel: parcel.packed()}
        if act.verb == "card":
            return {self._own.parcel: self._card(session_id, act.id)}
        if act.verb == "copy":
            return {self._own.parcel: json.dumps({"copy": conversing.answer_text(session_id, act.id)})}
        if act.verb == "rename":
            conversing.rename(session_id, act.id, act.text)
            return {parts.listing: self._handlers.listing(self._worker.sessions.get(session_id))}
        if act.verb == "edit":
            question = conversing.edit(session_id, act.id)
            shown = self._handlers.talk(self._worker.sessions.get(session_id))
            return shown | {parts.box: question, self._own.parcel: json.dumps({"focus": True})}
        return None

    def quote(self, session_id: str, packed: str) -> Any:
        """The page with the words that a chip stands for; no update if another page was asked for meanwhile."""
        session = self._worker.sessions.find(session_id)
        try:
            act = Act.parse(packed)
        except InvalidSetting:
            return gr.skip()
        if session is None or act.verb != "quote":
            return gr.skip()
        return newest(session, "read", lambda: evidence_chips.opened(session, act.id, act.text))

    def _card(self, session_id: str, node_id: str) -> str:
        """The proof card of an answer, for the script to save."""
        session = self._worker.sessions.get(session_id)
        node = self._conversing.exchange(session_id, node_id)
        if node.exchange is None:
            raise InvalidSetting("This question has no answer yet.", hint="Press “Answer it”, then save its card.")
        name = f"triforce-proof-{file_name(node.question)}.html"
        return Parcel(name, "text/html", answer_card(session, node)).packed()

    def search(self, session_id: str, text: str) -> str:
        """The list, filtered by every word of a text."""
        session = self._worker.sessions.enter(session_id)
        session.search = text or ""
        return self._handlers.listing(session)


def build_list() -> ListParts:
    """The section at the side, and the hidden components."""
    with gr.Accordion("Conversations", open=True, elem_id="conversations"):
        search = gr.Textbox(
            show_label=False, label="Search conversations", placeholder="Search", max_lines=1, elem_id="conv-search"
        )
        listing = gr.HTML("", elem_id="conv-list", apply_default_css=False)
    act = gr.Textbox(visible=False, show_label=False)
    parcel = gr.Textbox(visible=False, show_label=False)
    now = gr.Button("Now", elem_id="act-now")
    again = gr.Button("Again", elem_id="act-again")
    quote = gr.Button("Quote", elem_id="act-quote")
    return ListParts(search, listing, act, parcel, now, again, quote)


def wire_list(
    actions: ChatActions,
    again: Callable[..., Iterator[Updates]],
    own: ListParts,
    parts: Parts,
    settings: Sequence[gr.components.Component],
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> Dependency:
    """Connect the events; `stream` and `at_once` are how the page's events run. Returns the event for an answer.

    Args:
        again: writes the answer.
    """
    done = own.now.click(
        actions.now,
        [parts.session, own.act],
        actions.outputs,
        api_name="act",
        **{**at_once, "js": TAKE.format("#act-now")},
    )
    done.then(None, own.parcel, own.parcel, js="(parcel) => window.triforceChat.deliver(parcel)")
    own.quote.click(
        actions.quote,
        [parts.session, own.act],
        parts.where.page,
        api_name="quote",
        trigger_mode="multiple",  # a page may take seconds to draw
        **{**at_once, "js": TAKE.format("#act-quote")},
    )
    own.search.change(actions.search, [parts.session, own.search], own.listing, api_name="search", **at_once)
    return own.again.click(
        again,
        [parts.session, own.act, *settings],
        parts.of_answer,
        api_name="regenerate",
        **{**stream, "js": TAKE.format("#act-again")},
    )


TAKE = "(id, act, ...rest) => [window.triforceSession(), window.triforceChat.take('{}'), ...rest]"
