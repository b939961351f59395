"""The race: what is recorded of it, what its board says, and what the worker does."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.runtime.events import Changed
from app.runtime.race_job import first_lanes
from app.runtime.sessions import Racing
from app.runtime.trace import Judgement, Point, Trace, lead
from app.runtime.worker import EngineWorker
from app.ui.race.result import SHORT_TOKENS, result, verdict, winner
from app.ui.race.stage import opening, scenes, typical_round
from app.ui.race.tab import PARTS, race_configs
from app.ui.race.view import race as race_html
from app.ui.race.view import replay_points
from app.ui.site import Drawer
from core.config import SamplingParams
from core.decoding.stats import DecodeStats
from core.errors import CoreError, InvalidSetting
from core.generation.events import LaneEvent, PrefillProgress
from tests.app.fakes import FakeEngine, opened, wait_for, write_book
from tests.app.ui.pages import EVIL, PageOf
from tests.app.ui.race.conftest import PAIR, RaceOf, config, raced, run

FORM = {"question": "How was it?", "lanes": ["autoregressive", "triforce"], "seconds": 0, "limit": 64, "temperature": 0}


def races(page: PageOf) -> None:
    """Race on the page, to the end."""
    assert page.does("race", **FORM)
    page.rests_after_race()


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


# -------------------- the worker


def test_the_boundary_is_the_end_of_the_opening_that_the_wish_makes(
    worker: EngineWorker, engine: FakeEngine, session_id: str, monkeypatch: pytest.MonkeyPatch, race_of: RaceOf
) -> None:
    engine.info.thinking = ("on", "off")
    opening = engine.text.opening
    monkeypatch.setattr(engine.text, "opening", lambda ids, wish=None: [*([9] * 5 if wish else []), *opening(ids)])
    race_of(configs=[replace(one, thinking="off") for one in PAIR])
    book = worker.sessions.get(session_id).book
    assert book is not None and engine.race_boundaries == [book.num_opening - 1 + 5]


def test_a_race_reads_nothing_of_the_book_again_and_finds_equal_texts(
    worker: EngineWorker, engine: FakeEngine, session_id: str, race_of: RaceOf
) -> None:
    race = race_of("It was dark.")
    assert race.num_reread == 0 and race.ended
    book = worker.sessions.get(session_id).book
    assert book is not None and engine.race_boundaries == [book.num_opening - 1], "models with windows remember it"
    assert [lane.text for lane in race.lanes] == ["It was dark. "] * 2
    assert race.judgements == {"triforce": Judgement("identical", None, None, 3, True)}
    assert worker.sessions.get(session_id).race is race and engine.threads == {"engine"}


def test_texts_cut_by_the_clock_are_compared_as_far_as_both_go(race_of: RaceOf) -> None:
    race = race_of("one " * 40, seconds=0.4)
    assert [lane.finished.stop_reason for lane in race.lanes if lane.finished] == ["time_up", "time_up"]
    assert race.judgements["triforce"] == Judgement("identical", None, None, 5, False)


def test_sampled_and_lossy_texts_are_not_judged(race_of: RaceOf) -> None:
    lively = SamplingParams(temperature=0.7)
    assert not race_of(configs=[config(c.method, sampling=lively) for c in PAIR]).judgements
    assert not race_of(configs=[config("autoregressive"), config("h2o")]).judgements


def test_stop_while_reading_ends_a_race_before_its_first_word(
    worker: EngineWorker, engine: FakeEngine, session_id: str
) -> None:
    engine.reading.clear()
    stream = worker.race(session_id, "A new question?", PAIR)
    assert next(event for event in stream if isinstance(event, LaneEvent))
    worker.jobs.cancel(session_id, "race")
    run(stream)
    view = Racing(worker.sessions.get(session_id).race or pytest.fail(), waits=True)
    assert not view.running and not view.finished and "Stopped before the first word" in race_html(view)


def test_an_error_in_a_lane_ends_the_race_and_not_the_worker(
    worker: EngineWorker, engine: FakeEngine, session_id: str, race_of: RaceOf
) -> None:
    engine.enqueue(CoreError("It broke.", hint="Try again."))
    with pytest.raises(CoreError, match="It broke"):
        run(worker.race(session_id, "Well?", PAIR))
    race = worker.sessions.get(session_id).race
    assert race is not None and race.ended
    assert race_of().judgements


def test_cancelling_the_real_engine_s_race_while_it_reads(
    start_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    """Going on with lanes after half a reading would choose chunks of a cache that lacks the prompt."""
    from tests.core.toys import tiny_engine, with_words

    worker = start_worker(with_words(tiny_engine(context=1024)))
    session_id = opened(worker, write_book(tmp_path))
    stream = worker.race(session_id, "How was it?", [config(c.method, max_new_tokens=12) for c in PAIR])
    reading = (event for event in stream if isinstance(event, LaneEvent) and isinstance(event.event, PrefillProgress))
    assert next(reading)
    worker.jobs.cancel(session_id, "race")
    assert isinstance(run(stream)[-1], Changed)
    race = raced(worker, session_id, [config(c.method, max_new_tokens=12) for c in PAIR])
    assert race.judgements["triforce"].verdict == "identical" and race.judgements["triforce"].num_compared == 12


# -------------------- settings


def test_settings_of_the_lanes() -> None:
    plain, fast = race_configs(["triforce", "autoregressive"], 0, 64, 0.5)
    assert (plain.method, fast.method) == ("autoregressive", "triforce")
    assert plain.max_new_tokens == 64 and plain.sampling.temperature == 0.5
    assert race_configs(["triforce", "autoregressive"], 10, 64, 0)[0].max_new_tokens > 10_000, "only the clock ends it"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ((["triforce"], 0, 64, 0), "two lanes"),
        ((["triforce", "h2o"], 0, None, 0), "empty"),
        ((["triforce", "h2o"], 0, 0, 0), "At least one"),
        ((["triforce", "h2o"], 0, 64, -1), "Temperature -1"),
    ],
)
def test_wrong_settings_are_refused(values: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        race_configs(*values)


# -------------------- the board


def test_lead_counts_tokens_at_the_same_time_and_seconds_to_the_same_token(race_of: RaceOf) -> None:
    plain, fast = race_of("one " * 8).lanes
    ahead = lead(fast, plain)  # 0.02 s a token against 0.08
    assert ahead.speedup == pytest.approx(4) and ahead.tokens == 8 - 2 and ahead.seconds == pytest.approx(8 * 0.06)
    assert lead(plain, fast).tokens == -6
    assert lead(Trace("", "triforce"), Trace("", "autoregressive")).speedup is None


def test_lossy_lanes_are_marked_and_say_where_they_part(race_of: RaceOf) -> None:
    race = race_of("It was dark.", "It is.", configs=[config("autoregressive"), config("streamingllm")])
    html = text_of(race_html(Racing(race)))
    assert "StreamingLLMnot exact" in html and "differs from plain decoding’s from token 2" in html


@pytest.mark.parametrize(
    ("found", "tone", "words"),
    [
        (Judgement("identical", None, None, 128, True), "good", "All 128 tokens are the same"),
        (Judgement("identical", None, None, 1, False), "good", "as far as both wrote: 1 token."),
        (Judgement("near_tie", 56, 0.0003, 57, True), "amber", "differ from token 57"),
        (Judgement("mismatch", 56, 1.25, 57, True), "bad", "lies 1.2 logits below the model’s best one. This is a bug"),
        (Judgement("mismatch", 56, None, 57, True), "bad", "ends at token 56 and the other goes on. This is a bug"),
    ],
)
def test_verdicts_in_words(found: Judgement, tone: str, words: str, race_of: RaceOf) -> None:
    race = race_of()
    race.judgements["triforce"] = found
    shown = verdict(race, race.lanes[1])
    assert shown[0] == tone and words in shown[2]


def slowed(lane: Trace, factor: float) -> None:
    """As if every round had taken so many times as long."""
    lane.points[:] = [point._replace(seconds=point.seconds * factor) for point in lane.points]
    stats = lane.stats
    parts = {name: seconds * factor for name, seconds in stats.seconds_by_part.items()}
    lane.stats = replace(stats, decode_seconds=stats.decode_seconds * factor, seconds_by_part=parts)


def test_of_short_answers_the_sentence_says_what_was_measured(race_of: RaceOf) -> None:
    race = race_of("one two")
    lane, plain = race.lanes[1], race.plain
    assert plain is not None and lane.stats.new_tokens < SHORT_TOKENS
    slowed(lane, 0.75 * plain.stats.decode_seconds / lane.stats.decode_seconds)
    ahead = plain.stats.decode_seconds - lane.stats.decode_seconds
    found = result(race)
    assert ahead < 0.95 and found and found.text.startswith(f"TriForce finished {ahead:.2f} s earlier"), "as below it"
    slowed(lane, 2)
    found = result(race)
    times = [f"{one.stats.decode_seconds:.2f} s" for one in (lane, plain)]
    assert found and found.tone == "amber" and "ended before guesses had paid" in found.text
    assert f"{times[0]}, and plain decoding needed {times[1]}" in found.text


def test_a_lost_race_says_why_with_figures_that_agree(race_of: RaceOf) -> None:
    race = race_of("one " * 40)
    plain, fast = race.lanes
    slowed(fast, 5)  # 100 ms a token against 80
    found = result(race)
    assert found is not None and found.tone == "amber" and winner(race) is plain
    assert found.text == (
        "Plain was faster here, because one pass over the book confirmed 4.00 tokens: guessing took 75.0 ms a token "
        "and checking 25.0 ms, and plain decoding needed 80.0 ms. All 40 tokens are the same as plain decoding’s."
    )
    ahead = lead(fast, plain)
    assert ahead.speedup == pytest.approx(0.8) and ahead.tokens < 0 and ahead.seconds == pytest.approx(-0.8)
    assert '<p class="result amber"' in race_html(Racing(race))
    slowed(fast, 0.8)
    told = "TriForce and plain decoding were equally fast. All 40 tokens are the same as plain decoding’s."
    assert result(race) == ("none", told, fast)


@pytest.mark.parametrize("rounds", [(0.1, 0.3, 0.35), (0.31, 0.32, 0.5), (0.05, 0.06, 0.9), (0.4, 0.41, 0.42)])
@pytest.mark.parametrize("count", [3, 5, 9])
def test_no_figure_of_the_gap_contradicts_another(rounds: tuple[float, ...], count: int) -> None:
    plain, fast = Trace("", "autoregressive"), Trace("", "triforce")
    for number in range(1, 6):
        plain.points.append(Point(0.1 * number, number, number))
    for number, seconds in enumerate(rounds, 1):
        fast.points.append(Point(seconds, number * count, number * count))
    plain.stats = DecodeStats(new_tokens=5, decode_seconds=0.5)
    fast.stats = DecodeStats(new_tokens=3 * count, decode_seconds=rounds[-1])
    ahead = lead(fast, plain)
    assert ahead.speedup is not None and ahead.seconds * ahead.tokens >= 0
    assert (ahead.speedup >= 1) is (ahead.seconds >= 0)


def test_a_shorter_text_that_was_faster_is_not_behind() -> None:
    plain, short = Trace("", "autoregressive"), Trace("", "h2o")
    plain.points += [Point(0.1 * number, number, number) for number in range(1, 6)]
    plain.stats = DecodeStats(new_tokens=5, decode_seconds=0.5)
    short.points += [Point(0.15, 3, 3), Point(0.6, 3, 3)]
    short.stats = DecodeStats(new_tokens=3, decode_seconds=0.6)
    ahead = lead(short, plain)
    assert ahead.speedup == pytest.approx(2) and ahead.tokens == 0 and ahead.seconds == pytest.approx(0.15)


def test_a_verdict_that_the_result_has_is_not_told_again(race_of: RaceOf) -> None:
    three = [*PAIR, config("lookup")]
    html = race_html(Racing(race_of("It was dark.", configs=three)))
    assert html.count("All 3 tokens are the same") == 2 and ">TriForce: identical<" not in html
    html = race_html(Racing(race_of("It was dark.", "It was light.")))
    assert "TriForce: mismatch" in html, "a bug is told by its name"


def test_words_that_part_are_not_called_the_same(race_of: RaceOf) -> None:
    race = race_of("It was dark.", "It was light.")
    found = result(race)
    assert found is not None and found.tone == "bad" and "differ from token 3," in found.text and "a bug" in found.text
    assert "identical, token for token" not in scenes(race) and 'class="equal bad"' in scenes(race)


def test_a_race_against_the_clock_counts_tokens(race_of: RaceOf) -> None:
    found = result(race_of("one " * 90, seconds=0.8))
    assert found and found.text.startswith(
        "TriForce was 30 tokens ahead when time was up. The same as plain decoding’s as far"
    )


# -------------------- presenter mode


def test_the_show_opens_with_the_book(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    book = worker.sessions.get(opened(worker, write_book(tmp_path, name=f"a{EVIL[:4]}.txt"))).book
    assert book is not None
    shown = opening(book)
    assert "1 page" in text_of(shown) and f"{book.num_tokens:,} tokens" in text_of(shown) and "--cover:#" in shown
    assert "<img" not in shown and 'class="scene opening"' not in opening(None)


def test_the_slow_motion_is_a_round_that_was_recorded(race_of: RaceOf) -> None:
    race = race_of("a b c d e f g h i j k l")
    found = typical_round(race.lanes[1])
    assert found is not None and [record.round for record in found.records] == [found.number - 1] * len(found.records)
    shown = scenes(race)
    for record in found.records:
        assert f">{record.text}</span>" in shown
    assert f"Round {found.number} of 3" in text_of(shown) and "identical, token for token" in shown
    assert "1.0 s" in shown and "0.2 s" in shown, "both times"
    assert typical_round(Trace("", "triforce")) is None


def test_a_stopped_race_has_no_closing_card(race_of: RaceOf) -> None:
    race = race_of("one two three")
    lane = race.lanes[1]
    assert scenes(race) and lane.finished
    lane.finished = replace(lane.finished, stop_reason="cancelled")
    assert scenes(race) == ""


def test_the_first_lanes_are_plain_triforce_and_the_fastest() -> None:
    def info(usual: str, *, has_draft: bool = True) -> Any:
        return SimpleNamespace(usual_method=usual, has_draft=has_draft)

    assert first_lanes(info("lookup")) == ("autoregressive", "triforce", "lookup")
    assert first_lanes(info("triforce")) == ("autoregressive", "triforce")
    assert first_lanes(info("autoregressive", has_draft=False)) == ("autoregressive", "lookup")
    assert first_lanes(info("triforce"), "triforce-lookup") == ("autoregressive", "triforce", "triforce-lookup")
    assert first_lanes(info("lookup", has_draft=False), "triforce-lookup") == ("autoregressive", "lookup")
    assert first_lanes(info("triforce"), "h2o") == ("autoregressive", "triforce"), "not an exact one"


def test_the_replay_is_every_lane_s_clock_and_text_length(race_of: RaceOf) -> None:
    race = race_of("It was.")
    assert json.loads(replay_points(race)) == [
        [[0, 0, 0], [80, 3, 1], [160, 8, 2], [160, 8, 2]],
        [[0, 0, 0], [20, 3, 1], [40, 8, 2], [40, 8, 2]],
    ]
    race = race_of("word " * 3000, configs=[config(c.method, max_new_tokens=3000) for c in PAIR])
    lanes = json.loads(replay_points(race))
    assert all(len(points) <= 602 and points[-1][2] == 3000 for points in lanes)


def test_nothing_of_a_race_is_html(worker: EngineWorker, engine: FakeEngine, session_id: str) -> None:
    for _ in PAIR:
        engine.enqueue(EVIL.replace(" ", "&nbsp;"))
    run(worker.race(session_id, EVIL, PAIR))
    raced = worker.sessions.get(session_id).race
    racings = Racing(raced), Racing(raced, error=CoreError(EVIL, hint=EVIL)), Racing(error=CoreError(EVIL, hint=""))
    html = "".join(map(race_html, racings))
    assert "<img" not in html and "&lt;img" in html


def test_a_problem_stays_until_another_race_begins_or_another_book_is_open(
    worker: EngineWorker, engine: FakeEngine, session_id: str, tmp_path: Path
) -> None:
    page = PageOf(worker, session_id)
    for _ in PAIR:
        engine.enqueue("It was dark.")
    races(page)
    assert "dark" in page.state("race")["race"] and page.state("race")["race-save"]
    assert page.does("race", **FORM | {"lanes": ["autoregressive"]}), "it is told on the board"
    shown = page.state("race")
    assert "A race needs two lanes." in shown["race"] and shown["race-save"] == "" and shown["problem"] == ""
    engine.enqueue(CoreError("It broke.", hint="Try again."))
    races(page)
    shown = page.state("race")["race"]
    assert "It broke." in shown and "two lanes" not in shown and page.session.uploads.error is None
    page.does("race", **FORM | {"lanes": ["autoregressive"]})
    drawer = Drawer(page.site, page.session, "race", (*(replace(one, rest=0.0) for one in PARTS),))
    assert "two lanes" in drawer.state()["race"]
    (tmp_path / "other").mkdir()
    run(worker.open_books(session_id, [write_book(tmp_path / "other", text="Another book. " * 30)]))
    assert "two lanes" not in drawer.state()["race"], "it was about another book"


def test_a_race_on_the_page_is_not_started_twice_and_its_lanes_only_grow(
    worker: EngineWorker, engine: FakeEngine, session_id: str
) -> None:
    page = PageOf(worker, session_id)
    engine.enqueue("It | was dark.")
    engine.enqueue("It was dark.")
    assert "racing" not in page.state("race")["flags"]
    assert page.does("race", **FORM)
    wait_for(lambda: page.state("race").get("lane:0.text"))
    held = page.state("race")
    assert page.does("race", **FORM), "pressed twice"
    assert "racing" in held["flags"] and "Racing, in fair turns" in held["race"]
    assert held["lane:0.text"] == "It " and held["lane:0.points"][-1] == [80, 3, 1]
    assert "data-live" in held["race"] and "<p data-live></p>" in held["race"], "the script draws the words"
    engine.writing.set()
    page.rests_after_race()
    ended = page.state("race")
    assert "racing" not in ended["flags"] and not any(name.startswith("lane:") for name in ended)
    assert "Finished" in ended["race"] and "data-live" not in ended["race"] and len(engine.race_boundaries) == 1


def test_before_a_race_the_board_has_the_lanes_that_would_run() -> None:
    lanes = re.findall(r"<h3>(.*?)</h3>", race_html(Racing(), ("autoregressive", "lookup", "retrieval")))
    assert lanes == ["Plain decoding", "Lookup speculation", "Retrieval speculation"]
    assert re.findall(r"<h3>(.*?)</h3>", race_html(Racing()))[1:] == ["TriForce", "TriForce with lookup"]
