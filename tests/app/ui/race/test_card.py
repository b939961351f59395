"""The proof card: what it says, that it is small, and that nothing of it is run or fetched but its own script."""

import base64
import hashlib
import re
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest

from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.race.card import card_html, passages
from tests.app.fakes import FakeEngine, opened, write_book
from tests.app.ui.pages import EVIL
from tests.app.ui.race.conftest import PAIR, RaceOf, config, run

SENTENCE = "It was a dark and stormy night."


@pytest.fixture
def session_id(worker: EngineWorker, tmp_path: Path) -> str:
    return opened(worker, write_book(tmp_path, f"{SENTENCE} The sea was calm. " * 8))


@pytest.fixture
def session(worker: EngineWorker, session_id: str) -> Session:
    return worker.sessions.get(session_id)


def words_of(html: str) -> str:
    plain = re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script)[^>]*>.*?</\1>", "", html, flags=re.DOTALL))
    return " ".join(unescape(plain).split())


def test_a_card_has_question_clocks_passages_and_equality(session: Session, race_of: RaceOf) -> None:
    html = card_html(race_of(f"{SENTENCE} Nobody wrote this other sentence."), session.book)
    told = words_of(html)
    for fact in (
        "How was it?",
        "0.96 s",
        "0.24 s",
        "are the same as plain",
        "All 12 tokens are the same as plain decoding’s",
        "page 1",
    ):
        assert fact in told, fact
    (quoted,) = re.findall(r"<blockquote>(.*?)<small>", html)
    assert quoted.strip() == SENTENCE, "what is not in the book is not cited"
    assert "Replay" in told and len(html) < 300_000
    assert "blockquote>" not in card_html(cast(Any, session.race), None), "of a book that was closed nothing is cited"


def test_passages_of_one_page_are_one(session: Session) -> None:
    assert session.book is not None
    assert [words for words, _ in passages(f"{SENTENCE} The sea was calm.", session.book)] == [
        f"{SENTENCE} The sea was calm."
    ]
    assert list(passages("Not one word of this is there.", session.book)) == []


def test_a_card_of_words_that_differ_does_not_call_them_identical(session: Session, race_of: RaceOf) -> None:
    told = words_of(card_html(race_of("It was dark.", "It was light."), session.book))
    assert "dentical" not in told and "differ from token 3, where" in told and "a bug" in told


def test_junk_of_a_lossy_lane_is_shortened(session: Session, race_of: RaceOf) -> None:
    race = race_of("fine " * 200, "fine " * 200, "junk " * 240, configs=[*PAIR, config("h2o")])
    card = card_html(race, session.book)
    assert 10 < card.count("junk") < 40 and "more characters" in words_of(card) and "not exact" in words_of(card)
    assert card.count("fine") == 2 * 200 and card.count("<article") == 3


def test_a_long_race_is_a_small_card(session: Session, race_of: RaceOf) -> None:
    race = race_of("<&> " * 8000, configs=[config(one.method, max_new_tokens=8000) for one in PAIR])
    assert len(card_html(race, session.book).encode()) < 300_000


def test_a_hostile_card_runs_its_own_script_alone(worker: EngineWorker, engine: FakeEngine, session: Session) -> None:
    for _ in PAIR:
        engine.enqueue(f"{EVIL} </script><script>alert(1)</script> </p>")
    run(worker.race(session.id, f"{EVIL}</title>", PAIR))
    race = session.race
    assert race is not None
    race.book = f"<b>{EVIL}"
    html = card_html(race, session.book)
    (script,) = re.findall(r"<script type=\"module\">(.*?)</script>", html, flags=re.DOTALL)
    named = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{named}'" in html and "default-src 'none'" in html
    assert "<img" not in html and not re.search(r"https?:|url\(|@import", html)
