"""Another model in place of the one that runs: the old one goes first, and nothing of the reader's goes with it."""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from app.runtime.context_loader import OTHER_MODEL
from app.runtime.events import LoadFailed, Loading, Ready
from app.runtime.jobs import ModelBusy
from app.runtime.worker import EngineWorker
from app.ui.header import masthead
from app.ui.models import view
from core.config import GenerationConfig
from core.decoding.registry import PLAIN as PLAIN_LANE
from core.errors import CoreError, EmptyQuestion, NotEnoughMemory
from core.models.loading import load_meter
from tests.app.fakes import HOLD, MACHINE, SECONDS, FakeEngine, FakeText, opened, wait_for, write_book
from tests.app.runtime.test_worker import in_thread

PLAIN = GenerationConfig()
TOO_LARGE = NotEnoughMemory("The weights need 13.0 GiB.", hint="Choose a smaller model.")


class WordyText(FakeText):
    """Another tokenizer: two tokens a character."""

    def encode(self, text: str) -> list[int]:
        return [part for char in text for part in (7, ord(char))]

    def offsets(self, text: str) -> list[int]:
        return [at for at in range(len(text)) for _ in range(2)]


def other(context: int = 4096) -> FakeEngine:
    engine = FakeEngine(context=context, has_draft=False)
    engine.text, engine.info.model = WordyText(), "other"
    return engine


class Script:
    """Loads the engines that it is given, in turn; an error in their place is raised."""

    def __init__(self, *steps: Callable[[], FakeEngine] | CoreError) -> None:
        self.steps = list(steps)
        self.alive: list[int] = []  # at each loading: how many of the engines loaded before were still there
        self.gate = threading.Event()
        self.gate.set()
        self._loaded: list[weakref.ref[FakeEngine]] = []

    def __call__(self) -> Any:
        self.alive.append(sum(engine() is not None for engine in self._loaded))
        self.gate.wait(SECONDS)
        step = self.steps.pop(0)
        if isinstance(step, CoreError):
            raise step
        engine = step()
        self._loaded.append(weakref.ref(engine))
        return engine, MACHINE


@pytest.fixture
def begin() -> Iterator[Callable[[Script], EngineWorker]]:
    workers: list[EngineWorker] = []

    def start(script: Script) -> EngineWorker:
        workers.append(EngineWorker(cast(Any, script)))
        workers[-1].start()
        list(workers[-1].states())
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


Begin = Callable[[Script], EngineWorker]


def turned(worker: EngineWorker, script: Script, model: str = "other") -> Ready | LoadFailed:
    worker.jobs.switch(cast(Any, script), model)
    *_, state = worker.states()
    assert isinstance(state, Ready | LoadFailed)
    return state


def asked(worker: EngineWorker, session_id: str, question: str = "How was it?") -> None:
    list(worker.answer(session_id, question, PLAIN))


def test_the_old_model_is_gone_before_the_new_one_is_loaded(begin: Begin, tmp_path: Path) -> None:
    """Errors that the page shows keep the frames they were raised in, and those held the engine: 1 instead of 0."""

    def troubled() -> FakeEngine:
        engine = FakeEngine()
        engine.enqueue("Dark.")
        engine.enqueue(EmptyQuestion())
        return engine

    script = Script(troubled, other)
    worker = begin(script)
    session_id = opened(worker, write_book(tmp_path))
    asked(worker, session_id)
    kept: list[CoreError] = []
    try:
        asked(worker, session_id)
    except CoreError as error:
        kept.append(error)
    assert kept
    list(worker.open_books(session_id, [write_book(tmp_path, name="again.txt")]))  # the same text: an error in the card
    assert worker.sessions.get(session_id).uploads.pending[-1].error is not None
    state = turned(worker, script)
    assert isinstance(state, Ready) and state.info.model == "other" and state.refused is None
    assert script.alive == [0, 0]


def test_books_are_counted_and_read_again_and_conversations_stay(begin: Begin, tmp_path: Path) -> None:
    script = Script(FakeEngine, other)
    worker = begin(script)
    session_id = opened(worker, write_book(tmp_path))
    asked(worker, session_id)
    session = worker.sessions.get(session_id)
    assert session.book is not None and session.is_read
    before, dialogue = session.book.num_tokens, session.dialogue
    turned(worker, script)
    assert session.is_stale and not session.is_read and session.uploads.note == OTHER_MODEL
    assert session.dialogue is dialogue and session.fits and len(session.exchanges) == 1
    list(worker.reading.catch_up(worker.sessions.get(session_id)))
    assert session.book.num_tokens == 2 * before and session.is_read and session.uploads.note == OTHER_MODEL
    asked(worker, session_id, "And then?")
    assert [one.model for one in session.exchanges] == ["fake", "other"]


