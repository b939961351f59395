"""Books on disk, for the page: offered, kept, opened after a restart, and making way for whoever asks something."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from app.runtime.events import BookMoving
from app.runtime.saved_books import SavedBooks, disk_state
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library import view as saved
from app.ui.library.view import saved_list
from app.ui.reading.book_view import book_card as card
from core.config import GenerationConfig
from core.engine import Engine
from core.errors import InvalidSetting
from core.generation.events import Finished, PrefillProgress
from core.kv_store.folder import BookFolderSettings
from core.kv_store.folder import SavingMode as Mode
from tests.app.fakes import opened, write_book
from tests.app.runtime.test_worker import wait_for
from tests.core import toys
from tests.core.models.tiny_families import family_engine, transformers_text
from tests.core.toys import random_prompt, tiny_engine, with_words

TEXT = "It was a dark and stormy night. " * 40
LONG = TEXT * 3  # some chunks: it is still being read when the reader stops it
PLAIN = GenerationConfig(max_new_tokens=6)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every reading is worth keeping; one thread."""
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start(tmp_path: Path, start_worker: Callable[..., EngineWorker]) -> Callable[[], EngineWorker]:
    """A start of the program on the same data folder; each has an engine of its own."""

    def begin() -> EngineWorker:
        engine = with_words(tiny_engine(context=2048, prefill_chunk=128))
        return start_worker(engine, saved_books=SavedBooks(tmp_path / "shelf"))

    return begin


def kept(worker: EngineWorker) -> list[str]:
    assert worker.saved_books.folder is not None
    return [book.name for book in worker.saved_books.folder.books()]


def choose(worker: EngineWorker, mode: Mode) -> None:
    assert worker.saved_books.folder is not None
    worker.saved_books.folder.choose(BookFolderSettings(keeping=mode))


def saves(worker: EngineWorker, session: Session) -> None:
    """Ask for the book to be saved, and wait until nothing is written any more."""
    disk_state(session).wanted = True
    worker.reading.save_later(session)
    wait_for(lambda: not worker.is_busy(session))


def answer(worker: EngineWorker, session_id: str) -> Finished:
    *_, last = (e for e in worker.answer(session_id, "How was it?", PLAIN) if isinstance(e, Finished))
    return last


def test_a_book_is_offered_with_its_size_kept_on_request_and_opened_after_a_restart(
    start: Callable[[], EngineWorker], tmp_path: Path
) -> None:
    worker, file = start(), write_book(tmp_path, TEXT)
    session = worker.sessions.get(opened(worker, file))
    offer = disk_state(session).offer
    assert offer is not None and kept(worker) == []
    assert "Save what was read?" in card(session) and "KiB" in card(session)
    first = answer(worker, session.id)  # an answer in between does not matter
    version = session.version
    saves(worker, session)
    assert session.version > version, "its page is told, though nobody follows the job"
    assert "Saved on disk: " in card(session) and "Save what was read?" not in card(session)
    assert kept(worker) == ["book.txt"]

    worker = start()
    session = worker.sessions.get(worker.sessions.enter("").id)
    events = list(worker.open_books(session.id, [file]))
    reading = [event for event in events if isinstance(event, PrefillProgress)]
    assert [event.reused_tokens == event.total_tokens for event in reading] == [True], "nothing was read"
    assert any(isinstance(event, BookMoving) and event.what == "opening" for event in events)
    assert session.is_read and "Opened from disk in" in card(session) and "Save what was read?" not in card(session)
    assert answer(worker, session.id).token_ids == first.token_ids
    assert session.exchanges[-1].num_reread == 0


def read_by_an_answer(worker: EngineWorker, file: Path) -> Session:
    """A page whose reader stopped the reading early and asked all the same."""
    session = worker.sessions.enter("")
    for event in worker.open_books(session.id, [file]):
        if isinstance(event, PrefillProgress) and event.done_tokens:
            worker.stop_reading(session.id)
    assert not session.is_read and disk_state(session).offer is None
    answer(worker, session.id)
    assert session.is_read
    return session


def test_a_book_that_an_answer_read_is_offered_and_opened_after_a_restart(
    start: Callable[[], EngineWorker], tmp_path: Path
) -> None:
    worker, file = start(), write_book(tmp_path, LONG)
    session = read_by_an_answer(worker, file)
    assert "Save what was read?" in card(session) and session.read_seconds > 0
    saves(worker, session)
    assert kept(worker) == ["book.txt"]
    wanted = session.exchanges[-1].finished.token_ids
    worker = start()
    session = worker.sessions.get(worker.sessions.enter("").id)
    reading = [event for event in worker.open_books(session.id, [file]) if isinstance(event, PrefillProgress)]
    assert [event.reused_tokens == event.total_tokens for event in reading] == [True], "nothing was read"
    assert answer(worker, session.id).token_ids == wanted


