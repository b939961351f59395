"""A document of a thousand pages: what is drawn of it does not grow with it, and has none of its text unasked."""

import json
from collections.abc import Callable

from app.documents.document import Document
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library.page_viewer import Wanted, preview
from app.ui.library.view import incoming, listing
from app.ui.reading.book_view import book_card
from app.ui.reading.chat_view import exchanges
from app.ui.reading.where import MOST_BARS, MOST_TOP, opened_page, where
from core.config import GenerationConfig
from tests.app.fakes import FakeEngine, document_of

NUM_PAGES, NUM_CHAPTERS = 1000, 100
MOST_CHARS = 60_000  # of all that is drawn together; the text has more


def a_document() -> Document:
    """On every page a word that stands nowhere else."""
    pages = [
        f"Secret{number:04} was told to nobody but the harbour master and his wife. " for number in range(NUM_PAGES)
    ]
    chapter_starts = range(0, NUM_PAGES * len(pages[0]), NUM_PAGES * len(pages[0]) // NUM_CHAPTERS)
    return document_of(*pages, name="long.pdf", chapter_starts=chapter_starts)


def drawn(session: Session) -> str:
    """All that the page shows of a book that nobody has looked into."""
    chat = json.dumps(exchanges(session))
    return book_card(session) + incoming(session) + listing(session) + where(session) + chat


def test_what_is_drawn_stays_small_and_pages_come_one_by_one(start_worker: Callable[..., EngineWorker]) -> None:
    document, engine = a_document(), FakeEngine(context=200_000)
    worker = start_worker(engine)
    session = worker.sessions.enter("")
    list(worker.arrange(session.id, lambda library: library.add(document)))
    assert session.book is not None and session.is_read
    asked = (session.book.first_token + document.pages[776].char_start) // session.book.chunk_size + 1
    engine.weights = [0.0] * (asked + 2000)
    engine.weights[asked] = 0.5
    engine.enqueue('It says "was told to nobody but the harbour master".')
    list(worker.answer(session.id, "Who was told?", GenerationConfig()))
    html = drawn(session)
    assert "Secret" not in html and len(html) < MOST_CHARS < len(document.text), f"{len(html)} characters"
    strip = where(session)
    assert strip.count("bar-page") <= MOST_BARS and strip.count('class="chip"') <= MOST_TOP
    key = session.uploads.library.books[0].key
    assert f'data-act="page:{key}:777"' in strip and "most on page 777" in strip
    for page in (opened_page(session, Wanted(key, 777)), preview(session, Wanted(key, 777))):
        assert page.count("Secret") == 1 and "Secret0776" in page


def test_a_book_that_is_too_long_offers_a_few_parts(start_worker: Callable[..., EngineWorker]) -> None:
    worker = start_worker(FakeEngine(context=8000))
    session = worker.sessions.enter("")
    list(worker.arrange(session.id, lambda library: library.add(a_document())))
    assert session.book is None and session.uploads.too_long
    html = drawn(session)
    assert "Secret" not in html and len(html) < MOST_CHARS
    assert html.count('class="offer"') <= 8
