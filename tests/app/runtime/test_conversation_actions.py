"""Conversations as a reader has them: branches, edits, restarts, incognito; on a scripted engine and on a real one."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from app.context.context_documents import Library, digest_of
from app.conversations.database import NAME
from app.conversations.store import Conversations
from app.conversations.tree import Dialogue
from app.documents.readers import read_document
from app.runtime.context_loader import talk_tokens
from app.runtime.conversation_actions import Conversing, file_name
from app.runtime.events import WorkerEvent
from app.runtime.prompts import with_past
from app.runtime.recording import PARTIAL_SECONDS, ExchangeGone, Place, Recording
from app.runtime.sessions import OtherBook, Session
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.engine import Engine
from core.errors import CoreError
from core.generation.events import Finished, PrefillProgress, RoundDone
from core.generation.session import Conversation
from tests.app.conversations.on_disk import text_of
from tests.app.fakes import SECONDS, FakeEngine, finished, opened, round_done, worker_of, write_book
from tests.app.ui.test_views import a_session, progress
from tests.core.toys import tiny_engine, with_words

PLAIN = GenerationConfig(method="triforce")
Start = Callable[..., tuple[EngineWorker, Conversing]]


@pytest.fixture
def start(tmp_path: Path, engine: FakeEngine) -> Iterator[Start]:
    """Start the program on the test's data folder; again: after a restart."""
    workers: list[EngineWorker] = []

    def begin(on: Any = None) -> tuple[EngineWorker, Conversing]:
        if workers:
            workers[-1].close()
        workers.append(worker_of(on or engine, conversations=Conversations(tmp_path / "conversations")))
        return workers[-1], Conversing(workers[-1])

    yield begin
    for worker in workers:
        worker.close()


class Opened(NamedTuple):
    """A program that runs, and a page with a book."""

    worker: EngineWorker
    conversing: Conversing
    session: Session


@pytest.fixture
def reader(start: Start, tmp_path: Path) -> Opened:
    """A page on the scripted engine whose book was read."""
    worker, conversing = start()
    return Opened(worker, conversing, worker.sessions.get(opened(worker, write_book(tmp_path))))


def ask(worker: EngineWorker, engine: FakeEngine, session_id: str, question: str, answer: str, **how: Any) -> Finished:
    engine.enqueue(answer)
    *_, end = worker.answer(session_id, question, PLAIN, **how)
    assert isinstance(end, Finished)
    return end


def shown(session: Session) -> list[str]:
    return [node.question for node in session.dialogue.path] if session.dialogue else []


def first_progress(events: Iterator[WorkerEvent]) -> PrefillProgress:
    return next(event for event in list(events) if isinstance(event, PrefillProgress))


# -------------------- branches


def test_a_branch_and_an_edit_read_no_token_of_the_book_again(start: Start, tmp_path: Path) -> None:
    worker, conversing = start(with_words(tiny_engine(context=1024)))
    session = worker.sessions.get(opened(worker, write_book(tmp_path)))
    short = GenerationConfig(max_new_tokens=8)
    for question in ("One?", "Two?"):
        list(worker.answer(session.id, question, short))
    assert session.dialogue is not None and session.book is not None
    first, second = session.dialogue.path
    conversing.branch(session, first.id)
    branched = first_progress(worker.answer(session.id, "Branched?", short))
    edited = first_progress(worker.answer(session.id, "One, differently?", short, parent=first.parent))
    assert branched.reused_tokens > session.book.num_opening and edited.reused_tokens >= session.book.num_opening - 1
    assert session.exchanges[-1].num_reread == 0 and second.id in {node.id for node in session.dialogue.nodes}


# -------------------- continuing


def test_a_stopped_answer_goes_on_where_it_stopped(reader: Opened, engine: FakeEngine) -> None:
    worker, _, session = reader
    engine.enqueue("One two | three.")
    stream = worker.answer(session.id, "Count!", PLAIN)
    next(event for event in stream if isinstance(event, RoundDone))
    worker.jobs.cancel(session.id, "answer")
    list(stream)
    engine.writing.set()
    engine.enqueue("three four.")
    *_, end = worker.go_on(session.id, GenerationConfig(method="autoregressive"))
    (exchange,) = session.exchanges
    assert engine.written[-1] == [1000, 1001] and isinstance(end, Finished)
    assert exchange.finished.text == end.text == "One two three four. " and len(exchange.finished.token_ids) == 4
    assert exchange.methods == ("triforce", "autoregressive") and exchange.finished.stats.new_tokens == 4
    assert session.trace is not None and session.trace.text == end.text
    assert [record.text for record in session.trace.records] == ["three ", "four. "], "inside: what is new"
    with pytest.raises(CoreError, match="ended by itself"):
        worker.go_on(session.id, PLAIN)
    with pytest.raises(ExchangeGone):
        worker.regenerate(session.id, PLAIN, "unknown")


# -------------------- on disk