def test_a_model_that_cannot_be_loaded_leaves_the_one_before(begin: Begin, tmp_path: Path) -> None:
    script = Script(FakeEngine, TOO_LARGE, FakeEngine, other)
    worker = begin(script)
    session_id = opened(worker, write_book(tmp_path))
    state = turned(worker, script)
    assert isinstance(state, Ready) and state.info.model == "fake" and state.refused is TOO_LARGE
    assert script.alive == [0, 0, 0]
    asked(worker, session_id)
    assert len(worker.sessions.get(session_id).exchanges) == 1
    again = turned(worker, script)
    assert isinstance(again, Ready) and again.info.model == "other" and again.refused is None


@pytest.mark.parametrize("what", ["answer", "race"])
def test_nothing_is_changed_while_any_page_is_answered(begin: Begin, tmp_path: Path, what: str) -> None:
    engines: list[FakeEngine] = []

    def holding() -> FakeEngine:
        engines.append(FakeEngine())
        engines[0].enqueue(f"It was {HOLD}dark.")
        engines[0].enqueue("It was dark.")  # the other lane of a race
        return engines[0]

    script = Script(holding, other)
    worker = begin(script)
    session_id = opened(worker, write_book(tmp_path))
    lanes: Sequence[GenerationConfig] = [GenerationConfig(method=method) for method in (PLAIN_LANE, "triforce")]
    stream = worker.answer(session_id, "How?", PLAIN) if what == "answer" else worker.race(session_id, "How?", lanes)
    thread, _ = in_thread(stream)
    wait_for(lambda: not engines[0].writing.is_set())
    with pytest.raises(ModelBusy, match="answer" if what == "answer" else "race"):
        worker.jobs.switch(cast(Any, script), "other")
    assert isinstance(worker.state, Ready) and len(script.steps) == 1
    engines[0].writing.set()
    thread.join(SECONDS)
    engines.clear()
    wait_for(lambda: not worker.jobs)
    assert isinstance(turned(worker, script), Ready)


def test_reading_is_ended_and_what_waits_is_done_with_the_new_model(begin: Begin, tmp_path: Path) -> None:
    engines: list[FakeEngine] = []

    def slow() -> FakeEngine:
        engines.append(FakeEngine())
        engines[0].reading.clear()
        return engines[0]

    script = Script(slow, other)
    worker = begin(script)
    session = worker.sessions.enter("")
    thread, _ = in_thread(worker.open_books(session.id, [write_book(tmp_path)]))
    wait_for(lambda: session.doing is not None and session.book is not None)
    script.gate.clear()
    worker.jobs.switch(cast(Any, script), "other")
    assert isinstance(worker.state, Loading) and "Loading other" in masthead(worker.state)
    with pytest.raises(ModelBusy):
        worker.jobs.switch(cast(Any, script), "a third")
    waiting, _ = in_thread(worker.answer(session.id, "How?", PLAIN))
    script.gate.set()
    waiting.join(SECONDS)
    thread.join(SECONDS)
    assert [one.model for one in session.exchanges] == ["other"]


# -------------------- progress and Stop


def half_loaded(then: threading.Event) -> FakeEngine:
    """As a model that tells its weights: half of them, then waits."""
    meter = load_meter()
    meter.expect(2_000_000_000)
    meter.add(1_000_000_000)
    while not then.wait(0.01):
        meter.add(0)
    return other()


def test_loading_tells_how_far_it_is_and_stop_brings_the_model_before_back(begin: Begin) -> None:
    script = Script(FakeEngine, lambda: half_loaded(threading.Event()), FakeEngine)
    worker = begin(script)
    first = cast(Any, worker)._engine.info.model
    worker.jobs.switch(cast(Any, script), "other")
    states = worker.states()
    far = next(one for one in states if isinstance(one, Loading) and one.progress.total_bytes)
    assert "Loading other… 1.00 GB of 2.00 GB · 50%" in masthead(far)
    assert 'data-act="model-halt"' in view.loading(far) and "50%" in view.loading(far)
    worker.jobs.stop_loading.set()
    state = list(states)[-1]
    assert isinstance(state, Ready) and state.info.model == first and state.refused is not None
    assert "was stopped" in state.refused.problem
    worker.jobs.stop_loading.set()  # nothing is being loaded
    script.steps.append(other)
    worker.jobs.switch(cast(Any, script), "other")
    assert isinstance(list(worker.states())[-1], Ready) and cast(Any, worker)._engine.info.model == "other"
