"""What the views say for a sequence of events."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.book_view import BookView
from app.chat_view import EMPTY_ANSWER, PENDING, ChatView, message
from app.documents import Document
from app.documents.document import Extracting, make_pages
from app.live_strip import LiveStrip
from app.masthead import masthead, notice
from app.sessions import Book, Session
from app.worker import (
    AnswerBegun,
    BookOpened,
    Counting,
    LoadFailed,
    Loading,
    ReadingEnded,
    Ready,
    Waiting,
)
from core.errors import ContextTooSmall, CoreError
from core.events import PrefillProgress
from tests.app.fakes import MACHINE, FakeEngine, finished, round_done

EVIL = "<img src=x onerror=alert(1)>"


def a_book(title: str = "A book", name: str = "book.pdf", warnings: tuple[str, ...] = ()) -> Book:
    document = Document(
        name=name,
        title=title,
        format="pdf",
        text="abc" * 10,
        pages=make_pages([0, 10, 20], 30),
        has_own_pages=True,
        warnings=warnings,
    )
    return Book(document, num_tokens=8123, num_opening=8125, context=131_072)


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


def test_the_card_shows_every_state_of_a_book() -> None:
    session = Session("x")
    view = BookView(session)
    assert "No book yet" in view.html() and not view.reading
    assert "book.pdf" in view.open("book.pdf").html() and view.reading
    assert "page 3 of 12" in view.apply([Extracting(num_done=2, num_pages=12)]).html()
    assert "Counting tokens" in view.apply([Counting()]).html()
    session.book = a_book(warnings=("2 pages are images.",))
    html = view.apply([BookOpened(session.book)]).html()
    assert "3 pages · 8,123 tokens" in html and "6% of the context (131,072 tokens)" in html
    assert "2 pages are images." in html
    html = view.apply([progress(2048)]).html()
    assert "2,048 of 8,124 tokens" in html and "1,000 tokens/s · 6.1 s left" in html and view.reading
    session.num_read, session.read_seconds = 8124, 8.1
    html = view.apply([progress(8124), ReadingEnded(8124, True)]).html()
    assert "Read once, in 8.1 s" in html and not view.reading and not view.paused


def test_the_card_says_how_far_a_stopped_reading_came() -> None:
    session = Session("x", book=a_book(), num_read=2048)
    view = BookView(session)
    assert view.paused and "Stopped at 2,048 of 8,124 tokens" in view.html()


def test_a_failure_shows_problem_and_action_and_keeps_the_book() -> None:
    session = Session("x", book=a_book("The old one"), num_read=8124)
    html = BookView(session).open("new.pdf").fail(ContextTooSmall(9_000, 4_096, possible=8_192)).html()
    assert "9,000 tokens" in html and "Choose fewer pages" in html
    assert "The old one" in html and "new.pdf" not in html


@pytest.mark.parametrize("reason", ["loading", "own job", "another page"])
def test_the_card_says_what_it_waits_for(reason: Any) -> None:
    assert "Wait" in BookView(Session("x")).open("a.pdf").apply([Waiting(reason, 1)]).html()


def test_nothing_of_a_book_is_html() -> None:
    session = Session("x", book=a_book(EVIL, f"{EVIL}.pdf", (EVIL,)), num_read=8124)
    html = BookView(session).html() + BookView(session).open(EVIL).fail(CoreError(EVIL, hint=EVIL)).html()
    assert "<img" not in html and "&lt;img" in html


# -------------------- the live strip


def test_the_strip_follows_an_answer() -> None:
    strip = LiveStrip("triforce")
    assert "running" in strip.html()
    html = strip.apply([AnswerBegun(8123, 8124), progress(8124, reused=8124, total=8150)]).html()
    assert "Reading the question" in html and ">0<" in html and "of 8,123 book tokens" in html
    html = strip.apply([round_done("a", number) for number in range(8)]).html()
    assert "Writing · 8 tokens" in html and "50.0" in html and "20.0 ms per token" in html
    assert "50%" in html and "75%" in html and ">4.00<" in html, "level 1, level 2, tokens per full pass"
    html = strip.apply([finished("one two three")]).html()
    assert "Answer complete · 3 tokens" in html and "TriForce" in html and "exact" in html and "resting" in html


def test_the_strip_tells_that_the_book_is_read_again() -> None:
    strip = LiveStrip("triforce").apply([AnswerBegun(8123, 8124), progress(1024, reused=3, total=8150)])
    assert "Reading the book again" in strip.html() and ">8,120<" in strip.html()


def test_a_first_reading_is_no_reading_again() -> None:
    html = LiveStrip("triforce").apply([AnswerBegun(8123, 2048), progress(4096, reused=2048, total=8150)]).html()
    assert "Reading the book ·" in html and ">0<" in html


def test_plain_decoding_has_no_acceptance() -> None:
    html = LiveStrip("autoregressive").html()
    assert "not used by plain decoding" in html and "Plain decoding" in html


def test_the_strip_tells_who_is_first() -> None:
    strip = LiveStrip("triforce")
    assert "Queued: another page first" in strip.apply([Waiting("another page", 1)]).html()
    assert "Queued: 2 other pages first" in strip.apply([Waiting("another page", 2)]).html()
    assert "until the book is read" in strip.apply([Waiting("own job", 0)]).html()
    assert "Stopped before the first word" in strip.end().html()


def test_an_error_stands_in_the_strip_with_its_action() -> None:
    html = LiveStrip().fail(CoreError("Bad <temperature>.", hint="Use 0 to 2.")).html()
    assert 'role="alert"' in html and "Bad &lt;temperature&gt;." in html and "Use 0 to 2." in html


# -------------------- the conversation


def text_of(message: Any) -> str:
    return cast(str, message["content"][0]["text"])


def test_the_answer_grows_in_the_chat() -> None:
    view = ChatView([message("user", "Before?"), message("assistant", "Yes.")], "Now?")
    assert [text_of(one) for one in view.messages()] == ["Before?", "Yes.", "Now?", PENDING]
    view.apply([round_done("It ", 0), round_done("is.", 1)])
    assert text_of(view.messages()[-1]) == "It is." and not view.answered
    view.apply([finished("It is. ")])
    assert text_of(view.messages()[-1]) == "It is. " and view.answered


def test_an_empty_answer_is_named() -> None:
    assert text_of(ChatView([], "Now?").apply([finished("")]).messages()[-1]) == EMPTY_ANSWER


def test_questions_and_answers_are_never_html() -> None:
    view = ChatView([message("user", EVIL), message("assistant", EVIL)], EVIL).apply([round_done(EVIL, 0)])
    assert all("<img" not in text_of(one) and one["content"][0]["type"] == "text" for one in view.messages())


# -------------------- the header


def test_the_header_tells_model_exactness_machine() -> None:
    engine = FakeEngine()
    ready = Ready(cast(Any, engine.info), MACHINE, engine.context)
    html = masthead(ready)
    assert "fake" in html and "exact · float32" in html and "CPU · 2 cores" in html and "4,096 tokens" in html
    assert "Loading the model" in masthead(Loading()) and notice(Loading()) == ""


def test_the_header_names_the_gpu() -> None:
    info = FakeEngine().info
    info.plan.device = SimpleNamespace(value="cuda", because="found")
    machine = SimpleNamespace(
        gpus=(SimpleNamespace(name="Big GPU", total_bytes=24 << 30),), ram_bytes=64 << 30, cpu="x", num_cores=8
    )
    assert "Big GPU" in masthead(Ready(info, cast(Any, machine), 4096))


def test_a_model_that_was_not_loaded_is_explained() -> None:
    failed = LoadFailed(CoreError("No weights.", hint="Restore them."))
    assert "No model" in masthead(failed) and "No weights." in notice(failed) and "Restore them." in notice(failed)
