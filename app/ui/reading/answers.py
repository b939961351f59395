"""Handlers of an answer: ask, follow it, and update the components around it when it has ended."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.conversations.exchange import Exchange
from app.runtime.events import Ready, WorkerEvent
from app.runtime.sessions import NoBook, Session
from app.runtime.throttle import LIVELY, Metronome, UpdateIntervals, in_batches, intervals_beside
from app.runtime.worker import EngineWorker
from app.ui import render
from app.ui.handlers import Handlers
from app.ui.reading.chat_view import ChatView, Message, conversation, shown
from app.ui.reading.live_strip import LiveStrip
from app.ui.reading.settings import SettingsForm
from app.ui.reading.waiting import AnswerWait
from app.ui.updates import Updates, lasting
from core.errors import CoreError
from core.generation.events import RoundDone


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is shown with while it is written."""

    method: str
    past: list[Message]
    question: str
    before: Exchange | None = None  # the answer that it continues
    left: str | None = None  # goes back into the box if there is no answer
    editing: str | None = None  # the exchange that it replaces
    conversation: tuple[int, str] = (0, "")  # in which it was asked, see `conversation_of`


_TOLD = itertools.count()  # the same words told again are another value: a reader may have closed the first


class Answers:
    """One method per event. `fields` are the values of the settings, see `SettingsForm.of`."""

    def __init__(self, worker: EngineWorker, page: Handlers) -> None:
        self._worker, self._page, self._parts = worker, page, page.parts

    @lasting
    def ask(self, session_id: str, question: str, method: str, *fields: Any) -> Iterator[Updates]:
        """Answer a question; if there is no answer, it goes back into the box."""
        current, asked = self._worker.sessions.find(session_id), None
        editing, head = (current.editing, current.head) if current else (None, "")
        try:
            form, current = SettingsForm.of(method, fields), self._worker.sessions.get(session_id)
            config = form.config()
            parent = self._page.conversing.parent_for(current, question)
            events = self._worker.answer(session_id, question, config, parent=parent, own_seed=form.own_seed)
            asked = Asked(
                config.method,
                self._past(current, parent),
                question.strip(),
                left=question,
                editing=editing,
                conversation=conversation_of(current),
            )
            yield from self._watch_answer(session_id, asked, events)
        except CoreError as error:
            broke_off = current is not None and current.head != head  # the chat shows question and partial answer
            if current is not None and not broke_off:
                current.editing = editing
            yield self._no_answer(session_id, error, None if broke_off else question)
        if current is not None and current.answering is asked:
            current.answering = None  # the page has its end: one that was closed does not come here

    @lasting
    def again(self, session_id: str, act: str, method: str, *fields: Any) -> Iterator[Updates]:
        """Answer a question again, or continue the last answer; `act` comes from the page's script."""
        try:
            form, (verb, node_id) = SettingsForm.of(method, fields), verb_and_node(act)
            config = form.config()
            current = self._worker.sessions.get(session_id)
            path = current.dialogue.path if current.dialogue else ()
            if verb == "continue":
                node_id = ""  # only the last answer can be continued
            node = next((one for one in reversed(path) if node_id in ("", one.id)), None)
            if verb == "continue":
                events = self._worker.go_on(session_id, config, own_seed=form.own_seed)
            else:
                events = self._worker.regenerate(session_id, config, node_id or None, own_seed=form.own_seed)
            assert node is not None, "an answer to nothing"
            before = node.exchange if verb == "continue" else None
            asked = Asked(config.method, self._past(current, node.parent), node.question, before)
            yield from self._watch_answer(session_id, asked, events)
        except CoreError as error:
            yield self._no_answer(session_id, error, None)

    @lasting
    def follow(self, session_id: str) -> Iterator[Updates]:
        """The page has reloaded: go on showing the answer that is being written, from its beginning."""
        current = self._worker.sessions.find(session_id)
        asked = current.answering if current else None
        if current is None:
            return
        if not isinstance(asked, Asked) or not self._worker.has_answer(session_id):
            current.answering = None
            current.followed = isinstance(asked, Asked)
            if isinstance(asked, Asked) and asked.left and is_lost(current, asked):
                current.editing = asked.editing
                yield {self._parts.box: idle_box(asked.left)}
            if not current.drawn_amid_answer:
                return  # what the reader has changed meanwhile stays
            current.followed = True
            yield self._page.conversation_of(current)  # it has ended since the page was drawn
            return
        current.followed = True
        try:
            for update in self._watch_answer(session_id, asked, self._worker.reading.follow_answer(current)):
                yield {part: value for part, value in update.items() if part is not self._parts.told}
        except CoreError as error:
            failed = self._no_answer(session_id, error, asked.left)
            yield {part: value for part, value in failed.items() if part is not self._parts.told}

    def _past(self, current: Session, parent: str | None) -> list[Message]:
        dialogue = current.dialogue
        if dialogue is None:
            return []
        return shown(current, dialogue.path_to(dialogue.tip if parent is None else parent))

    def clear(self, session_id: str) -> Updates:
        """Begin a new conversation about the same book."""
        self._worker.clear(session_id)
        current = self._worker.sessions.get(session_id)
        return {self._parts.strip: LiveStrip().html()} | self._page.around(current)

    def _watch_answer(self, session_id: str, asked: Asked, events: Iterator[WorkerEvent]) -> Iterator[Updates]:
        """Show an answer while it is written; a page that reloads meanwhile goes on with `follow`."""
        parts, strip = self._parts, LiveStrip(asked.method)
        chat = ChatView(asked.past, asked.question, asked.before)
        current = self._worker.sessions.get(session_id)
        current.answering, number, shown = asked, current.num_cleared, current.dialogue_id
        beside = not current.fits  # a conversation about another book is shown
        box = gr.update(submit_btn=False, stop_btn=True)
        yield {parts.strip: strip.html(), parts.chat: chat.messages(), parts.box: box, parts.told: ""}
        intervals, wait = self._intervals(), AnswerWait(current)
        figures = Metronome(intervals.figures)
        for batch in in_batches(events, intervals.text):
            strip.apply(batch)
            if beside and current.dialogue_id != shown:
                chat, beside = ChatView([], asked.question, asked.before), False  # its book began another conversation
            chat.wait = wait.apply(batch).html()
            written: Updates = {parts.chat: chat.apply(batch).messages()}
            if figures.due() or not all(isinstance(event, RoundDone) for event in batch):
                written[parts.strip] = strip.html()
            if current.num_cleared == number:  # otherwise the page shows another conversation by now
                yield written | parts.where.follow(current, batch)
        if current.num_cleared != number:
            # The figures of this answer may have been drawn after those of the other conversation.
            strip_now = {} if self._worker.has_answer(session_id) else self._page.conversation_of(current)
            yield {parts.box: idle_box()} | {part: now for part, now in strip_now.items() if part is parts.strip}
            return
        if not chat.answered:
            current.editing = asked.editing
        left = None if chat.answered else asked.left
        updates: Updates = {parts.strip: strip.end().html(), parts.box: idle_box(left)}
        updates[parts.chat] = conversation(current)
        yield updates | parts.where.of_strip(current)

    def _intervals(self) -> UpdateIntervals:
        state = self._worker.state
        if not isinstance(state, Ready) or state.info.plan.device.value != "cpu":
            return LIVELY
        from core.ops.threads import most_threads  # imports torch, as the engine has

        return intervals_beside(most_threads(), state.machine.num_cores)

    def answered(self, session_id: str) -> Updates:
        """Update the components around an answer that has ended in any way.

        A page of the book that the reader has opened meanwhile stays open.
        """
        current = self._worker.sessions.find(session_id)
        return self._page.around(current, page_stays=True) | (self._page.book(current) if current else {})

    def followed(self, session_id: str) -> Updates:
        """As `answered`, if the page that has reloaded had an answer to follow; else nothing: it would draw over a book
        that opens now."""
        current = self._worker.sessions.find(session_id)
        if current is None or not current.followed:
            return {self._parts.box: gr.skip()}
        current.followed = False
        return self.answered(session_id)

    def broken(self, session_id: str) -> Updates:
        """An event of an answer failed in Gradio: another question can be asked."""
        current = self._worker.sessions.find(session_id)
        if current is None or self._worker.has_answer(session_id):
            return {self._parts.box: gr.skip()}
        shown = self._page.conversation_of(current)
        return {self._parts.strip: shown[self._parts.strip], self._parts.box: idle_box()}

    def _no_answer(self, session_id: str, error: CoreError, question: str | None) -> Updates:
        parts, current = self._parts, self._worker.sessions.find(session_id)
        if current is not None:
            current.told_no_book = isinstance(error, NoBook)
        told = f'<div class="told" data-number="{next(_TOLD)}">{render.problem(error, closes=True)}</div>'
        strip = LiveStrip().html()
        return {parts.strip: strip, parts.chat: conversation(current), parts.box: idle_box(question), parts.told: told}


def conversation_of(session: Session) -> tuple[int, str]:
    """Changes when the page shows another conversation."""
    return session.num_cleared, session.dialogue_id


def is_lost(session: Session, asked: Asked) -> bool:
    """A question without an answer, asked in the shown conversation: a reload ended the extraction it waited for."""
    path = session.dialogue.path if session.dialogue else ()
    recorded = bool(path) and path[-1].question == asked.question
    return not recorded and asked.conversation == conversation_of(session)


def verb_and_node(act: str) -> tuple[str, str]:
    """Action and exchange sent by the page's script; anything else means the last question again."""
    try:
        verb, _, node_id = str(json.loads(act)["act"]).partition(":")
    except (ValueError, TypeError, KeyError, RecursionError):
        return "again", ""
    return verb, node_id


def idle_box(question: str | None = None) -> dict[str, Any]:
    """The question box ready for input; `question` puts a question back."""
    if question is None:
        return gr.update(submit_btn=True, stop_btn=False)
    return gr.update(submit_btn=True, stop_btn=False, value=question)
