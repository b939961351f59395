"""What the views say for a sequence of events."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.context.context_documents import Library
from app.context.open_book import Book
from app.context.token_costs import Meter
from app.context.uploads import Fit
from app.conversations.exchange import Exchange
from app.documents.document import Document
from app.runtime.events import Begun, Loading, Ready, Waiting
from app.runtime.sessions import Session, Writing
from app.runtime.trace import Trace
from app.ui.header import masthead, notice
from app.ui.library.page_viewer import Wanted, preview
from app.ui.library.view import incoming, listing
from app.ui.reading.book_view import book_card, is_paused
from app.ui.reading.chat_view import BLANK_ANSWER, EMPTY_ANSWER, PENDING, exchanges, live, live_texts, welcome
from app.ui.reading.checklist_view import checklist
from app.ui.reading.live_strip import strip, waits
from core.errors import CoreError
from core.generation.events import PrefillProgress
from core.planning.hardware import Gpu
from tests.app.conversations.test_tree import BOOK, a_dialogue, said
from tests.app.fakes import MACHINE, UNUSED_GPU, FakeEngine, document_of, finished, round_done
from tests.app.ui.pages import EVIL


def a_document(title: str = "A book", name: str = "book.pdf", warnings: tuple[str, ...] = ()) -> Document:
    return document_of("abcabcabca", "bcabcabcab", "cabcabcabc", title=title, name=name, warnings=warnings)


def a_session(document: Document | None = None, *, num_read: int = 8124) -> Session:
    """A page with an open book."""
    library = Library().add(document or a_document())
    book = Book(library.books[0].document, num_tokens=8123, num_opening=8125, context=131_072, library=library)
    session = Session("x", book=book, num_read=num_read)
    session.uploads.library = session.uploads.settled = library
    session.uploads.meter = Meter(len)
    session.uploads.fit = Fit(books=8123, frame=2, talk=0, reserve=512, context=131_072, possible=131_072)
    return session


def progress(done: int, *, reused: int = 0, total: int = 8124) -> PrefillProgress:
    seconds = (done - reused) / 1000
    return PrefillProgress(
        done_tokens=done,
        total_tokens=total,
        reused_tokens=reused,
        elapsed_seconds=seconds,
        remaining_seconds=(total - done) / 1000,
    )


# -------------------- the card of the book


def test_the_card_says_how_far_a_stopped_reading_came() -> None:
    session = a_session(num_read=2048)
    assert is_paused(session) and "Stopped at 25%" in book_card(session)
    assert "2,048 of 8,124 tokens" in book_card(session)


def test_a_shelf_that_is_too_long_is_to_be_chosen_from_and_nothing_is_said_to_be_read() -> None:
    session = a_session()
    session.uploads.library = session.uploads.settled = session.uploads.library.add(
        replace(a_document("Two"), text="xyz" * 10)
    )
    fit = Fit(books=200, frame=2, talk=30, reserve=50, context=270, possible=300)
    session.uploads.fit = fit
    html, listed = book_card(session), checklist(session)
    assert "282 tokens, the context holds 270" in html and "Nothing is cut by itself" in html
    assert "Until then questions go to A book." in html and "data-choosing" in html
    assert "Two" in listed and 'data-act="fresh"' in listed, "without the conversation it would fit"
    assert not is_paused(session)


def test_nothing_of_a_book_is_html() -> None:
    session = a_session(a_document(EVIL, f"{EVIL}.pdf", (EVIL,)))
    coming, failed = session.uploads.expect([EVIL, EVIL])
    failed.fail(CoreError(EVIL, hint=EVIL))
    session.uploads.note = EVIL
    for too_long in (False, True):
        session.uploads.library = session.uploads.library.add(
            replace(a_document(f"{EVIL}2"), text=f"{too_long}"[0] * 30)
        )
        fit = Fit(books=9**9 if too_long else 9, frame=2, talk=30, reserve=50, context=270, possible=300)
        session.uploads.settled, session.uploads.fit = session.uploads.library, fit
        key = session.uploads.library.books[0].key
        html = book_card(session) + incoming(session) + listing(session) + preview(session, Wanted(key, 1))
        html += checklist(session)
        assert "<img" not in html and html.count("&lt;img") > 8
    assert coming.stage == "waiting"


# -------------------- the live strip


@pytest.mark.parametrize(
    ("method", "num_read_before", "reading", "told"),
    [
        ("triforce", 8124, progress(1024, reused=3), ["Reading the book again", ">8,120<"]),
        ("triforce", 2048, progress(4096, reused=2048), ["Reading the book ·", ">0<"]),
        ("autoregressive", 0, None, ["not used by plain decoding", "Plain decoding"]),
    ],
)
def test_the_strip_tells_what_is_read_and_what_is_not_used(
    method: str, num_read_before: int, reading: PrefillProgress | None, told: list[str]
) -> None:
    html = strip(Trace("", method, num_book=8123, num_read_before=num_read_before, reading=reading), "")
    assert all(one in html for one in told), html


# -------------------- the conversation


def a_writing(session: Session, trace: Trace) -> Writing:
    """An answer that is asked for now."""
    return Writing(trace=trace, conversation=session.dialogue_id, beside=not session.fits)


def written(*events: Any, question: str = "Now?") -> tuple[Session, Writing]:
    """A page on which an answer is being written, after these events."""
    session = a_session()
    writing = session.writing = Writing(
        trace=Trace(question, "triforce"), conversation=session.dialogue_id, beside=not session.fits
    )
    for event in events:
        writing.trace.apply(event)
    return session, writing


def test_a_thought_is_told_by_its_length_and_then_by_its_time() -> None:
    stats = replace(finished("a b").stats, thought_tokens=2, thought_seconds=0.25)
    thought = replace(round_done("", 0), thought="Hm, hm.", stats=stats)
    session, writing = written(thought)
    assert live(session) == {"question": "Now?", "thought": "Thinking · 2 tokens"}
    assert live_texts(session) == {"text": "", "thought": "Hm, hm."}
    writing.trace.apply(replace(round_done("Yes", 1), stats=stats))
    assert (live(session) or {})["thought"] == "Thought for 2 tokens, 0.2 s"
    longer = Trace("Now?", "triforce", Exchange("Now?", replace(finished("a"), stats=stats, thought="Hm")))
    session.writing = a_writing(session, longer)
    longer.apply(replace(thought, thought=", hm."))
    assert live_texts(session)["thought"] == "Hm, hm."
    assert "4 tokens" in str(live(session)), "those of the part before count"


def answered(text: str) -> dict[str, Any]:
    """How an answer is shown once it has ended."""
    session = a_session()
    session.dialogue, session.digest = said(a_dialogue(), "Now?", text)[0], BOOK.digest
    (shown,) = exchanges(session).values()
    return shown


def test_an_empty_answer_and_one_of_white_space_alone_are_named() -> None:
    assert answered("")["notice"] == EMPTY_ANSWER and answered(" \n  ")["notice"] == BLANK_ANSWER
    assert answered("  a")["text"] == "  a" and "notice" not in answered("  a")
    session, writing = written(round_done(" \n ", 0))
    writing.begun = True
    assert (live(session) or {})["wait"] == f'<div class="waits">{PENDING}</div>'


# -------------------- the header


def test_the_header_tells_model_exactness_machine() -> None:
    engine = FakeEngine()
    ready, info = Ready(engine.info, MACHINE, engine.context), engine.info
    html = masthead(ready)
    assert "fake" in html and "exact · float32" in html and "CPU · 2 cores" in html and "4,096 tokens" in html
    assert "Loading the model" in masthead(Loading()) and notice(Loading()) == ""
    info.weights, info.quantised = "Q4_K, Q6_K", True
    assert "exact · Q4_K, Q6_K weights, float32" in masthead(ready), "the blocks of a file"
    info.plan.device = SimpleNamespace(value="cuda", because="found")
    assert "Big GPU" in masthead(replace(ready, machine=replace(MACHINE, gpus=(Gpu("Big GPU", 24 << 30, 23 << 30),))))


def test_a_gpu_that_does_not_compute_is_told_unless_the_processor_was_asked_for() -> None:
    engine = FakeEngine()
    machine = replace(MACHINE, unused_gpu=UNUSED_GPU)
    engine.info.plan.device = SimpleNamespace(value="cpu", because=UNUSED_GPU.because)
    html = notice(Ready(cast(Any, engine.info), machine, 4096))
    assert "is not used: torch 2.13.0+cpu is a build without CUDA." in html and "Run: python launch.py repair" in html
    assert "<img" not in html and 'role="status"' in html
    engine.info.plan.device = SimpleNamespace(value="cpu", because="asked for")
    assert notice(Ready(cast(Any, engine.info), machine, 4096)) == ""
    assert notice(Ready(cast(Any, engine.info), MACHINE, 4096)) == ""


# -------------------- waiting, in words


def test_it_is_told_why_there_is_no_word_yet() -> None:
    session = a_session(num_read=0)
    trace = Trace("Now?", "triforce", num_book=8123, num_read_before=8123)
    wait = a_writing(session, Trace("Now?", "triforce"))
    assert waits(wait, session) == "Waiting for its turn"
    session.doing = progress(2048)
    wait.apply(Waiting("own job", 0))
    html = waits(wait, session)
    assert "Waiting until the book is read" in html and "25% · a few seconds left" in html
    wait.apply(Waiting("another page", 1))
    assert "until" not in waits(wait, session).replace("Waiting until", "")
    wait.apply(Begun(trace))
    assert waits(wait, session) == "", "its turn has come, and nothing was read for it yet"
    trace.apply(progress(2048))
    assert "Reading the book again (another page used the model) · " in waits(wait, session)
    trace.apply(replace(progress(8100), reused_tokens=8000))
    assert waits(wait, session) == "Reading the question"
    trace.apply(round_done("It ", 1))
    assert waits(wait, session) == "", "its words tell enough"


def test_a_book_that_was_still_in_memory_is_not_said_to_be_read() -> None:
    session = a_session()
    session.read_seconds = 0.1
    assert "Read once, in 0.1 s." in book_card(session)
    session.num_reused = 8123
    html = book_card(session)
    assert "Opened again in 0.1 s, from memory." in html and "Read once" not in html
    session.read_seconds = 0.0
    assert "Opened again at once, from memory." in book_card(session)
    session.num_reused, session.read_seconds = 6000, 20.0
    assert "Read in 20 s; part of it was still in memory." in book_card(session)
    session.num_reused, session.read_seconds = 0, 0.1
    assert "Read once, in 0.1 s." in book_card(session)


def test_a_page_without_a_book_opens_none_while_the_model_loads() -> None:
    session = Session("x", doing=Waiting("loading", 0))
    assert not session.is_reading and "Waiting" not in book_card(session)
    assert "Ask a whole book" in welcome(session)
    session.uploads.expect(["book.txt"])
    assert session.is_reading and "The book is being opened" in welcome(session)
