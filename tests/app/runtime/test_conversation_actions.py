"""Conversations as a reader has them: branches, edits, restarts, incognito; on a scripted engine and on a real one."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from app.context.context_documents import Library, digest_of
from app.conversations.database import NAME
from app.conversations.store import Conversations
from app.runtime.context_loader import talk_tokens
from app.runtime.conversation_actions import Conversing, file_name
from app.runtime.prompts import with_past
from app.runtime.recording import PARTIAL_SECONDS, ExchangeGone, Place, Recording
from app.runtime.sessions import OtherBook, Session
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.errors import CoreError
from core.generation.events import Finished, PrefillProgress, RoundDone
from core.generation.session import Conversation
from tests.app.conversations.on_disk import text_of
from tests.app.fakes import ANSWER, NIGHT, SECONDS, FakeEngine, Reader, document_of, finished, round_done, until
from tests.app.ui.test_views import a_session, progress
from tests.core.toys import tiny_engine, with_words

SHORT = GenerationConfig(max_new_tokens=8)
OTHER = "Another book. " * 9


@dataclass(eq=False)
class Talker(Reader):
    """A page, and what it can do with its conversations."""

    conversing: Conversing


Start = Callable[..., Talker]


@pytest.fixture
def start(tmp_path: Path, engine: FakeEngine, start_worker: Callable[..., EngineWorker]) -> Start:
    """Start the program on the test's data folder, with a page that opens a book; again: that page after a restart."""
    begun: list[Talker] = []

    def begin(on: Any = None) -> Talker:
        for before in begun:
            before.worker.close()
        worker = start_worker(on or engine, conversations=Conversations(tmp_path / "conversations"))
        session = worker.sessions.enter(begun[0].session.id if begun else "")
        begun.append(Talker(worker, on or engine, session, tmp_path, Conversing(worker)))
        begun[-1].conversing.arrive(session) if len(begun) > 1 else begun[-1].opens()
        return begun[-1]

    return begin


@pytest.fixture
def reader(start: Start) -> Talker:
    """A page on the scripted engine whose book was read."""
    return start()


def test_a_branch_and_an_edit_read_no_token_of_the_book_again(start: Start) -> None:
    reader = start(with_words(tiny_engine(context=1024)))
    conversing, session = reader.conversing, reader.session
    for question in ("One?", "Two?"):
        reader.asks(question, config=SHORT)
    assert session.dialogue is not None and session.book is not None
    first, second = session.dialogue.path
    conversing.branch(session, first.id)
    branched = cast(PrefillProgress, until(PrefillProgress, reader.begins("Branched?", SHORT)))
    one = reader.begins("One, differently?", SHORT, parent=first.parent)
    edited = cast(PrefillProgress, until(PrefillProgress, one))
    list(one)
    assert branched.reused_tokens > session.book.num_opening and edited.reused_tokens >= session.book.num_opening - 1
    assert session.exchanges[-1].num_reread == 0 and second.id in {node.id for node in session.dialogue.nodes}


def test_a_stopped_answer_goes_on_where_it_stopped_but_not_about_another_text(reader: Talker) -> None:
    worker, engine, session = reader.worker, reader.engine, reader.session
    engine.enqueue("One two | three.")
    stream = reader.begins("Count!", GenerationConfig(method="triforce"))
    until(RoundDone, stream)
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
        worker.go_on(session.id, ANSWER)
    with pytest.raises(ExchangeGone):
        worker.regenerate(session.id, ANSWER, "unknown")
    reader.asks("Again!", "One two three.", GenerationConfig(max_new_tokens=2))
    reader.opens(OTHER, "other.txt")
    before = session.exchanges
    with pytest.raises(CoreError, match="library has changed"):
        list(worker.go_on(session.id, ANSWER))
    assert session.exchanges == before


# -------------------- on disk


def test_after_a_restart_the_same_book_goes_on_with_the_same_tokens(start: Start) -> None:
    before = start()
    before.asks("One?", "First answer.")
    told, reader = before.session.exchanges, start()
    worker, engine, session = reader.worker, reader.engine, reader.session
    assert reader.questions == ["One?"] and session.exchanges == () and not session.fits, "the text is there"
    with pytest.raises(OtherBook, match="Open that book again"):
        reader.begins("Two?")
    reader.opens(name="renamed.txt")
    assert session.exchanges == told and session.fits, "what counts is the text"
    reader.asks("Two?", "Second answer.")
    ids = list(told[0].finished.token_ids)
    assert any(engine.prompts[-1][at : at + len(ids)] == ids for at in range(len(engine.prompts[-1])))
    kept = session.dialogue
    reader.arranges(lambda _: Library().add(document_of(OTHER)))
    assert session.dialogue is None and len(worker.conversations.listing().summaries) == 1 and kept is not None
    reader.conversing.open(session, kept.id)
    assert not session.fits and reader.questions == ["One?", "Two?"]
    reader.opens(name="renamed.txt")
    assert session.fits and session.book is not None and session.book.names == ("renamed.txt",)
    assert "The library now holds only" in session.uploads.note, "beside the other book it would be another text"
    assert session.removed is not None and session.removed.library.books[0].document.text == OTHER


