"""What the page does on each event: a verb of the worker, its events through a view, updates of components."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.blocks import Block

from app.context.samples import Sample, open_questions
from app.context.upload_files import Claim, claim, forget
from app.documents import Extracting
from app.remote.names import REMOTE, method_label, theirs
from app.runtime.conversation_actions import Conversing
from app.runtime.events import BookOpened, Pause, Ready, ShelfClosed, WorkerEvent
from app.runtime.sessions import Session
from app.runtime.throttle import LIVELY, Metronome, Pace, pace_beside, paced
from app.runtime.worker import EngineWorker
from app.ui import render
from app.ui.header import limits_note, masthead, notice
from app.ui.library.drawing import LibraryParts, ShelfDrawing
from app.ui.reading.book_view import BookView
from app.ui.reading.chat_view import ChatView, Message, conversation, shown
from app.ui.reading.conversation_view import book_notice, conversation_list, editing_notice
from app.ui.reading.live_strip import LiveStrip
from app.ui.reading.settings import AS_CHOSEN, AS_CHOSEN_CHOICE, decoding_choices, variants, wish
from app.ui.retrieval_map.panel import WhereParts
from app.ui.updates import Updates
from core.decoding.registry import METHODS, default_method
from core.errors import CoreError
from core.generation.events import RoundDone

# Of two updates of one component in one frame Gradio keeps the later, even one that says nothing about its value.
FRAME_SECONDS = 0.3

WELCOME = """<div class="welcome"><h2>Ask a whole book</h2>
<ol><li><b>Open a book, or several.</b> Drop PDF, EPUB, Word, web page, text or Markdown files, or choose a sample.</li>
<li><b>They are read once.</b> All of it stays in the model’s context: no summaries, no snippets.</li>
<li><b>Ask.</b> Watch how fast the exact answer comes, and why.</li></ol></div>"""
KEYS = (
    '<button type="button" class="keys-button" data-keys="" title="Keys (?)" aria-label="Keys">?</button>'
    '<dialog id="keys-help" aria-label="Keys"><form method="dialog"><h3>Keys</h3><dl>'
    "<dt><kbd>Enter</kbd></dt><dd>send the question</dd>"
    "<dt><kbd>Shift</kbd> <kbd>Enter</kbd></dt><dd>a new line</dd>"
    "<dt><kbd>Esc</kbd></dt><dd>stop the answer</dd>"
    "<dt><kbd>/</kbd> or <kbd>Ctrl</kbd> <kbd>K</kbd></dt><dd>go to the question</dd>"
    "<dt><kbd>Alt</kbd> <kbd>N</kbd></dt><dd>a new conversation</dd>"
    "<dt><kbd>?</kbd></dt><dd>these keys</dd>"
    "</dl><button>Close</button></form></dialog>"
)
BOOK_OPEN = """<div class="welcome"><h2>The book is open</h2>
<p>Ask anything about it. You can ask before the reading has ended: the answer then starts right after.</p></div>"""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The components that change."""

    session: gr.Textbox
    head: gr.HTML
    banner: gr.HTML
    card: gr.HTML
    stop_reading: gr.Button
    read_on: gr.Button
    drop: gr.File
    library: LibraryParts
    where: WhereParts
    method: gr.Radio
    strip: gr.HTML
    chat: gr.Chatbot
    suggestions: tuple[gr.Button, ...]
    box: gr.Textbox
    variant: gr.Dropdown
    listing: gr.HTML  # of conversations
    about: gr.HTML  # which book to open for the shown one
    editing: gr.HTML  # that the box holds a question that is being changed
    note: gr.HTML  # under the question box: what the model cannot do

    @property
    def of_book(self) -> list[Block]:
        """What opening and reading a book changes."""
        shelf = [self.drop, self.library.drop, *self.library.of_shelf]
        return [self.card, self.stop_reading, self.read_on, *shelf, *self.of_conversation]

    @property
    def of_answer(self) -> list[Block]:
        """What an answer changes while it is written. Few: Gradio makes anew whatever an update leaves out."""
        return [self.strip, self.chat, self.box, self.where.strip]

    @property
    def of_model(self) -> list[Block]:
        """What another model changes."""
        return [self.head, self.banner, self.method, self.variant, self.note]

    @property
    def after_answer(self) -> list[Block]:
        """What is different once it is written, or was refused."""
        return [self.card, self.stop_reading, self.read_on, *self.of_talk]

    @property
    def of_conversation(self) -> list[Block]:
        """What another conversation changes."""
        return [self.chat, self.strip, *self.of_talk]

    @property
    def of_talk(self) -> list[Block]:
        """What stands around the chat."""
        return [*self.suggestions, self.listing, self.about, self.editing, *self.where.all]


