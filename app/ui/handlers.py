"""Handlers of the page's events: an action of the worker, its events through a view, updates of components."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gradio as gr

from app.context.samples import Sample, open_questions
from app.context.upload_files import Claim, claim, forget
from app.documents import Extracting
from app.documents.natural_order import natural
from app.runtime.conversation_actions import Conversing
from app.runtime.downloads import Downloads
from app.runtime.events import BookOpened, LibraryClosed, WorkerEvent
from app.runtime.sessions import Session, Watching
from app.runtime.throttle import in_batches
from app.runtime.worker import EngineWorker
from app.ui.library.drawing import LibraryDrawing
from app.ui.models.offer import ModelOffer
from app.ui.parts import Parts
from app.ui.reading.book_view import BookView
from app.ui.reading.chat_view import conversation
from app.ui.reading.conversation_view import book_notice, conversation_list, editing_notice
from app.ui.reading.live_strip import LiveStrip
from app.ui.reading.welcome import welcome
from app.ui.updates import Updates, lasting
from core.errors import CoreError

ENTERING_SECONDS = 0.3  # until the page has drawn what it holds
SETTLING_SECONDS = 0.5  # until updates of two events have reached the page


class Handlers:
    """One method per event of the page. Every generator here belongs to one click or one dropped file."""

    def __init__(
        self, worker: EngineWorker, samples: tuple[Sample, ...], parts: Parts, offer: ModelOffer | None = None
    ) -> None:
        self._worker, self._samples, self.parts = worker, samples, parts
        self._offer = offer or ModelOffer(worker, None, Downloads())
        self.conversing = Conversing(worker)

    # -------------------- the page is loaded

    def enter(self, session_id: str) -> Updates:
        """Find or make the page's session and show its state."""
        parts, current = self.parts, self._worker.sessions.enter(session_id)
        self.conversing.arrive(current)
        current.drawn_amid_answer = self._worker.has_answer(current.id)
        library: Updates = {}
        if current.has_something:  # else the page has its first state, and a file dropped just now may have drawn more
            library = {parts.card: BookView(current).html(), **LibraryDrawing(parts.library, current).updates()}
        return {parts.session: current.id} | library | self.talk(current)  # programs need the id, a browser has it

    @lasting
    def resume(self, session_id: str) -> Iterator[Updates]:
        """Read the rest of the book that the page had before it was loaded again."""
        time.sleep(ENTERING_SECONDS)
        current = self._worker.sessions.find(session_id)
        if current is None or current.has_something:
            yield from self.read_on(session_id)

    def talk(self, current: Session) -> Updates:
        """Updates of a session's shown conversation and everything around it."""
        current.drawn_book = current.book
        return self.conversation_of(current) | self.around(current)

    def conversation_of(self, current: Session) -> Updates:
        """Updates of the chat, and of the figures of its last answer."""
        parts, strip = self.parts, LiveStrip()
        if current.exchanges and current.book:
            last = current.exchanges[-1]
            strip.recall(last.finished, current.book.num_tokens, last.num_reread)
        return {
            parts.chat: gr.update(value=conversation(current), placeholder=welcome(current)),
            parts.strip: strip.html(),
        }

    def around(self, current: Session | None, *, page_stays: bool = False) -> Updates:
        """Updates of the list, the parts above and below the chat, and the retrieval map of the last answer.

        Args:
            page_stays: an opened page of the book stays open.
        """
        parts = self.parts
        return {
            parts.listing: self.listing(current),
            parts.offer: self._offer.html(current),
            parts.about: book_notice(current),
            parts.editing: editing_notice(current),
            **(parts.where.of_strip(current) if page_stays else parts.where.updates(current)),
        } | self._suggest(current)

    def listing(self, current: Session | None) -> str:
        """The list of conversations, filtered by the page's search."""
        search = current.search if current else ""
        return conversation_list(self._worker.conversations.listing(search), current, search=search)

    @lasting
    def catch_up(self, session_id: str) -> Iterator[Updates]:
        """The reader is back: show what other pages have changed; read the book again if another model has read it."""
        current = self._worker.sessions.find(session_id)
        if current is not None and current.is_stale:
            yield from self.read_on(session_id)
        elif current is not None and current.book is not None:
            yield self.book(current)

    # -------------------- a book

    @lasting
    def open_upload(self, session_id: str, paths: list[str] | None) -> Iterator[Updates]:
        """Open dropped files, in natural order.

        Their copies are deleted once their text is in memory, or if they cannot be read; of PDFs when they are closed.
        """
        files: list[Claim] = []
        forgetting = partial(forget, files, self._worker.sessions.files.holds)
        try:
            files += map(claim, sorted(map(Path, paths or ()), key=lambda file: natural(file.name)))
            current = self._worker.sessions.enter(session_id)
            events = self._worker.open_books(current.id, [file.own for file in files])
            yield {self.parts.drop: None, self.parts.library.drop: None}  # a question that waited is sent now
            yield from self.watch_library(current, once_extracted(events, forgetting))
        finally:
            forgetting()

    def open_sample(self, sample: Sample) -> Callable[[str], Iterator[Updates]]:
        """The handler of one sample's button."""

        @lasting
        def open_it(session_id: str) -> Iterator[Updates]:
            current = self._worker.sessions.enter(session_id)
            yield from self.watch_library(current, self._worker.open_books(current.id, [sample.file]))

        return open_it

    @lasting
    def read_on(self, session_id: str) -> Iterator[Updates]:
        """Read the rest of the book, if there is any."""
        try:
            current = self._worker.sessions.get(session_id)
        except CoreError as error:
            current = Session("")
            current.uploads.error = error
            yield {self.parts.card: BookView(current).html()}
            return
        yield from self.watch_library(current, self._worker.read_book(current.id))

    def watch_library(self, current: Session, events: Iterator[WorkerEvent]) -> Iterator[Updates]:
        """Show the library and the reading while they change.

        Another event may show the same at that time, and an update that one has drawn may reach the page after a newer
        one of the other. So each draws once more when all updates have arrived.
        """
        mine = Watching()
        current.watching.add(mine)
        try:
            for one in (others := {*current.watching} - {mine}):
                one.beside = True
            mine.beside = mine.beside or bool(others)
            yield from self._watch(current, events)
            if mine.beside:
                time.sleep(SETTLING_SECONDS)
                drawn = self.book(current) | LibraryDrawing(self.parts.library, current).updates()
                empty = gr.update(placeholder=welcome(current))
                yield drawn | {self.parts.chat: empty, self.parts.about: book_notice(current)}
        finally:
            current.watching.discard(mine)

    def _watch(self, current: Session, events: Iterator[WorkerEvent]) -> Iterator[Updates]:
        drawing, shown, told = LibraryDrawing(self.parts.library, current), "", None

        def drawn() -> Updates:
            nonlocal shown, told
            (before, shown), (told_before, told) = (shown, welcome(current)), (told, book_notice(current))
            empty: Updates = {} if shown == before else {self.parts.chat: gr.update(placeholder=shown)}
            about: Updates = {} if told == told_before else {self.parts.about: told}
            return self.book(current) | drawing.updates() | empty | about

        yield drawn()
        head: str | None = None  # of the conversation that this event has drawn
        try:
            for batch in in_batches(events):
                changed = any(isinstance(event, BookOpened | LibraryClosed) for event in batch)
                head = current.head if changed else head
                fresh = self.fresh(current) if changed else {}  # takes a moment, in which the reading begins
                yield drawn() | fresh
        except CoreError as error:
            current.uploads.error = error
        answered = head not in (None, current.head)  # by a quick answer, which the older drawing may have covered
        opened_by_answer = current.drawn_book is not current.book  # then no event told this stream
        yield drawn() | (self.fresh(current) if answered or opened_by_answer else {})

    def book(self, current: Session) -> Updates:
        """Updates of the card of the open or coming book."""
        view = BookView(current)
        return {
            self.parts.card: view.html(),
            self.parts.stop_reading: gr.update(visible=view.reading),
            self.parts.read_on: gr.update(visible=view.paused),
        }

    def fresh(self, current: Session) -> Updates:
        """Updates for another book: the conversation, if it continues, and an empty retrieval map.

        A question that waits for the book stays in the chat; its own event draws it.
        """
        updates = self.talk(current)
        if self._worker.has_answer(current.id):
            for part in (self.parts.chat, self.parts.strip):
                del updates[part]
        if current.told_no_book and current.book is not None:
            current.told_no_book = False
            updates[self.parts.told] = ""
        return updates

    def _suggest(self, current: Session | None) -> Updates:
        """Updates of the suggestions: questions for a sample book that were not asked yet."""
        buttons = self.parts.suggestions
        names = current.book.names if current and current.book and current.fits else ()
        asked = tuple(exchange.question for exchange in current.exchanges) if current else ()
        found = [one for name in names for one in open_questions(self._samples, name, asked, len(buttons))]
        offered = [*found, *[""] * len(buttons)][: len(buttons)]
        return {
            button: gr.update(value=text, visible=bool(text)) for button, text in zip(buttons, offered, strict=True)
        }


def once_extracted(events: Iterator[WorkerEvent], forgetting: Callable[[], None]) -> Iterator[WorkerEvent]:
    """Yield the same events; delete the copies after the last extraction, long before the model has read the texts."""
    for event in events:
        if not isinstance(event, Extracting):
            forgetting()
        yield event
