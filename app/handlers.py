"""What the page does on each event: a verb of the worker, its events through a view, updates of components."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.blocks import Block

from app.book_view import BookView
from app.chat_view import ChatView
from app.library_tab import LibraryParts, ShelfDrawing
from app.live_strip import LiveStrip
from app.masthead import masthead, notice
from app.pace import paced
from app.samples import Sample, open_questions
from app.sessions import Session
from app.shelf_events import BookOpened, ShelfClosed
from app.where_panel import WhereParts
from app.worker import EngineWorker, Ready, WorkerEvent
from core.config import GenerationConfig, SamplingParams
from core.errors import CoreError, InvalidSetting

Updates = dict[Block, Any]  # component -> its new value, or an update of its properties

WITH_DRAFT = [("TriForce", "triforce"), ("Plain", "autoregressive")]
WITHOUT_DRAFT = [("Retrieval", "retrieval"), ("Plain", "autoregressive")]
WELCOME = """<div class="welcome"><h2>Ask a whole book</h2>
<ol><li><b>Open a book, or several.</b> Drop PDF, EPUB, Word, web page, text or Markdown files, or choose a sample.</li>
<li><b>They are read once.</b> All of it stays in the model’s context: no summaries, no snippets.</li>
<li><b>Ask.</b> Watch how fast the exact answer comes, and why.</li></ol></div>"""
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

    @property
    def of_book(self) -> list[Block]:
        """What opening and reading a book changes."""
        shelf = [self.drop, self.library.drop, *self.library.of_shelf, *self.where.all]
        return [self.card, self.stop_reading, self.read_on, *shelf, self.chat, self.strip, *self.suggestions]

    @property
    def of_answer(self) -> list[Block]:
        """What an answer changes."""
        book = [self.card, self.stop_reading, self.read_on, *self.where.all]
        return [self.strip, self.chat, self.box, *book, *self.suggestions]


class Handlers:
    """One method per event of the page. Every generator here belongs to one click or one dropped file."""

    def __init__(self, worker: EngineWorker, samples: tuple[Sample, ...], parts: Parts) -> None:
        self._worker, self._samples, self._parts = worker, samples, parts

    # -------------------- the page is loaded

    def enter(self, session_id: str) -> Updates:
        """Find or make the page's session and show what it holds."""
        parts, current = self._parts, self._worker.sessions.enter(session_id)
        strip = LiveStrip()
        if current.exchanges and current.book:
            strip.recall(current.exchanges[-1].finished, current.book.num_tokens)
        placeholder = BOOK_OPEN if current.book else WELCOME
        return {
            parts.session: current.id,  # for programs; a browser sends its own
            parts.card: BookView(current).html(),
            parts.chat: gr.update(value=ChatView(current.exchanges).messages(), placeholder=placeholder),
            parts.strip: strip.html(),
            **ShelfDrawing(parts.library, current).updates(),
            **parts.where.updates(current),
        } | self._suggest(current)

    def watch_model(self, _session_id: str) -> Iterator[Updates]:
        """Show the model's state, and again when loading has ended."""
        for state in self._worker.states():
            updates: Updates = {self._parts.head: masthead(state), self._parts.banner: notice(state)}
            if isinstance(state, Ready) and not state.info.has_draft:
                updates[self._parts.method] = gr.update(choices=WITHOUT_DRAFT, value="retrieval")
            yield updates

    # -------------------- a book

    def open_upload(self, session_id: str, paths: list[str] | None) -> Iterator[Updates]:
        """Files were dropped. Their copies on disk go when their text is in memory, or when they cannot be read."""
        files = [Path(path) for path in paths or ()]
        try:
            yield {self._parts.drop: None, self._parts.library.drop: None}
            yield from self._open(session_id, files)
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def open_sample(self, sample: Sample) -> Callable[[str], Iterator[Updates]]:
        """The handler of one sample's button."""

        def open_it(session_id: str) -> Iterator[Updates]:
            yield from self._open(session_id, [sample.file])

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

    def _open(self, session_id: str, files: list[Path]) -> Iterator[Updates]:
        current = self._worker.sessions.enter(session_id)
        yield from self.watch_shelf(current, self._worker.open_books(current.id, files))

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
        placeholder = BOOK_OPEN if current.book else WELCOME
        chat = gr.update(value=ChatView(current.exchanges).messages(), placeholder=placeholder)
        updates = {self._parts.chat: chat, **self._parts.where.updates(current)}
        if not current.exchanges:
            updates[self._parts.strip] = LiveStrip().html()
        return updates | self._suggest(current)

    def _suggest(self, current: Session) -> Updates:
        """Questions for a sample book that were not asked yet."""
        buttons = self._parts.suggestions
        names = current.book.names if current.book else ()
        asked = tuple(exchange.question for exchange in current.exchanges)
        questions = [one for name in names for one in open_questions(self._samples, name, asked, len(buttons))]
        questions = questions[: len(buttons)]
        shown = [*questions, *[""] * (len(buttons) - len(questions))]
        return {button: gr.update(value=text, visible=bool(text)) for button, text in zip(buttons, shown, strict=True)}

    # -------------------- an answer

    def ask(
        self, session_id: str, question: str, method: str, temperature: float, top_p: float, max_new_tokens: float
    ) -> Iterator[Updates]:
        """Answer a question; it goes back into the box when there is no answer."""
        try:
            config = generation(method, temperature, top_p, max_new_tokens)
            events = self._worker.answer(session_id, question, config)
            view = ChatView(self._worker.sessions.get(session_id).exchanges, question.strip())
            yield from self._watch_answer(session_id, LiveStrip(method), view, question, events)
        except CoreError as error:
            yield self._no_answer(session_id, error, question)

    def regenerate(
        self, session_id: str, method: str, temperature: float, top_p: float, max_new_tokens: float
    ) -> Iterator[Updates]:
        """Answer the last question once more."""
        try:
            config = generation(method, temperature, top_p, max_new_tokens)
            events = self._worker.regenerate(session_id, config)
            *past, last = self._worker.sessions.get(session_id).exchanges
            view = ChatView(past, last.question)
            yield from self._watch_answer(session_id, LiveStrip(method), view, None, events)
        except CoreError as error:
            yield self._no_answer(session_id, error, None)

    def clear(self, session_id: str) -> Updates:
        """A new conversation about the same book."""
        self._worker.clear(session_id)
        current = self._worker.sessions.get(session_id)
        return {self._parts.strip: LiveStrip().html(), **self._parts.where.updates(current)} | self._suggest(current)

    def _watch_answer(
        self,
        session_id: str,
        strip: LiveStrip,
        chat: ChatView,
        question: str | None,
        events: Iterator[WorkerEvent],
    ) -> Iterator[Updates]:
        parts = self._parts
        box = gr.update(value="", submit_btn=False, stop_btn=True)
        yield {parts.strip: strip.html(), parts.chat: chat.messages(), parts.box: box}
        current = self._worker.sessions.get(session_id)
        for batch in paced(events):
            shown = {parts.strip: strip.apply(batch).html(), parts.chat: chat.apply(batch).messages()}
            yield shown | parts.where.follow(current, batch)
        updates: Updates = {parts.strip: strip.end().html(), parts.box: idle_box()}
        if not chat.answered:
            updates |= {parts.chat: ChatView(current.exchanges).messages(), parts.box: idle_box(question)}
        yield updates | self._book(current) | parts.where.updates(current) | self._suggest(current)

    def _no_answer(self, session_id: str, error: CoreError, question: str | None) -> Updates:
        parts = self._parts
        past = self._worker.sessions.find(session_id)
        chat = ChatView(past.exchanges if past else ()).messages()
        return {parts.strip: LiveStrip().fail(error).html(), parts.chat: chat, parts.box: idle_box(question)}


def idle_box(question: str | None = None) -> dict[str, Any]:
    """The question box ready for a question; `question` puts one back."""
    if question is None:
        return gr.update(submit_btn=True, stop_btn=False)
    return gr.update(submit_btn=True, stop_btn=False, value=question)


def generation(
    method: str, temperature: float | None, top_p: float | None, max_new_tokens: float | None
) -> GenerationConfig:
    """Settings from the page's fields.

    Raises:
        InvalidSetting: a field is empty or out of range.
    """
    if temperature is None or top_p is None or max_new_tokens is None:
        raise InvalidSetting("A field in Settings is empty.", hint="Fill it with a number.")
    return GenerationConfig(
        method=method,
        max_new_tokens=int(max_new_tokens),
        sampling=SamplingParams(temperature=float(temperature), top_p=float(top_p)),
    )