class Handlers:
    """One method per event of the page. Every generator here belongs to one click or one dropped file."""

    def __init__(self, worker: EngineWorker, samples: tuple[Sample, ...], parts: Parts) -> None:
        self._worker, self._samples, self._parts = worker, samples, parts
        self.conversing = Conversing(worker)

    # -------------------- the page is loaded

    def enter(self, session_id: str) -> Updates:
        """Find or make the page's session and show what it holds."""
        parts, current = self._parts, self._worker.sessions.enter(session_id)
        self.conversing.arrive(current)
        return {
            parts.session: current.id,  # for programs; a browser sends its own
            parts.card: BookView(current).html(),
            **ShelfDrawing(parts.library, current).updates(),
        } | self.talk(current)

    def settle(self, session_id: str) -> Iterator[Updates]:
        """An answer that was being written when the page was reloaded has lost its page: it has ended, and is shown.

        Nothing is shown beside an answer that the reader has asked for since.
        """
        current = self._worker.sessions.find(session_id)
        if current is not None and self._worker.settle_answer(session_id):
            yield self.talk(current)

    def resume(self, session_id: str) -> Iterator[Updates]:
        """Show once more what the session holds, then read what is left of the book."""
        yield from self.settle(session_id)
        time.sleep(FRAME_SECONDS)
        yield from self.read_on(session_id)

    def talk(self, current: Session) -> Updates:
        """The conversation a session shows, and everything around it."""
        parts, strip = self._parts, LiveStrip()
        if current.exchanges and current.book:
            last = current.exchanges[-1]
            strip.recall(last.finished, current.book.num_tokens, last.num_reread)
        placeholder = BOOK_OPEN if current.book else WELCOME
        return {
            parts.chat: gr.update(value=conversation(current), placeholder=placeholder),
            parts.strip: strip.html(),
        } | self._around(current)

    def _around(self, current: Session | None) -> Updates:
        """The list, what stands above and below the chat, and where in the book its last answer looks."""
        parts = self._parts
        return {
            parts.listing: self.listing(current),
            parts.about: book_notice(current, self._samples),
            parts.editing: editing_notice(current),
            **parts.where.updates(current),
        } | self._suggest(current)

    def listing(self, current: Session | None) -> str:
        """The list of conversations, narrowed to what the page searches for."""
        search = current.search if current else ""
        return conversation_list(self._worker.conversations.listing(search), current, search=search)

    def watch_model(self, session_id: str) -> Iterator[Updates]:
        """Show the model's state, and again when loading has ended."""
        for state in self._worker.states():
            if isinstance(state, Pause):
                yield {self._parts.head: gr.skip()}
                continue
            if (current := self._worker.sessions.find(session_id)) is not None:
                current.model = state
            updates: Updates = {self._parts.head: masthead(state), self._parts.banner: notice(state)}
            if isinstance(state, Ready):
                updates[self._parts.note] = below(limits_note(state.info.limits))
            if isinstance(state, Ready) and state.info.capabilities.methods is not None:
                updates |= self._own_methods(state.info.capabilities.methods)
            elif isinstance(state, Ready) and not state.info.has_draft:
                updates[self._parts.method] = gr.update(
                    choices=decoding_choices(has_draft=False), value=default_method(has_draft=False)
                )
                updates[self._parts.variant] = gr.update(choices=variants(has_draft=False), value=AS_CHOSEN)
            yield updates

    def model_changed(self, session_id: str, method: str) -> Iterator[Updates]:
        """Another model was chosen, perhaps: what it can do, and what the chosen method becomes with it."""
        parts = self._parts
        for updates in self.watch_model(session_id):
            state = self._worker.state
            if isinstance(state, Ready) and state.info.has_draft:
                choices = decoding_choices(has_draft=True)
                chosen = method if method in dict(choices).values() else default_method(has_draft=True)
                updates[parts.method] = gr.update(choices=choices, value=chosen)
                updates[parts.variant] = gr.update(choices=variants(has_draft=True))
            yield updates

    def look_again(self, session_id: str, method: str) -> Iterator[Updates]:
        """The reader comes back to the page: another one may have changed the model meanwhile."""
        current = self._worker.sessions.find(session_id)
        if current is not None and current.model is not self._worker.state:
            yield from self.model_changed(session_id, method)

    def catch_up(self, session_id: str) -> Iterator[Updates]:
        """Read the book again if another model has read it."""
        current = self._worker.sessions.find(session_id)
        if current is not None and current.is_stale:
            yield from self.read_on(session_id)

    def _own_methods(self, methods: Sequence[str]) -> Updates:
        offered = [name for name in methods if theirs(name) in METHODS] or [REMOTE]
        choices = [(method_label(name), name) for name in offered]
        return {
            self._parts.method: gr.update(choices=choices, value=choices[0][1]),
            self._parts.variant: gr.update(choices=[AS_CHOSEN_CHOICE], value=AS_CHOSEN),
        }

    # -------------------- a book

    def open_upload(self, session_id: str, paths: list[str] | None) -> Iterator[Updates]:
        """Files were dropped. Their copies on disk go when their text is in memory, or when they cannot be read."""
        files = [claim(Path(path)) for path in paths or ()]
        try:
            yield {self._parts.drop: None, self._parts.library.drop: None}
            current = self._worker.sessions.enter(session_id)
            events = self._worker.open_books(current.id, [file.own for file in files])
            yield from self.watch_shelf(current, forgetting(events, files))
        finally:
            forget(files)

    def open_sample(self, sample: Sample) -> Callable[[str], Iterator[Updates]]:
        """The handler of one sample's button."""

        def open_it(session_id: str) -> Iterator[Updates]:
            current = self._worker.sessions.enter(session_id)
            yield from self.watch_shelf(current, self._worker.open_books(current.id, [sample.file]))

        return open_it

    def read_on(self, session_id: str) -> Iterator[Updates]:
        """Read what is left of the book, if anything is."""
        try:
            current = self._worker.sessions.get(session_id)
        except CoreError as error:
            current = Session("")
            current.intake.error = error
            yield {self._parts.card: BookView(current).html()}
            return
        yield from self.watch_shelf(current, self._worker.read_book(current.id))

    def watch_shelf(self, current: Session, events: Iterator[WorkerEvent]) -> Iterator[Updates]:
        """Show the shelf and the reading while something happens to them; another event may show the same meanwhile."""
        drawing = ShelfDrawing(self._parts.library, current)
        yield self._book(current) | drawing.updates()
        try:
            for batch in paced(events):
                changed = any(isinstance(event, BookOpened | ShelfClosed) for event in batch)
                yield self._book(current) | drawing.updates() | (self.fresh(current) if changed else {})
        except CoreError as error:
            current.intake.error = error
        yield self._book(current) | drawing.updates()

    def _book(self, current: Session) -> Updates:
        view = BookView(current)
        return {
            self._parts.card: view.html(),
            self._parts.stop_reading: gr.update(visible=view.reading),
            self._parts.read_on: gr.update(visible=view.paused),
        }

    def fresh(self, current: Session) -> Updates:
        """Another book: the conversation as far as it goes on, and nothing loaded for its answers."""
        return self.talk(current)

    def _suggest(self, current: Session | None) -> Updates:
        """Questions for a sample book that were not asked yet."""
        buttons = self._parts.suggestions
        names = current.book.names if current and current.book and current.fits else ()
        asked = tuple(exchange.question for exchange in current.exchanges) if current else ()
        found = [one for name in names for one in open_questions(self._samples, name, asked, len(buttons))]
        offered = [*found, *[""] * len(buttons)][: len(buttons)]
        return {
            button: gr.update(value=text, visible=bool(text)) for button, text in zip(buttons, offered, strict=True)
        }

    # -------------------- an answer

    def ask(self, session_id: str, question: str, method: str, *fields: Any) -> Iterator[Updates]:
        """Answer a question; it goes back into the box when there is no answer."""
        current = self._worker.sessions.find(session_id)
        editing, head = (current.editing, head_of(current)) if current else (None, "")
        try:
            wanted, current = wish(method, *fields), self._worker.sessions.get(session_id)
            parent = self.conversing.parent_for(current, question)
            events = self._worker.answer(session_id, question, wanted.config, parent=parent, own_seed=wanted.own_seed)
            view = ChatView(self._past(current, parent), question.strip())
            strip = LiveStrip(wanted.config.method)
            yield from self._watch_answer(session_id, strip, view, question, events, editing)
        except CoreError as error:
            broke_off = current is not None and head_of(current) != head  # question and beginning stand in the chat
            if current is not None and not broke_off:
                current.editing = editing
            yield self._no_answer(session_id, error, None if broke_off else question)

    def again(self, session_id: str, act: str, method: str, *fields: Any) -> Iterator[Updates]:
        """Answer a question once more, or continue the last answer; `act` is what the page's script sends."""
        try:
            wanted, (verb, node_id) = wish(method, *fields), told(act)
            current = self._worker.sessions.get(session_id)
            path = current.dialogue.path if current.dialogue else ()
            if verb == "continue":
                node_id = ""  # only the last answer goes on
            node = next((one for one in reversed(path) if node_id in ("", one.id)), None)
            if verb == "continue":
                events = self._worker.go_on(session_id, wanted.config, own_seed=wanted.own_seed)
            else:
                events = self._worker.regenerate(session_id, wanted.config, node_id or None, own_seed=wanted.own_seed)
            assert node is not None, "an answer to nothing"
            before = node.exchange if verb == "continue" else None
            view = ChatView(self._past(current, node.parent), node.question, before)
            yield from self._watch_answer(session_id, LiveStrip(wanted.config.method), view, None, events)
        except CoreError as error:
            yield self._no_answer(session_id, error, None)

    def _past(self, current: Session, parent: str | None) -> list[Message]:
        dialogue = current.dialogue
        if dialogue is None:
            return []
        return shown(current, dialogue.path_to(dialogue.tip if parent is None else parent))

    def clear(self, session_id: str) -> Updates:
        """A new conversation about the same book."""
        self._worker.clear(session_id)
        current = self._worker.sessions.get(session_id)
        return {self._parts.strip: LiveStrip().html()} | self._around(current)

    def _watch_answer(
        self,
        session_id: str,
        strip: LiveStrip,
        chat: ChatView,
        question: str | None,
        events: Iterator[WorkerEvent],
        editing: str | None = None,
    ) -> Iterator[Updates]:
        parts = self._parts
        current = self._worker.sessions.get(session_id)
        number = current.num_cleared
        box = gr.update(submit_btn=False, stop_btn=True) | ({} if question is None else {"value": ""})
        yield {parts.strip: strip.html(), parts.chat: chat.messages(), parts.box: box}
        pace = self._pace()
        figures = Metronome(pace.figures)
        for batch in paced(events, pace.text):
            strip.apply(batch)
            written: Updates = {parts.chat: chat.apply(batch).messages()}
            if figures.due() or not all(isinstance(event, RoundDone) for event in batch):
                written[parts.strip] = strip.html()
            if current.num_cleared == number:  # else the page shows another conversation by now
                yield written | parts.where.follow(current, batch)
        if current.num_cleared != number:
            yield {parts.box: idle_box()}
            return
        if not chat.answered:
            current.editing = editing
        updates: Updates = {parts.strip: strip.end().html(), parts.box: idle_box(None if chat.answered else question)}
        updates[parts.chat] = conversation(current)
        yield updates | {parts.where.strip: parts.where.updates(current)[parts.where.strip]}

    def _pace(self) -> Pace:
        state = self._worker.state
        if not isinstance(state, Ready) or state.info.plan.device.value != "cpu":
            return LIVELY
        import torch  # loaded with the engine

        return pace_beside(torch.get_num_threads(), state.machine.num_cores)

    def answered(self, session_id: str) -> Updates:
        """What stands around an answer, once it has ended in whatever way.

        A page of the book that the reader has opened meanwhile stays open.
        """
        current = self._worker.sessions.find(session_id)
        updates = self._around(current) | (self._book(current) if current else {})
        del updates[self._parts.where.page]
        return updates

    def _no_answer(self, session_id: str, error: CoreError, question: str | None) -> Updates:
        parts, current = self._parts, self._worker.sessions.find(session_id)
        strip = LiveStrip().fail(error).html()
        return {parts.strip: strip, parts.chat: conversation(current), parts.box: idle_box(question)}


def forgetting(events: Iterator[WorkerEvent], files: Sequence[Claim]) -> Iterator[WorkerEvent]:
    """The same events; copies of files go after the last was extracted, long before the model has read their texts."""
    for event in events:
        if not isinstance(event, Extracting):
            forget(files)
        yield event


def head_of(session: Session) -> str:
    """Where the shown branch ends."""
    return session.dialogue.head if session.dialogue else ""


def told(act: str) -> tuple[str, str]:
    """Verb and exchange of what the page's script sends; of anything else, the last question once more."""
    try:
        verb, _, node_id = str(json.loads(act)["act"]).partition(":")
    except (ValueError, TypeError, KeyError, RecursionError):
        return "again", ""
    return verb, node_id


def below(note: str) -> str:
    """What stands under the question box: a note on the model, and the keys of the page."""
    line = f'<p class="note">{render.escape(note)}</p>' if note else ""
    return f'<div class="below">{line}{KEYS}</div>'


def idle_box(question: str | None = None) -> dict[str, Any]:
    """The question box ready for a question; `question` puts one back."""
    if question is None:
        return gr.update(submit_btn=True, stop_btn=False)
    return gr.update(submit_btn=True, stop_btn=False, value=question)