@pytest.mark.parametrize("family", ["gemma3_text", "lfm2"])  # windows, running states
def test_a_text_whose_rows_are_not_all_there_is_read_again_and_answered_alike(family: str) -> None:
    engine, stock = family_engine(family)
    books, session = SavedBooks(), Session("a page")
    a, b = random_prompt(300), random_prompt(280, 1)
    for prompt in (a, b, a):
        list(books.fetch(session, prompt, engine, threading.Event()))
        written = toys.answer(engine, prompt, "retrieval", tokens=12).token_ids
        assert written == transformers_text(stock, prompt, 12)
    assert books.num_in_memory(a) == books.num_in_memory(b) == 0


def a_read_book(tmp_path: Path) -> tuple[SavedBooks, Session, Engine]:
    """Without a worker: what it does on the engine's thread, step by step."""
    engine, saved_books = with_words(tiny_engine(context=2048, prefill_chunk=128)), SavedBooks(tmp_path / "shelf")
    session = Session("", incognito=False)
    session.book = type("Anything", (), {"names": ("one.txt",), "num_opening": 700})()
    ids = list(range(2, 60)) * 10
    list(engine.read([*ids, 0]))
    saved_books.read_ended(session, ids, engine)
    return saved_books, session, engine


def test_writing_makes_way_for_whoever_waits_and_goes_on_after_that(tmp_path: Path) -> None:
    saved_books, session, engine = a_read_book(tmp_path)
    state = disk_state(session)
    state.wanted, jobs = True, 0
    while state.wanted:
        moves = list(saved_books.write(session, lambda: True, engine, threading.Event()))
        assert len(moves) <= 1, "a step, then the others"
        jobs += 1
    assert jobs > 3 and state.kept_bytes > 0 and saved_books.folder is not None and len(saved_books.folder.books()) == 1


def test_writing_ends_with_its_book(
    start: Callable[[], EngineWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A book that is opened while another is written is not saved unasked, and nothing goes on for ever."""
    worker = start()
    session = worker.sessions.get(opened(worker, write_book(tmp_path, TEXT, "one.txt")))
    written, jobs = worker.saved_books.write, [0]

    def opens_another(page: Session, *rest: Any) -> Iterator[Any]:
        jobs[0] += 1
        assert jobs[0] < 3, "it goes on without an end"
        page.book = replace(page.book) if page.book else None
        yield from written(page, *rest)

    monkeypatch.setattr(worker.saved_books, "write", opens_another)
    saves(worker, session)
    assert jobs == [1] and kept(worker) == []


def test_the_list_shows_sizes_removes_and_settles_the_room(tmp_path: Path) -> None:
    saved_books, session, engine = a_read_book(tmp_path)
    disk_state(session).wanted = True
    list(saved_books.write(session, lambda: False, engine, threading.Event()))
    assert saved_books.folder is not None
    (book,) = saved_books.folder.books()
    site: Any = SimpleNamespace(worker=SimpleNamespace(saved_books=saved_books))

    def after(verb: str, detail: str = "", **values: str) -> str:
        saved.ACTS[verb](site, session, detail, values)
        return saved.saved_books(site, session)

    drawn = saved.saved_books(site, session)
    assert "one.txt" in drawn and f"unkeep:{book.id}" in drawn and 'keeping:ask" checked' in drawn
    assert 'keeping:always" checked' in after("keeping", "always", value="on")
    assert 'value="7.5"' in after("saved-room", value="7.5") and saved_books.folder.settings.cap_bytes == 15 << 29
    for verb, detail, value in (("keeping", "sometimes", "on"), ("saved-room", "", " "), ("saved-room", "", "-1")):
        with pytest.raises(InvalidSetting):
            after(verb, detail, value=value)
    drawn = saved.saved_books(site, session)
    assert 'keeping:always" checked' in drawn and 'value="7.5"' in drawn, "what was refused changed nothing"
    assert "one.txt" in after("unkeep", "../../etc") and "one.txt" not in after("unkeep", book.id)
    assert saved_books.folder.books() == []
    site.worker.saved_books = SavedBooks()
    assert "keeps no books" in after("keeping", "always")


def test_names_of_documents_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    line = SimpleNamespace(id="ab12", name=evil, label=SimpleNamespace(num_tokens=10), size_bytes=2048, used=0.0)
    shown = saved_list([cast(Any, line)], 1 << 30, ["<b>"], now=60.0)
    assert "<script>" not in shown and "&lt;b&gt;" in shown and "used 1 min" in shown
