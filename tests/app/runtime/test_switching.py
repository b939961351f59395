"""Another model in place of the one that runs: the old one goes first, and nothing of the reader's goes with it."""

import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from app.context.context_documents import Pages
from app.conversations.exchange import Exchange
from app.runtime.context_loader import OTHER_MODEL
from app.runtime.events import LoadFailed, Loading, Ready, Waiting
from app.runtime.jobs import BEFORE
from app.runtime.prompts import answer_ids
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.server.page_routes import PageRoutes
from app.ui.header import masthead
from app.ui.models import view
from app.ui.reading.parts import flags
from app.ui.site import Site
from core.config import GenerationConfig
from core.errors import CoreError, EmptyQuestion, NotEnoughMemory
from core.models.loading import load_meter
from tests.app.fakes import (
    ANSWER,
    HOLD,
    MACHINE,
    SECONDS,
    FakeEngine,
    FakeText,
    finished,
    in_thread,
    settled,
    wait_for,
    write_book,
)
from tests.app.ui.pages import followed

TOO_LARGE = NotEnoughMemory("The weights need 13.0 GiB.", hint="Choose a smaller model.")


class WordyText(FakeText):
    """Another tokenizer: two tokens a character."""

    def encode(self, text: str) -> list[int]:
        return [part for char in text for part in (7, ord(char))]

    def offsets(self, text: str) -> list[int]:
        return [at for at in range(len(text)) for _ in range(2)]


def other() -> FakeEngine:
    engine = FakeEngine(has_draft=False)
    engine.text, engine.info.model = WordyText(), "other"
    return engine


class Program:
    """A worker that loads the engines that it is given, in turn; an error in their place is raised."""

    def __init__(self, begin: Callable[..., EngineWorker], *steps: Callable[[], FakeEngine] | CoreError) -> None:
        self.steps = list(steps)
        self.alive: list[int] = []  # at each loading: how many of the engines loaded before were still there
        self.gate = threading.Event()
        self.gate.set()
        self._loaded: list[weakref.ref[FakeEngine]] = []
        self.worker = begin(self._load)
        self.settled()

    def _load(self) -> Any:
        self.alive.append(sum(engine() is not None for engine in self._loaded))
        self.gate.wait(SECONDS)
        step = self.steps.pop(0)
        if isinstance(step, CoreError):
            raise step
        engine = step()
        self._loaded.append(weakref.ref(engine))
        return engine, MACHINE

    def engine(self) -> FakeEngine:
        return cast(FakeEngine, self.worker._engine)

    def switch(self, model: str = "other") -> None:
        self.worker.jobs.switch(self._load, model)

    def settled(self) -> Ready | LoadFailed:
        """The state once no model is being loaded."""
        return settled(self.worker)

    def uses(self, model: str) -> bool:
        """Whether this model is in use, and none was refused."""
        state = self.settled()
        return isinstance(state, Ready) and state.info.model == model and state.refused is None

    def reader(self, folder: Path) -> Session:
        """A page with a book."""
        session = self.worker.sessions.enter("")
        list(self.worker.open_books(session.id, [write_book(folder)]))
        return session

    def asks(self, session: Session, question: str = "How was it?") -> None:
        """Ask, to the end of the answer."""
        list(self.worker.answer(session.id, question, ANSWER))


Begin = Callable[..., Program]


@pytest.fixture
def begin(begin_worker: Callable[..., EngineWorker]) -> Begin:
    return partial(Program, begin_worker)


def test_the_old_model_is_gone_before_the_new_one_is_loaded(begin: Begin, tmp_path: Path) -> None:
    """Errors that the page shows keep the frames they were raised in, and those held the engine: 1 instead of 0."""
    program = begin(FakeEngine, other)
    session, kept = program.reader(tmp_path), list[CoreError]()
    program.engine().enqueue(EmptyQuestion())
    try:
        program.asks(session)
    except CoreError as error:
        kept.append(error)
    list(program.worker.open_books(session.id, [write_book(tmp_path, name="again.txt")]))  # the same text
    assert kept and session.uploads.pending[-1].error is not None
    program.switch()
    assert program.uses("other") and program.alive == [0, 0]


def test_books_are_counted_and_read_again_and_conversations_stay(begin: Begin, tmp_path: Path) -> None:
    program = begin(FakeEngine, other)
    session = program.reader(tmp_path)
    program.asks(session)
    assert session.book is not None and session.is_read
    before, dialogue = session.book.num_tokens, session.dialogue
    program.switch()
    assert program.uses("other")
    assert session.is_stale and not session.is_read and session.uploads.note == OTHER_MODEL
    assert session.dialogue is dialogue and session.fits and len(session.exchanges) == 1
    list(program.worker.reading.catch_up(session))
    assert session.book.num_tokens == 2 * before and session.is_read and session.uploads.note == OTHER_MODEL
    program.asks(session, "And then?")
    assert [one.model for one in session.exchanges] == ["fake", "other"]


def test_another_model_does_not_go_on_from_half_a_character() -> None:
    cut = Exchange("How?", finished("A caf\ufffd"), model="the one before")
    assert FakeText().decode(answer_ids(cut, FakeEngine())) == "A caf"


