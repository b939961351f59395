"""Conversations open their books again: kept texts with their parts, samples, and what is gone is told in a line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.context.context_documents import Library, Pages
from app.context.kept_documents import KeptDocuments, KeptTextGone
from app.conversations.export import as_json
from app.conversations.schema import load
from app.conversations.store import Conversations
from app.runtime.reopening import forget_texts, keep_texts, keeping, missing
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from tests.app.fakes import FakeEngine, write_book
from tests.app.ui.pages import PageOf

PAGES = "\f".join(f"Page {number} of the book. It was dark. " * 4 for number in range(1, 6))


@pytest.fixture
def worker(engine: FakeEngine, tmp_path: Path, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    engine.context = 200_000
    kept = KeptDocuments(tmp_path / "kept")
    return start_worker(engine, conversations=Conversations(tmp_path / "conversations"), kept=kept)


def test_a_kept_book_opens_again_in_its_order_and_parts_and_what_is_gone_is_named_in_one_line(
    worker: EngineWorker, tmp_path: Path
) -> None:
    files = [write_book(tmp_path, name="b.txt"), write_book(tmp_path, PAGES, "a.txt")]
    session = worker.sessions.enter("")
    list(worker.open_books(session.id, files))
    list(worker.arrange(session.id, lambda now: now.choose(1, Pages(1, 1))))
    keep_texts(session)
    list(worker.answer(session.id, "Dark?", GenerationConfig(max_new_tokens=2)))
    assert session.dialogue is not None
    dialogue = load(as_json(session.dialogue), session.dialogue.id)  # as after a restart
    for file in files:
        file.unlink()
    assert missing(dialogue.book, session.kept) == ()
    list(worker.arrange(session.id, lambda _: Library()))
    list(worker.open_books(session.id, [write_book(tmp_path, "Something else. " * 9, "other.txt")]))
    session.dialogue = dialogue  # chosen in the list
    assert not session.fits
    page = PageOf(worker, session.id)
    page.does("reopen")
    page.rests()
    assert session.fits and session.is_read and session.exchanges
    assert [one.document.name for one in session.uploads.library.books] == ["b.txt", "a.txt"]
    assert "Removed other." in page.state()["book"]
    page.does("undo")
    page.rests()
    assert [one.document.name for one in session.uploads.library.books] == ["other.txt", "b.txt", "a.txt"]
    list(worker.arrange(session.id, lambda _: Library()))
    session.dialogue = dialogue
    session.kept.forget(bytes.fromhex(dialogue.book.documents[1]))
    assert missing(dialogue.book, session.kept) == ("a.txt",)
    list(worker.reading.reopen(session))
    (failed,) = session.uploads.pending
    assert failed.error is not None and failed.error.problem == "The text of a.txt is no longer kept."
    assert not session.fits


def test_keeping_is_asked_for_told_and_undone(worker: EngineWorker, session: Session, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert keeping(session) is False and not kept.exists(), "nothing is written unasked"
    keep_texts(session)
    assert keeping(session) is True
    (path,) = kept.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    forget_texts(session)
    assert keeping(session) is False and not list(kept.iterdir())
    session.incognito = True
    keep_texts(session)
    assert keeping(session) is None and not list(kept.iterdir())


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"format": "pdf", "direction": "ltr"}', None])
def test_a_damaged_text_is_gone(damage: bytes | None, session: Session, tmp_path: Path) -> None:
    keep_texts(session)
    (book,), (path,) = session.uploads.library.books, (tmp_path / "kept").iterdir()
    assert session.kept.load(book.digest, "x").document == book.document
    path.write_bytes(path.read_bytes().replace(b"dark", b"pale") if damage is None else damage)
    with pytest.raises(KeptTextGone, match="The text of x is no longer kept"):
        session.kept.load(book.digest, "x")
