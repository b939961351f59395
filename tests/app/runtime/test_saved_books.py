"""Books on disk, for the page: offered, kept, opened after a restart, and making way for whoever asks something."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.context.kept_documents import KeptDocuments
from app.runtime.events import BookMoving
from app.runtime.saved_books import SavedBooks, disk_state
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library import view as saved
from app.ui.reading.book_view import book_card as card
from core.config import GenerationConfig
from core.engine import Engine
from core.errors import CoreError, InvalidSetting
from core.generation.events import PrefillProgress
from tests.app.fakes import Reader, wait_for
from tests.core import toys
from tests.core.conftest import one_thread as one_thread
from tests.core.models.tiny_families import family_engine, transformers_text
from tests.core.toys import random_prompt, tiny_engine, with_words

TEXT = "It was a dark and stormy night. " * 120  # some chunks: it is still being read when the reader stops it
SHORT = GenerationConfig(max_new_tokens=6)


@pytest.fixture(autouse=True)
def kept_always(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading is worth keeping."""
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)


@pytest.fixture
def start(tmp_path: Path, start_worker: Callable[..., EngineWorker]) -> Callable[[], Reader]:
    """A start of the program on the same data folder; each has an engine of its own."""

    def begin() -> Reader:
        engine: Any = with_words(tiny_engine(context=2048, prefill_chunk=128))
        worker = start_worker(engine, saved_books=SavedBooks(tmp_path / "shelf"))
        return Reader(worker, engine, worker.sessions.enter(""), tmp_path)

    return begin


def kept(saved_books: SavedBooks) -> list[str]:
    assert saved_books.folder is not None
    return [book.name for book in saved_books.folder.books()]


def saves(reader: Reader) -> None:
    """Ask for the book to be saved, and wait until nothing is written any more."""
    disk_state(reader.session).wanted = True
    reader.worker.reading.save_later(reader.session)
    wait_for(lambda: not reader.worker.is_busy(reader.session))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_book_is_offered_with_its_size_kept_on_request_and_opened_after_a_restart(
    stopped: bool, start: Callable[[], Reader]
) -> None:
    """`stopped`: its reading was, and the answer read the rest."""
    reader = start()
    session = reader.session
    for event in reader.begins_to_open(TEXT):
        if stopped and isinstance(event, PrefillProgress) and event.done_tokens:
            reader.worker.stop_reading(session.id)
    assert session.is_read != stopped and (disk_state(session).offer is None) == stopped
    first = reader.asks("How was it?", config=SHORT)
    assert session.is_read and session.read_seconds > 0 and kept(reader.worker.saved_books) == []
    assert "Save what was read? It takes 1." in card(session)
    version = session.version
    saves(reader)
    assert session.version > version, "its page is told, though nobody follows the job"
    assert "Saved on disk: " in card(session) and "Save what was read?" not in card(session)
    assert kept(reader.worker.saved_books) == ["book.txt"]

    reader = start()
    session, events = reader.session, reader.opens(TEXT)
    reading = [event for event in events if isinstance(event, PrefillProgress)]
    assert [event.reused_tokens == event.total_tokens for event in reading] == [True], "nothing was read"
    assert any(isinstance(event, BookMoving) and event.what == "opening" for event in events)
    assert session.is_read and "Opened from disk in" in card(session) and "Save what was read?" not in card(session)
    session.disk.num_fetched = session.num_reused = session.num_reused // 2  # its beginning alone was saved
    assert "part of it came from disk" in card(session)
    assert reader.asks("How was it?", config=SHORT).token_ids == first.token_ids
    assert session.exchanges[-1].num_reread == 0


def test_a_text_that_cannot_be_kept_is_told_once_and_the_book_is_saved(start: Callable[[], Reader]) -> None:
    reader = start()
    session = reader.session
    reader.opens(TEXT)
    session.kept = KeptDocuments(reader.folder / "book.txt" / "kept")
    with pytest.raises(CoreError, match="could not be kept"):
        saves(reader)
    wait_for(lambda: not reader.worker.is_busy(session))
    assert kept(reader.worker.saved_books) == ["book.txt"]
    reader.asks("How was it?", config=SHORT)


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


def test_writing_makes_way_for_whoever_waits_and_what_was_kept_is_listed_removed_and_given_room(tmp_path: Path) -> None:
    """Without a worker: what it does on the engine's thread, step by step."""
    engine: Engine = with_words(tiny_engine(context=2048, prefill_chunk=128))
    books, session, ids = SavedBooks(tmp_path / "shelf"), Session(""), list(range(2, 60)) * 10
    session.book = type("Anything", (), {"names": ("one.txt",), "num_opening": 700})()
    list(engine.read([*ids, 0]))
    books.read_ended(session, ids, engine)
    state = disk_state(session)
    state.wanted, jobs = True, 0
    while state.wanted:
        moves = list(books.write(session, lambda: True, engine, threading.Event()))
        assert len(moves) <= 1, "a step, then the others"
        jobs += 1
    assert jobs > 3 and state.kept_bytes > 0 and kept(books) == ["one.txt"] and books.folder is not None
    (book,) = books.folder.books()
    site: Any = SimpleNamespace(worker=SimpleNamespace(saved_books=books))

    def after(verb: str, detail: str = "", **values: str) -> str:
        saved.ACTS[verb](site, session, detail, values)
        return saved.saved_books(site, session)

    drawn = saved.saved_books(site, session)
    assert "one.txt" in drawn and f"unkeep:{book.id}" in drawn and 'keeping:ask" checked' in drawn
    assert 'keeping:always" checked' in after("keeping", "always", value="on")
    assert 'value="7.5"' in after("saved-room", value="7.5") and books.folder.settings.cap_bytes == 15 << 29
    for verb, detail, value in (("keeping", "sometimes", "on"), ("saved-room", "", " "), ("saved-room", "", "-1")):
        with pytest.raises(InvalidSetting):
            after(verb, detail, value=value)
    drawn = saved.saved_books(site, session)
    assert 'keeping:always" checked' in drawn and 'value="7.5"' in drawn, "what was refused changed nothing"
    assert "one.txt" in after("unkeep", "../../etc") and "one.txt" not in after("unkeep", book.id)
    site.worker.saved_books = SavedBooks()
    assert "keeps no books" in after("keeping", "always")


def test_writing_ends_with_its_book(start: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    """A book that is opened while another is written is not saved unasked, and nothing goes on for ever."""
    reader = start()
    reader.opens(TEXT)
    books, jobs = reader.worker.saved_books, [0]
    written = books.write

    def opens_another(page: Session, *rest: Any) -> Iterator[Any]:
        jobs[0] += 1
        assert jobs[0] < 3, "it goes on without an end"
        page.book = replace(page.book) if page.book else None
        yield from written(page, *rest)

    monkeypatch.setattr(books, "write", opens_another)
    saves(reader)
    assert jobs == [1] and kept(books) == []