def test_after_a_restart_the_same_book_goes_on_with_the_same_tokens(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    worker, conversing = start()
    session_id = opened(worker, write_book(tmp_path))
    ask(worker, engine, session_id, "One?", "First answer.")
    told = worker.sessions.get(session_id).exchanges
    worker, conversing = start()
    session = worker.sessions.enter(session_id)
    conversing.arrive(session)
    assert shown(session) == ["One?"] and session.exchanges == () and not session.fits, "the text is there"
    with pytest.raises(OtherBook, match="Open that book again"):
        worker.answer(session.id, "Two?", PLAIN)
    other = write_book(tmp_path, "Another book. " * 9, "other.txt")
    same = write_book(tmp_path, name="renamed.txt")
    list(worker.open_books(session.id, [same]))
    assert session.exchanges == told and session.fits, "what counts is the text"
    ask(worker, engine, session.id, "Two?", "Second answer.")
    ids = list(told[0].finished.token_ids)
    assert any(engine.prompts[-1][at : at + len(ids)] == ids for at in range(len(engine.prompts[-1])))
    kept = session.dialogue
    list(worker.arrange(session.id, lambda _: Library().add(read_document(other))))
    assert session.dialogue is None and len(worker.conversations.listing().summaries) == 1
    assert kept is not None
    conversing.open(session, kept.id)
    assert not session.fits and shown(session) == ["One?", "Two?"]
    list(worker.open_books(session.id, [same]))
    assert session.fits and session.book is not None and session.book.names == ("renamed.txt",)
    assert "The library now holds only" in session.uploads.note, "beside the other book it would be another text"


@pytest.mark.parametrize("wrong", [[600_000], [2**62] * 40, [10**400]])
def test_tokens_that_the_model_has_not_never_reach_it(wrong: list[int], start: Start, tmp_path: Path) -> None:
    """A file was changed, or the model was: its answer goes on, and is gone on from, as the text that it is."""
    worker, conversing = start(with_words(tiny_engine(context=1024)))
    book, short = write_book(tmp_path), GenerationConfig(max_new_tokens=8)
    session_id = opened(worker, book)
    list(worker.answer(session_id, "One?", short))
    worker.close()
    with closing(sqlite3.connect(tmp_path / "conversations" / NAME)) as db, db:
        answer = json.loads(db.execute("SELECT answer FROM exchanges").fetchone()[0])
        answer["token_ids"], text = answer["token_ids"] + wrong, answer["text"]
        db.execute("UPDATE exchanges SET answer = ?", (json.dumps(answer),))

    worker, conversing = start(with_words(tiny_engine(context=1024)))
    session = worker.sessions.enter(session_id)
    conversing.arrive(session)
    list(worker.open_books(session.id, [book]))
    before = session.exchanges[0]
    assert set(wrong) <= set(before.finished.token_ids), "whether they are tokens, the file alone does not tell"
    events = list(worker.go_on(session.id, short))
    assert isinstance(events[-1], Finished)
    assert session.exchanges[0].finished.text.startswith(text) and not set(wrong) & set(events[-1].token_ids)
    *_, end = worker.answer(session.id, "Two?", short)
    assert isinstance(end, Finished) and len(session.exchanges) == 2


def test_a_question_is_on_disk_before_its_answer(start: Start, engine: FakeEngine, tmp_path: Path) -> None:
    worker, _ = start()
    session_id = opened(worker, write_book(tmp_path))
    engine.writing.clear()
    stream = worker.answer(session_id, "Will it be lost?", PLAIN)
    next(event for event in stream if isinstance(event, PrefillProgress))
    assert worker.conversations.flush(SECONDS)
    killed = Conversations(tmp_path / "conversations")
    (summary,) = killed.listing().summaries
    (node,) = killed.open(summary.id).path
    assert node.question == "Will it be lost?" and node.exchange is None
    stream.close()  # type: ignore[attr-defined]


def test_an_answer_is_saved_every_few_seconds() -> None:
    time_now = 0.0
    store = Conversations()
    session = Session("x", book=a_session().book, digest="d", num_read=8124)
    recording = Recording(session, store, Place(question="Long?"), PLAIN, clock=lambda: time_now)
    recording.apply(progress(1024, reused=3))
    states: list[str] = []
    for number in range(10):
        time_now += PARTIAL_SECONDS / 4
        recording.apply(round_done("word ", number))
        states.append(session.exchanges[0].finished.text if session.exchanges else "")
    assert states[3] == "" and states[4].count("word") == 5 and len(set(states)) == 3, "not at every round"
    recording.apply(finished("word " * 10))
    recording.end()
    (exchange,) = session.exchanges
    assert exchange.finished.text == "word " * 10 and exchange.first_token_seconds == PARTIAL_SECONDS / 4
    assert exchange.num_reread == 8120, "of the book's 8,123 tokens"
    assert store.open(store.listing().summaries[0].id).exchanges == session.exchanges


def test_an_answer_goes_into_its_conversation_when_the_page_has_left_it(
    reader: Opened, start: Start, engine: FakeEngine
) -> None:
    worker, conversing, session = reader
    engine.enqueue("One two | three.")
    stream = worker.answer(session.id, "Long?", PLAIN)
    next(event for event in stream if isinstance(event, RoundDone))
    draining = threading.Thread(target=lambda: list(stream), daemon=True)
    draining.start()
    conversing.new(session)
    draining.join(SECONDS)
    assert session.dialogue is None
    (summary,) = worker.conversations.listing().summaries
    assert worker.conversations.open(summary.id).exchanges[0].finished.text == "One two "


def test_incognito_writes_nothing(reader: Opened, engine: FakeEngine, tmp_path: Path) -> None:
    worker, conversing, session = reader
    conversing.incognito(session)
    ask(worker, engine, session.id, "A secret?", "Yes.")
    ask(worker, engine, session.id, "Another?", "Yes.")
    assert session.dialogue is not None
    conversing.rename(session, session.dialogue.id, "Secret title")
    conversing.branch(session, session.dialogue.path[0].id)
    conversing.remove(session, session.dialogue.nodes[1].id)
    assert shown(session) == ["A secret?"] and session.dialogue.title == "Secret title"
    assert worker.conversations.flush(SECONDS) and not text_of(tmp_path / "conversations")
    assert worker.conversations.listing().summaries == ()
    conversing.incognito(session)
    assert session.dialogue is None and not session.incognito
    ask(worker, engine, session.id, "Open?", "Yes.")
    assert worker.conversations.flush(SECONDS) and text_of(tmp_path / "conversations") == {"Open?"}


def test_a_conversation_deleted_elsewhere_goes_on_as_a_new_one(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    worker, conversing = start()
    here = worker.sessions.get(opened(worker, write_book(tmp_path)))
    ask(worker, engine, here.id, "One?", "Yes.")
    old = here.dialogue
    assert isinstance(old, Dialogue)
    conversing.delete(worker.sessions.enter(""), old.id)
    ask(worker, engine, here.id, "Two?", "Yes.")
    assert shown(here) == ["One?", "Two?"] and here.dialogue is not None and here.dialogue.id != old.id
    assert [one.id for one in worker.conversations.listing().summaries] == [here.dialogue.id]


# -------------------- conversations and the library


ONE, OTHER = "It was a dark and stormy night. " * 8, "Another book. " * 9


def test_a_conversation_goes_on_when_the_shelf_changes_and_knows_the_text_of_its_last_question(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    worker, conversing = start()
    one, other = write_book(tmp_path, ONE), write_book(tmp_path, OTHER, "other.txt")
    session = worker.sessions.get(opened(worker, one))
    ask(worker, engine, session.id, "One?", "First answer.")
    list(worker.open_books(session.id, [other]))
    assert session.fits and len(session.exchanges) == 1 and session.dialogue is not None and session.book is not None
    assert session.dialogue.book.names == ("book.txt",), "nothing was asked about both yet"
    assert session.where is None and session.num_talk > 0
    ask(worker, engine, session.id, "Both?", "Second answer.")
    reference = session.dialogue.book
    assert reference.digest == digest_of(session.book.library.text).hex() == session.digest
    assert reference.names == ("book.txt", "other.txt") and reference.title == "book and 1 more"
    first, second = session.exchanges
    assert first.digest == digest_of(ONE).hex() != second.digest == session.digest

    worker, conversing = start()
    again = worker.sessions.enter(session.id)
    conversing.arrive(again)
    list(worker.open_books(again.id, [one]))
    assert shown(again) == ["One?", "Both?"] and not again.fits, "it waits for the rest of its shelf"
    list(worker.open_books(again.id, [other]))
    assert again.fits and again.num_talk == session.num_talk > 0
    list(worker.arrange(again.id, lambda library: library.move(1, 0)))
    assert again.fits and "goes on" in again.uploads.note
    assert again.dialogue is not None
    for node in again.dialogue.path:  # the budget follows the branch that is shown
        conversing.branch(again, node.id)
        turns = with_past(Conversation(), again.exchanges, cast(Engine, engine)).turns
        assert again.num_talk == talk_tokens(cast(Any, engine.text), turns) > 0


def test_a_cut_answer_does_not_go_on_about_another_text(reader: Opened, engine: FakeEngine, tmp_path: Path) -> None:
    worker, _, session = reader
    engine.enqueue("One two three.")
    list(worker.answer(session.id, "Count!", GenerationConfig(max_new_tokens=2)))
    list(worker.open_books(session.id, [write_book(tmp_path, OTHER, "other.txt")]))
    before = session.exchanges
    with pytest.raises(CoreError, match="library has changed"):
        list(worker.go_on(session.id, PLAIN))
    assert session.exchanges == before


@pytest.mark.parametrize(
    ("title", "name"),
    [("What is it?", "What-is-it"), ("../..", "conversation"), ("é/\0x", "é-x"), ("a" * 99, "a" * 60)],
)
def test_names_of_exports_are_harmless(title: str, name: str) -> None:
    assert file_name(title) == name