@pytest.mark.parametrize("wrong", [[600_000], [2**62] * 40, [10**400]])
def test_tokens_that_the_model_has_not_never_reach_it(wrong: list[int], start: Start, tmp_path: Path) -> None:
    """A file was changed, or the model was: its answer goes on, and is gone on from, as the text that it is."""
    before = start(with_words(tiny_engine(context=1024)))
    before.asks("One?", config=SHORT)
    before.worker.close()
    with closing(sqlite3.connect(tmp_path / "conversations" / NAME)) as db, db:
        answer = json.loads(db.execute("SELECT answer FROM exchanges").fetchone()[0])
        answer["token_ids"], text = answer["token_ids"] + wrong, answer["text"]
        db.execute("UPDATE exchanges SET answer = ?", (json.dumps(answer),))
    reader = start(with_words(tiny_engine(context=1024)))
    reader.opens()
    assert set(wrong) <= set(reader.session.exchanges[0].finished.token_ids), "the file alone does not tell"
    *_, end = reader.worker.go_on(reader.session.id, SHORT)
    assert isinstance(end, Finished) and not set(wrong) & set(end.token_ids)
    assert reader.session.exchanges[0].finished.text.startswith(text)
    reader.asks("Two?", config=SHORT)
    assert len(reader.session.exchanges) == 2


def test_a_question_is_on_disk_before_its_answer(reader: Talker) -> None:
    reader.engine.writing.clear()
    stream = reader.begins("Will it be lost?")
    until(PrefillProgress, stream)
    assert reader.worker.conversations.flush(SECONDS)
    killed = Conversations(reader.folder / "conversations")
    (summary,) = killed.listing().summaries
    (node,) = killed.open(summary.id).path
    assert node.question == "Will it be lost?" and node.exchange is None
    stream.close()  # type: ignore[attr-defined]


def test_an_answer_is_saved_every_few_seconds() -> None:
    time_now = 0.0
    store = Conversations()
    session = Session("x", book=a_session().book, digest="d", num_read=8124)
    recording = Recording(session, store, Place(question="Long?"), ANSWER, clock=lambda: time_now)
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


def test_incognito_writes_nothing(reader: Talker) -> None:
    worker, conversing, session = reader.worker, reader.conversing, reader.session

    def on_disk() -> set[str]:
        assert worker.conversations.flush(SECONDS)
        return text_of(reader.folder / "conversations")

    conversing.incognito(session)
    reader.asks("A secret?", "Yes."), reader.asks("Another?", "Yes.")
    assert session.dialogue is not None
    conversing.rename(session, session.dialogue.id, "Secret title")
    conversing.branch(session, session.dialogue.path[0].id)
    conversing.remove(session, session.dialogue.nodes[1].id)
    assert reader.questions == ["A secret?"] and session.dialogue.title == "Secret title"
    assert not on_disk() and worker.conversations.listing().summaries == ()
    conversing.incognito(session)
    assert session.dialogue is None and not session.incognito
    reader.asks("Open?", "Yes.")
    assert on_disk() == {"Open?"}


def test_a_conversation_deleted_elsewhere_goes_on_as_a_new_one(reader: Talker) -> None:
    worker, conversing, here = reader.worker, reader.conversing, reader.session
    reader.asks("One?")
    old = here.dialogue_id
    conversing.delete(worker.sessions.enter(""), old)
    reader.asks("Two?")
    assert reader.questions == ["One?", "Two?"] and here.dialogue_id != old
    assert [one.id for one in worker.conversations.listing().summaries] == [here.dialogue_id]


def test_a_conversation_goes_on_when_the_shelf_changes_and_knows_the_text_of_its_last_question(start: Start) -> None:
    reader = start()
    session = reader.session
    reader.asks("One?", "First answer.")
    reader.opens(OTHER, "other.txt")
    assert session.fits and len(session.exchanges) == 1 and session.dialogue is not None and session.book is not None
    assert session.dialogue.book.names == ("book.txt",), "nothing was asked about both yet"
    assert session.where is None and session.num_talk > 0
    reader.asks("Both?", "Second answer.")
    reference = session.dialogue.book
    assert reference.digest == digest_of(session.book.library.text).hex() == session.digest
    assert reference.names == ("book.txt", "other.txt") and reference.title == "book and 1 more"
    first, second = session.exchanges
    assert first.digest == digest_of(NIGHT).hex() != second.digest == session.digest

    after = start()
    again = after.session
    after.opens()
    assert after.questions == ["One?", "Both?"] and not again.fits, "it waits for the rest of its shelf"
    after.opens(OTHER, "other.txt")
    assert again.fits and again.num_talk == session.num_talk > 0
    after.arranges(lambda library: library.move(1, 0))
    assert again.fits and "goes on" in again.uploads.note and again.dialogue is not None
    for node in again.dialogue.path:  # the budget follows the branch that is shown
        after.conversing.branch(again, node.id)
        turns = with_past(Conversation(), again.exchanges, cast(Any, after.engine)).turns
        assert again.num_talk == talk_tokens(cast(Any, after.engine.text), turns) > 0
    after.conversing.new(again)
    assert again.uploads.note == "", "it goes on no more"


@pytest.mark.parametrize(
    ("title", "name"),
    [("What is it?", "What-is-it"), ("../..", "conversation"), ("é/\0x", "é-x"), ("a" * 99, "a" * 60)],
)
def test_names_of_exports_are_harmless(title: str, name: str) -> None:
    assert file_name(title) == name