@pytest.mark.parametrize("what", ["answer", "race"])
def test_nothing_is_changed_while_any_page_is_answered(begin: Begin, tmp_path: Path, what: str) -> None:
    program = begin(FakeEngine, other)
    session, worker = program.reader(tmp_path), program.worker
    for words in (f"It was {HOLD}dark.", "It was dark."):  # the second is the other lane of a race
        program.engine().enqueue(words)
    lanes = [GenerationConfig(method=method) for method in ("autoregressive", "triforce")]
    thread, _ = in_thread(
        worker.answer(session.id, "How?", ANSWER) if what == "answer" else worker.race(session.id, "How?", lanes)
    )
    wait_for(lambda: not program.engine().writing.is_set())
    with pytest.raises(CoreError, match=what):
        program.switch()
    assert isinstance(worker.state, Ready) and len(program.steps) == 1
    program.engine().writing.set()
    thread.join(SECONDS)
    wait_for(lambda: not worker.jobs)
    program.switch()
    assert program.uses("other")


def test_reading_is_ended_and_what_waits_is_done_with_the_new_model(begin: Begin, tmp_path: Path) -> None:
    program = begin(FakeEngine, other)
    worker, session = program.worker, program.worker.sessions.enter("")
    program.engine().reading.clear()
    reading, _ = in_thread(worker.open_books(session.id, [write_book(tmp_path)]))
    wait_for(lambda: session.doing is not None and session.book is not None)
    program.gate.clear()
    program.switch()
    assert isinstance(worker.state, Loading) and "Loading other" in masthead(worker.state)
    with pytest.raises(CoreError, match="being loaded"):
        program.switch("a third")
    waiting, told = in_thread(worker.answer(session.id, "How?", ANSWER))
    wait_for(lambda: Waiting("loading", 0) in told)
    program.gate.set()
    for thread in (waiting, reading):
        thread.join(SECONDS)
    assert [one.model for one in session.exchanges] == ["other"]


@pytest.mark.parametrize("then", ["another model", "a part"])
def test_a_book_that_is_too_long_for_a_model_is_read_later_and_its_conversation_goes_on(
    then: str, begin: Begin, tmp_path: Path
) -> None:
    program = begin(FakeEngine, lambda: FakeEngine(context=900), FakeEngine)
    worker, session = program.worker, program.worker.sessions.enter("")
    list(worker.open_books(session.id, [write_book(tmp_path, "\f".join(("One. " * 60, "Two. " * 60)))]))
    program.asks(session)
    routes = PageRoutes(Site(worker))

    def is_looked_at() -> None:
        program.settled()
        routes._catch_up(session)
        wait_for(lambda: not worker.is_busy(session) and not followed())

    program.switch()
    is_looked_at()
    assert session.book is None and session.uploads.too_long
    if then == "another model":
        program.switch()
        is_looked_at()
    else:
        list(worker.arrange(session.id, lambda library: library.choose(0, Pages(1, 1))))
    assert session.is_read and len(session.exchanges) == 1
    program.asks(session)
    assert len(session.exchanges) == 2


def test_loading_tells_how_far_it_is_and_one_that_is_stopped_or_fails_leaves_the_model_before(
    begin: Begin, tmp_path: Path
) -> None:
    def half() -> FakeEngine:
        """As a model that tells its weights: half of them, then waits."""
        meter = load_meter()
        meter.expect(2_000_000_000)
        meter.add(1_000_000_000)
        while not threading.Event().wait(0.01):
            meter.add(0)
        return other()

    def again() -> FakeEngine:
        waiting.wait(0.3)
        assert 'data-act="model-halt"' not in view.loading(Loading(BEFORE))
        load_meter().add(0)
        return FakeEngine()

    waiting = threading.Event()
    program = begin(FakeEngine, half, again, TOO_LARGE, FakeEngine, other)
    worker, session = program.worker, program.reader(tmp_path)
    program.switch()
    wait_for(lambda: isinstance(worker.state, Loading) and worker.state.progress.total_bytes)
    far = worker.state
    assert isinstance(far, Loading)
    assert "Loading other… 1.00 GB of 2.00 GB · 50%" in masthead(far)
    assert 'data-act="model-halt"' in view.loading(far) and "50%" in view.loading(far)
    assert "loading" in flags(Site(worker), session), "a tab that nobody sees stays connected"
    worker.jobs.halt()
    wait_for(lambda: worker.state == Loading(BEFORE, worker.state.progress))
    worker.jobs.halt()  # pressed twice
    state = program.settled()
    assert isinstance(state, Ready) and state.info.model == "fake" and state.refused is not None
    assert "was stopped" in state.refused.problem and program.alive == [0, 0, 0]
    program.asks(session)
    worker.jobs.stop_loading.set()  # nothing is being loaded
    program.switch()
    state = program.settled()
    assert isinstance(state, Ready) and state.info.model == "fake" and state.refused is TOO_LARGE
    program.switch()
    assert program.uses("other")
