"""What the views say for a sequence of events, and how numbers are written."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app import formats
from app.context.context_documents import Library
from app.context.open_book import Book
from app.context.samples import Sample, load_samples, one_of_each
from app.context.token_costs import Meter
from app.context.uploads import Fit
from app.runtime.events import Begun, Loading, Ready, Waiting
from app.runtime.sessions import Session, Writing
from app.runtime.trace import Trace
from app.runtime.worker import EngineWorker
from app.ui.header import masthead, notice
from app.ui.reading.book_view import book_card, is_paused
from app.ui.reading.chat_view import PENDING, live, welcome
from app.ui.reading.live_strip import strip, waits
from app.ui.reading.parts import samples, suggestions
from app.ui.reading.where import MOST_BARS, MOST_TOP
from app.ui.render import bar
from app.ui.site import Site, follow
from core.errors import CoreError
from core.generation.events import PrefillProgress
from core.generation.prefill import work_of
from core.planning.choices import Choice
from core.planning.devices import NOMINAL_PROCESSOR
from core.planning.hardware import Gpu
from core.planning.measured import Processor
from tests.app.fakes import (
    MACHINE,
    SECONDS,
    UNUSED_GPU,
    FakeEngine,
    Reader,
    document_of,
    round_done,
    wait_for,
    write_book,
)
from tests.app.ui.pages import PageOf
from tests.core.toys import tiny_engine


def a_session(*, num_read: int = 8124) -> Session:
    """A page with an open book."""
    library = Library().add(document_of("abcabcabca", "bcabcabcab", "cabcabcabc", title="A book", name="book.pdf"))
    book = Book(library.books[0].document, num_tokens=8123, num_opening=8125, library=library)
    session = Session("x", book=book, num_read=num_read)
    session.uploads.library = session.uploads.settled = library
    session.uploads.meter = Meter(len)
    session.uploads.fit = Fit(books=8123, frame=2, talk=0, reserve=512, context=131_072, possible=131_072)
    return session


def progress(done: int, *, reused: int = 0) -> PrefillProgress:
    return PrefillProgress(
        done_tokens=done,
        total_tokens=8124,
        reused_tokens=reused,
        elapsed_seconds=(done - reused) / 1000,
        remaining_seconds=(8124 - done) / 1000,
    )


# -------------------- the card of the book


def test_the_card_says_how_the_book_was_read() -> None:
    session = a_session()
    for session.num_reused, session.read_seconds, told in (
        (0, 0.1, "Read once, in 0.1 s."),
        (8123, 0.1, "Opened again in 0.1 s, from memory."),
        (8123, 0.0, "Opened again at once, from memory."),
        (6000, 20.0, "Read in 20 s; part of it was still in memory."),
    ):
        assert told in book_card(session) and not is_paused(session)
    session.num_read = 2048
    assert is_paused(session) and "Stopped at 25%" in book_card(session)
    assert "2,048 of 8,124 tokens" in book_card(session)
    session.uploads.fit = Fit(books=200, frame=2, talk=30, reserve=50, context=270, possible=300)
    html = book_card(session)
    assert not is_paused(session) and "282 tokens, the context holds 270" in html and "data-choosing" in html


def test_a_page_without_a_book_opens_none_while_the_model_loads() -> None:
    session = Session("x", doing=Waiting("loading", 0))
    assert not session.is_reading and "Waiting" not in book_card(session)
    assert "Ask a whole book" in welcome(session)
    session.uploads.expect(["book.txt"])
    assert session.is_reading and "The book is being opened" in welcome(session)


def test_what_a_broken_model_left_is_told_until_another_one_reads_it(
    begin_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    def broken() -> None:
        raise CoreError("The model is broken.", hint="Take another.")

    page = PageOf(begin_worker(broken))
    worker, uploads = page.worker, page.session.uploads
    follow(page.session, worker.open_books(page.session.id, [write_book(tmp_path)]))
    wait_for(lambda: uploads.error)
    page.rests()
    state = page.state()
    assert "The model is broken." in state["book"] and "Read on" in state["reading"]
    assert "Or press Read on" in state["chat"]["welcome"]
    worker.jobs.switch(lambda: (FakeEngine(), MACHINE), "other")  # type: ignore[arg-type,return-value]
    assert worker.jobs.has_loaded(SECONDS)
    page.asks("What now?")
    assert page.texts and "broken" not in page.state()["book"]


def test_samples_tell_the_time_by_what_was_read_here_else_by_the_model_of_the_machine_else_none(
    worker: EngineWorker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def labels(context: int = 131_072, *, flops: float = 1.0) -> list[str]:
        """What the buttons say on a processor of this speed."""
        rates = replace(NOMINAL_PROCESSOR, products=Choice(flops, "as if"))
        monkeypatch.setattr(Processor, "rates", lambda self: rates)
        worker.jobs.state = replace(ready, context=context)
        shown = samples(Site(worker, one_of_each(load_samples())), Session("x"))
        return re.findall(r"</b> ([^<]*)</button>", shown)

    ready = worker.state
    assert isinstance(ready, Ready)
    assert labels() == ["PDF, 25 pages", "EPUB, 89 pages", "TXT, 313 pages"], "nothing is known"
    engine.info.target_dims, engine.info.limits = tiny_engine().info.target_dims, "Samples only"
    slow, fast = labels(flops=1e8), labels(flops=1e12)
    assert all(", read in " in one for one in slow + fast) and slow[2] != fast[2], "it is this machine's time"
    engine.info.pace.remaining(work_of(0), work_of(8192), work_of(8192), 20.0)
    measured = labels(flops=1e12)
    assert measured[0] == "PDF, 25 pages, read in about 20 s" and measured[2] != fast[2]
    assert labels(16_384)[2] == "TXT, 313 pages", "no time of a book that does not fit"


def test_the_questions_of_a_sample_are_offered_until_they_are_asked(worker: EngineWorker, reader: Reader) -> None:
    site = Site(worker, (Sample(Path("book.txt"), ("One?", "Two?", "Three?", "Four?")),))
    reader.asks("Two?")
    assert re.findall(r">(\w+\?)<", suggestions(site, reader.session)) == ["One?", "Three?", "Four?"]
    reader.asks("Four?")
    assert re.findall(r">(\w+\?)<", suggestions(site, reader.session)) == ["One?", "Three?"]


# -------------------- while there is no word yet


def test_the_strip_tells_what_is_read_and_what_is_not_used() -> None:
    for method, num_read_before, reading, told in (
        ("triforce", 8124, progress(1024, reused=3), ("Reading the book again", ">8,120<")),
        ("triforce", 2048, progress(4096, reused=2048), ("Reading the book ·", ">0<")),
        ("autoregressive", 0, None, ("not used by plain decoding", "Plain decoding")),
    ):
        html = strip(Trace("", method, num_book=8123, num_read_before=num_read_before, reading=reading), "")
        assert all(one in html for one in told), html


def test_it_is_told_why_there_is_no_word_yet() -> None:
    session = a_session(num_read=0)
    trace = Trace("Now?", "triforce", num_book=8123, num_read_before=8123)
    wait = session.writing = Writing(trace=Trace("Now?", "triforce"), parent="")
    assert waits(wait, session) == "Waiting for its turn"
    session.doing = progress(2048)
    assert "Reading" in book_card(session) and 'role="status"' not in book_card(session), "numbers are not read out"
    wait.apply(Waiting("own job", 0))
    html = waits(wait, session)
    assert "Waiting until the book is read" in html and "25% · a few seconds left" in html
    wait.apply(Waiting("another page", 1))
    assert "Queued: another page first" in waits(wait, session)
    wait.apply(Begun(trace))
    assert waits(wait, session) == "", "its turn has come, and nothing was read for it yet"
    assert (live(session) or {})["wait"] == f'<div class="waits">{PENDING}</div>'
    trace.apply(progress(2048))
    assert "Reading the book again (another page used the model) · " in waits(wait, session)
    trace.apply(replace(progress(8100), reused_tokens=8000))
    assert waits(wait, session) == "Reading the question"
    trace.apply(round_done("It ", 1))
    assert waits(wait, session) == "", "its words tell enough"


# -------------------- the header


def test_the_header_tells_model_exactness_machine() -> None:
    engine = FakeEngine()
    ready, info = Ready(engine.info, MACHINE, engine.context), engine.info
    html = masthead(ready)
    assert "fake" in html and "exact · float32" in html and "CPU · 2 cores" in html and "4,096 tokens" in html
    assert "Loading the model" in masthead(Loading()) and notice(Loading()) == ""
    info.weights, info.quantised = "Q4_K, Q6_K", True
    assert "exact · mostly Q4_K weights, float32" in masthead(ready), "the blocks of a file"
    info.plan.device = SimpleNamespace(value="cuda", because="found")
    assert "Big GPU" in masthead(replace(ready, machine=replace(MACHINE, gpus=(Gpu("Big GPU", 24 << 30, 23 << 30),))))


def test_a_gpu_that_does_not_compute_is_told_unless_the_processor_was_asked_for() -> None:
    engine, machine = FakeEngine(), replace(MACHINE, unused_gpu=UNUSED_GPU)
    engine.info.plan.device = SimpleNamespace(value="cpu", because=UNUSED_GPU.because)
    ready = Ready(cast(Any, engine.info), machine, 4096)
    html = notice(ready)
    assert "is not used: torch 2.13.0+cpu is a build without CUDA." in html and "Run: python launch.py repair" in html
    assert 'role="status"' in html and notice(replace(ready, machine=MACHINE)) == ""
    engine.info.plan.device.because = "asked for"
    assert notice(ready) == ""


# -------------------- a document of a thousand pages


NUM_PAGES, NUM_CHAPTERS = 1000, 100
MOST_CHARS = 60_000  # of all that is drawn on the tabs Read and Library; the text has more


@pytest.mark.parametrize("context", [200_000, 8000])
def test_of_a_thousand_pages_little_is_drawn_none_of_their_text_and_pages_come_one_by_one(
    context: int, start_worker: Callable[..., EngineWorker]
) -> None:
    told = "was told to nobody but the harbour master and his wife. "
    pages = [f"Secret{number:04} {told}" for number in range(NUM_PAGES)]  # on every page a word of its own
    starts = range(0, NUM_PAGES * len(pages[0]), NUM_PAGES * len(pages[0]) // NUM_CHAPTERS)
    document, engine = document_of(*pages, name="long.pdf", chapter_starts=starts), FakeEngine(context=context)
    page = PageOf(start_worker(engine))
    list(page.worker.arrange(page.session.id, lambda library: library.add(document)))
    book, key = page.session.book, page.key
    if book is not None:
        asked = (book.first_token + document.pages[776].char_start) // book.chunk_size + 1
        engine.weights = [0.0] * (asked + 2000)
        engine.weights[asked] = 0.5
        engine.enqueue('It says "was told to nobody but the harbour master".')
        page.asks("Who was told?")
        strip = page.state()["where"]
        assert strip.count("tabindex") == strip.count("bar-page") - 1 > 0, "one stop of the Tab key"
        assert strip.count("bar-page") <= MOST_BARS and strip.count('class="chip"') <= MOST_TOP
        assert f'data-act="page:{key}:777"' in strip and "most on page 777" in strip
    html = str(page.state()) + page.state("library")["library"]
    assert "Secret" not in html and len(html) < MOST_CHARS < len(document.text), f"{len(html)} characters"
    assert (book is None) == page.session.uploads.too_long and html.count('class="offer"') <= 8
    for act, tab, place in (("preview", "library", "preview"), *([("page", "read", "leaf")] if book else [])):
        page.does(f"{act}:{key}:777")
        shown = page.state(tab)[place]
        assert shown.count("Secret") == 1 and "Secret0776" in shown


# -------------------- numbers


HOURS = ((0.2, "a few seconds"), (38, "about 40 s"), (56, "about 1 min"), (776, "about 13 min"))
WORDS: dict[Callable[[Any], str], tuple[tuple[Any, str], ...]] = {
    formats.figure: ((None, "–"), (0.424, "0.42"), (4.213, "4.21"), (42.13, "42.1"), (421.3, "421"), (4213.4, "4,213")),
    formats.percent: ((None, "–"), (0.0, "0%"), (0.004, "<1%"), (0.934, "93%"), (0.9996, "99.9%"), (1.0, "100%")),
    formats.duration: ((0.0, "0.1 s"), (9.97, "10 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")),
    formats.about: (*HOURS, (3590, "about 1 h"), (7800, "about 2 h 10 min")),
    formats.compact: ((7, "7"), (950, "950"), (1234, "1.2k"), (34567, "35k")),
    formats.amount: ((300 << 10, "300 KiB"), (4 << 20, "4.00 MiB"), (3 << 30, "3.00 GiB")),
    formats.probability: ((0, "0"), (1, "1"), (0.004, "under 0.01"), (0.5, "0.50"), (0.999, "over 0.99")),
}


def test_numbers_are_written_for_people_and_a_bar_stays_inside_its_frame() -> None:
    for write, table in WORDS.items():
        for value, shown in table:
            assert write(value) == shown, (write, value)
    for share, shown in ((-1.0, 0), (0.0, 0), (0.5, 50), (3.0, 100)):
        assert f'width:{shown:.2f}%"' in bar(share, "x")
