"""The race: how the worker runs it, what is told of it, its figures and its proof card, and the presenter's scenes."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.events import Changed
from app.runtime.race_job import first_lanes, race_report
from app.runtime.sessions import Racing, Session
from app.runtime.trace import Judgement, Point, Race, Trace, lead
from app.runtime.worker import EngineWorker
from app.ui.race.card import card_html, passages
from app.ui.race.result import result, verdict, winner
from app.ui.race.stage import opening, scenes, typical_round
from app.ui.race.tab import RaceForm
from app.ui.race.view import race as race_html
from app.ui.race.view import replay_points
from app.ui.saving import saved
from app.ui.site import Site
from core.config import GenerationConfig, SamplingParams
from core.decoding.stats import DecodeStats, Origin
from core.errors import CoreError, InvalidSetting
from core.generation.events import LaneEvent, PrefillProgress, TokenRecord
from tests.app.fakes import MACHINE, SECONDS, FakeEngine, opened, wait_for, write_book
from tests.app.ui.pages import EVIL, PageOf, text_of
from tests.app.ui.race.conftest import PAIR, RaceOf, config, raced, run
from tests.core.toys import tiny_engine, with_words

FORM = {"question": "How was it?", "lanes": ["autoregressive", "triforce"], "seconds": 0, "limit": 64, "temperature": 0}
SENTENCE = "It was a dark and stormy night."
DRAWN = SamplingParams(temperature=0.7)


# -------------------- the worker


@pytest.mark.parametrize("wish", [None, "off"])
def test_a_race_reads_nothing_of_the_book_again_and_finds_equal_texts(
    wish: str | None, engine: FakeEngine, session: Session, monkeypatch: pytest.MonkeyPatch, race_of: RaceOf
) -> None:
    engine.info.thinking = ("on", "off")
    opening = engine.text.opening
    monkeypatch.setattr(engine.text, "opening", lambda ids, wish=None: [*([9] * 5 if wish else []), *opening(ids)])
    race = race_of("It was dark.", configs=[replace(one, thinking=wish) for one in PAIR])
    assert race is session.race and race.ended and engine.threads == {"engine"} and session.book is not None
    assert (wish or race.num_reread == 0) and [lane.text for lane in race.lanes] == ["It was dark. "] * 2
    end = session.book.num_opening - 1 + (5 if wish else 0)
    assert engine.race_boundaries == [end], "of the opening that the wish makes: models with windows remember it"
    assert race.judgements == {"triforce": Judgement("identical", None, None, 3, True)}


def test_only_greedy_exact_texts_are_judged_as_far_as_both_go(race_of: RaceOf) -> None:
    race = race_of("one " * 40, seconds=0.4)
    assert [lane.finished.stop_reason for lane in race.lanes if lane.finished] == ["time_up", "time_up"]
    assert race.judgements["triforce"] == Judgement("identical", None, None, 5, False)
    assert not race_of(configs=[replace(one, sampling=DRAWN) for one in PAIR]).judgements
    assert not race_of(configs=[config("autoregressive"), config("h2o")]).judgements


def test_cancelling_the_real_engine_s_race_while_it_reads(
    start_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    """It ends before its first word; going on would choose chunks of a cache that lacks the prompt."""
    worker = start_worker(with_words(tiny_engine(context=1024)))
    session_id, lanes = opened(worker, write_book(tmp_path)), [replace(one, max_new_tokens=12) for one in PAIR]
    stream = worker.race(session_id, "How was it?", lanes)
    assert next(e for e in stream if isinstance(e, LaneEvent) and isinstance(e.event, PrefillProgress))
    worker.jobs.cancel(session_id, "race")
    assert isinstance(run(stream)[-1], Changed)
    stopped = Racing(worker.sessions.enter(session_id).race, waits=True)
    assert not stopped.running and "Stopped before the first word" in race_html(stopped)
    race = raced(worker, session_id, lanes)
    assert race.judgements["triforce"].verdict == "identical" and race.judgements["triforce"].num_compared == 12


def test_settings_of_the_lanes_and_which_are_refused() -> None:
    def configs(*lanes: str, **changed: Any) -> list[GenerationConfig]:
        return RaceForm(**FORM | {"lanes": lanes} | changed).configs()

    plain, fast = configs("triforce", "autoregressive", temperature=0.5)
    assert (plain.method, fast.method) == ("autoregressive", "triforce")
    assert plain.max_new_tokens == 64 and plain.sampling.temperature == 0.5
    assert configs("triforce", "h2o", seconds=10)[0].max_new_tokens > 10_000, "only the clock ends it"
    with pytest.raises(InvalidSetting, match="two lanes"):
        configs("triforce")
    for field, value, problem in (("limit", None, "empty"), ("limit", 0, "At least one"), ("temperature", -1, "-1")):
        with pytest.raises(InvalidSetting, match=problem):
            configs("triforce", "h2o", **{field: value})


@pytest.mark.parametrize(
    ("usual", "has_draft", "fastest", "lanes"),
    [
        ("lookup", True, "", "autoregressive triforce lookup"),
        ("triforce", True, "", "autoregressive triforce"),
        ("autoregressive", False, "", "autoregressive lookup"),
        ("triforce", True, "triforce-lookup", "autoregressive triforce triforce-lookup"),
        ("lookup", False, "triforce-lookup", "autoregressive lookup"),
        ("triforce", True, "h2o", "autoregressive triforce"),  # not an exact one
    ],
)
def test_the_first_lanes_are_plain_triforce_and_the_fastest(
    usual: str, has_draft: bool, fastest: str, lanes: str
) -> None:
    info: Any = SimpleNamespace(usual_method=usual, has_draft=has_draft)
    assert " ".join(first_lanes(info, fastest)) == lanes


# -------------------- the result


def slowed(lane: Trace, factor: float) -> None:
    """As if every round had taken so many times as long."""
    lane.points[:] = [point._replace(seconds=point.seconds * factor) for point in lane.points]
    parts = {name: seconds * factor for name, seconds in lane.stats.seconds_by_part.items()}
    lane.stats = replace(lane.stats, decode_seconds=lane.stats.decode_seconds * factor, seconds_by_part=parts)


def told(race: Race) -> str:
    """The result in words, behind its colour."""
    found = result(race)
    return f"{found.tone}: {found.text}" if found else ""


def lane(method: str, *points: tuple[float, int]) -> Trace:
    """A lane that had so many tokens at these times."""
    trace = Trace("", method)
    trace.points += [Point(seconds, tokens, tokens) for seconds, tokens in points]
    if points:
        trace.stats = DecodeStats(new_tokens=points[-1][1], decode_seconds=points[-1][0])
    return trace


ROUNDS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=6)
LANES = ROUNDS.map(
    lambda rounds: [(s / 100, n) for s, n in accumulate(rounds, lambda a, b: (a[0] + b[0], a[1] + b[1]))]
)


@given(LANES, LANES)
def test_no_figure_of_the_gap_contradicts_another_or_its_opposite(ours: Any, theirs: Any) -> None:
    fast, plain = lane("triforce", *ours), lane("autoregressive", *theirs)
    ahead, behind = lead(fast, plain), lead(plain, fast)
    assert ahead.speedup is not None and ahead.speedup * (behind.speedup or 0) == pytest.approx(1)
    assert ahead.seconds == -behind.seconds and (ahead.tokens == -behind.tokens or not ahead.seconds)
    assert ahead.seconds * ahead.tokens >= 0 and (ahead.speedup >= 1) is (ahead.seconds >= 0)


def test_lead_counts_tokens_at_the_same_time_and_seconds_to_the_same_token(race_of: RaceOf) -> None:
    ahead = lead(*race_of("one " * 8).lanes[::-1])  # 0.02 s a token against 0.08
    assert ahead.speedup == pytest.approx(4) and ahead.tokens == 8 - 2 and ahead.seconds == pytest.approx(8 * 0.06)
    plain, short = lane("autoregressive", *((n / 10, n) for n in range(1, 6))), lane("h2o", (0.15, 3), (0.6, 3))
    ahead = lead(short, plain)
    assert ahead.speedup == pytest.approx(2) and ahead.tokens == 0, "a shorter text that was faster is not behind"
    assert ahead.seconds == pytest.approx(0.15) and lead(lane("triforce"), plain).speedup is None


@pytest.mark.parametrize(
    ("found", "tone", "words"),
    [
        (Judgement("identical", None, None, 1, False), "good", "as far as both wrote: 1 token."),
        (Judgement("near_tie", 56, 0.0003, 57, True), "amber", "differ from token 57"),
        (Judgement("mismatch", 56, None, 57, True), "bad", "ends at token 56 and the other goes on. This is a bug"),
    ],
)
def test_the_verdict_says_what_was_found(found: Judgement, tone: str, words: str) -> None:
    lanes = lane("autoregressive"), lane("triforce")
    race = Race(question="", lanes=lanes, configs=(), seconds=None, book="", judgements={"triforce": found})
    shown = verdict(race, lanes[1])
    assert shown.tone == tone and words in shown.text


def test_the_result_says_who_was_first_and_why_with_figures_that_agree(race_of: RaceOf) -> None:
    ahead = "good: TriForce was 30 tokens ahead when time was up. The same as plain decoding’s as far"
    assert told(race_of("one " * 90, seconds=0.8)).startswith(ahead)
    race = race_of("one " * 40)
    plain, fast = race.lanes
    assert "good: TriForce finished 2.4 s earlier. All 40 tokens are the same" in told(race)
    slowed(fast, 5)  # 100 ms a token against 80
    assert winner(race) is plain and told(race) == (
        "amber: Plain was faster here, because one pass over the book confirmed 4.00 tokens: guessing took 75.0 ms a "
        "token and checking 25.0 ms, and plain decoding needed 80.0 ms. All 40 tokens are the same as plain decoding’s."
    )
    slowed(fast, 0.8)
    assert "none: TriForce and plain decoding were equally fast. All 40" in told(race) and winner(race) is None
    race = race_of("one two")
    plain, fast = race.lanes
    slowed(fast, 0.75 * plain.stats.decode_seconds / fast.stats.decode_seconds)
    assert told(race).startswith("good: TriForce finished 0.04 s earlier"), "no 1 s of so little"
    slowed(fast, 2)
    assert "an answer of 2 tokens ended before guesses had paid: 0.24 s, and plain decoding needed 0.16 s" in told(race)


def test_words_that_part_are_a_bug_by_its_name_everywhere_and_no_lossy_lane_is_called_exact(
    session: Session, race_of: RaceOf
) -> None:
    race = race_of("It was dark.", "It was light.")
    html, card = race_html(Racing(race)), card_html(race, session.book)
    assert told(race).startswith("bad: ") and 'class="equal bad"' in scenes(race) and "TriForce: mismatch" in html
    for shown in (html, card, scenes(race)):
        assert "identical" not in shown.lower() and "differ from token 3, where" in shown and "a bug" in shown
    three = race_html(Racing(race_of("It was dark.", configs=[*PAIR, config("lookup")])))
    assert three.count("All 3 tokens are the same") == 2 and ">TriForce: identical<" not in three, "told once"
    lossy = race_of("It was dark.", "It is.", configs=[config("autoregressive"), config("streamingllm")])
    shown = text_of(race_html(Racing(lossy)))
    assert "StreamingLLM not exact" in shown and "differs from plain decoding’s from token 2" in shown


# -------------------- figures and the card


def test_the_figures_of_a_race_are_those_of_the_command_line_and_more(
    worker: EngineWorker, session: Session, monkeypatch: pytest.MonkeyPatch, race_of: RaceOf
) -> None:
    monkeypatch.setattr("core.planning.hardware.this_machine", lambda: MACHINE)

    def report(*texts: str, configs: Any, **more: Any) -> Any:
        race = race_of(*texts, configs=configs, **more)
        return json.loads(json.dumps(race_report(race)))

    found = report("It was dark.", "It was dark.", "It was light.", configs=[*PAIR, config("h2o")])
    assert list(found["methods"]) == ["autoregressive", "triforce", "h2o"] and found["speedup"] == 4
    fast = found["methods"]["triforce"]
    assert fast["text"] == "It was dark. " and fast["new_tokens"] == 3 == len(fast["token_ids"])
    assert fast["acceptance"] == {"level1": 0.5, "level2": 0.75} and fast["tokens_per_full_pass"] == 3
    assert found["equality"] == {"verdict": "identical", "first_divergence": None}
    assert list(found["equality_by_method"]) == ["triforce"], "a lossy lane is not judged"
    assert found["hardware"]["num_cores"] == 2 and "torch" in found["versions"]
    worst = report("It was dark.", "It was dark.", "It was light.", configs=[*PAIR, config("draft")])["equality"]
    assert worst == {"verdict": "mismatch", "first_divergence": {"index": 2, "logit_gap": 1.25}}
    drawn = report(configs=[replace(one, sampling=DRAWN) for one in PAIR], seconds=0.2)
    assert drawn["equality"]["verdict"] == "not_comparable"
    other = FakeEngine()
    other.info.model = "another"
    worker.jobs.switch(lambda: (other, MACHINE), "another")  # type: ignore[arg-type,return-value]
    assert worker.jobs.has_loaded(SECONDS)
    assert json.loads(saved(Site(worker), session, "race:json").text)["model"] == "fake", "the one that raced"
    assert drawn["settings"] == {"max_new_tokens": None, "seconds": 0.2, "temperature": 0.7, "top_p": 1, "seed": 0}


def test_the_replay_is_every_lane_s_clock_and_text_length(race_of: RaceOf) -> None:
    assert json.loads(replay_points(race_of("It was."))) == [
        [[0, 0, 0], [80, 3, 1], [160, 8, 2], [160, 8, 2]],
        [[0, 0, 0], [20, 3, 1], [40, 8, 2], [40, 8, 2]],
    ]
    lanes = json.loads(replay_points(race_of("word " * 2998, configs=[replace(c, max_new_tokens=3000) for c in PAIR])))
    assert all(len(points) <= 602 and points[-1][2] == 2998 for points in lanes)


def test_a_card_has_question_clocks_equality_and_what_the_book_has_of_the_words(
    session: Session, race_of: RaceOf
) -> None:
    race = race_of(f"{SENTENCE} Nobody wrote this other sentence.")
    html = card_html(race, session.book)
    for fact in ("How was it?", "0.96", "0.24", "All 12 tokens are the same as plain decoding’s", "Replay"):
        assert fact in text_of(html), fact
    assert re.findall(r"<blockquote>(.*?) <small>page 1</small>", html) == [SENTENCE], "what is not there is not cited"
    assert "blockquote>" not in card_html(race, None), "the book was closed"
    found = passages(f"{SENTENCE} Nobody wrote this other sentence. {SENTENCE}", cast(Any, session.book))
    assert found == [(f"{SENTENCE} {SENTENCE}", "page 1")], "passages of one page are one"


def test_a_card_is_small_and_runs_its_own_script_alone(session: Session, race_of: RaceOf) -> None:
    race = race_of("<&> " * 8000, configs=[replace(one, max_new_tokens=8000) for one in PAIR])
    assert len(card_html(race, session.book).encode()) < 300_000
    race = race_of("fine " * 200, "fine " * 200, "junk " * 240, configs=[*PAIR, config("h2o")])
    card = card_html(race, session.book)
    assert 10 < card.count("junk") < 40 and "more characters" in card and card.count("fine") == 2 * 200
    for _ in PAIR:
        race = race_of(f"{EVIL} </script><script>alert(1)</script> </p>")
    race.book, race.question = f"<b>{EVIL}", f"{EVIL}</title>"
    html = card_html(race, session.book)
    (script,) = re.findall(r"<script type=\"module\">(.*?)</script>", html, flags=re.DOTALL)
    named = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{named}'" in html and "default-src 'none'" in html
    assert "<img" not in html and not re.search(r"https?:|url\(|@import", html)


# -------------------- the page, and presenter mode


def test_the_board_has_the_lanes_that_would_run_and_those_that_run_only_grow(
    worker: EngineWorker, engine: FakeEngine, session: Session
) -> None:
    page = PageOf(worker, session.id)
    for text in ("It | was dark.", "It was dark."):
        engine.enqueue(text)
    first = page.state("race")
    lanes = re.findall("<h3>(.*?)</h3>", first["race"])
    assert "racing" not in first["flags"] and lanes == ["Plain decoding", "TriForce", "TriForce with lookup"]
    assert page.does("race", **FORM)
    wait_for(lambda: "Racing, in fair turns" in page.state("race")["race"])
    held = page.state("race")
    assert page.does("race", **FORM), "pressed twice"
    assert "racing" in held["flags"] and held["lane:0.text"] == "It " and held["lane:0.points"][-1] == [80, 3, 1]
    assert "<p data-live></p>" in held["race"], "the script draws the words"
    engine.writing.set()
    page.rests_after_race()
    ended = page.state("race")
    assert "racing" not in ended["flags"] and not any(name.startswith("lane:") for name in ended)
    assert "Finished" in ended["race"] and "data-live" not in ended["race"] and ended["race-save"]
    assert len(engine.race_boundaries) == 1


def test_a_problem_stays_until_another_race_begins_or_another_book_is_open(
    worker: EngineWorker, engine: FakeEngine, session: Session, tmp_path: Path
) -> None:
    page = PageOf(worker, session.id)
    one_lane = FORM | {"lanes": ["autoregressive"]}
    assert page.does("race", **one_lane), "it is told on the board"
    shown = page.state("race")
    assert "A race needs two lanes." in shown["race"] and shown["race-save"] == "" and shown["problem"] == ""
    engine.enqueue(CoreError("It broke.", hint="Try again."))
    assert page.does("race", **FORM)
    page.rests_after_race()
    shown = page.state("race")
    assert "It broke." in shown["race"] and "two lanes" not in shown["race"] and session.uploads.error is None
    assert session.race is not None and session.race.ended, "the worker goes on"
    page.does("race", **one_lane)
    list(worker.open_books(session.id, [write_book(tmp_path, "Another book. " * 30, "other.txt")]))
    assert "two lanes" not in page.state("race")["race"], "it was about another book"


def test_the_show_opens_with_the_book_has_a_recorded_round_and_no_end_where_it_was_stopped(
    session: Session, race_of: RaceOf
) -> None:
    assert session.book is not None
    shown = opening(session.book)
    assert "1 page" in text_of(shown) and f"{session.book.num_tokens:,} tokens" in text_of(shown)
    assert "--cover:#" in shown and 'class="scene opening"' not in opening(None)
    race = race_of("a b c d e f g h i j k l")
    lane, shown = race.lanes[1], scenes(race)
    found = typical_round(lane)
    assert len({record.round for record in found}) == 1
    assert all(f">{record.text}</span>" in shown for record in found)
    assert f"Round {found[0].round + 1} of 3" in text_of(shown) and "identical, token for token" in shown
    assert "1.0 s" in shown and "0.2 s" in shown, "both times"
    sizes = Trace("", "triforce")
    assert typical_round(sizes) == [] and lane.finished
    guess = TokenRecord(0, "a", Origin("draft", "proposed"), 0, 1.0, 1.0)
    sizes.records += [replace(guess, round=number) for number, size in enumerate((1, 3, 9)) for _ in range(size)]
    assert len(typical_round(sizes)) == 3, "the size nearest to the mean"
    lane.finished = replace(lane.finished, stop_reason="cancelled")
    assert scenes(race) == ""
