"""A race: lanes in fair turns over one reading, none of which knows of the others."""

import threading
from itertools import pairwise
from typing import Any

import pytest

from core.config import GenerationConfig, SamplingParams
from core.decoding.registry import METHODS
from core.engine import Engine
from core.generation import interleave
from core.generation.events import RoundDone
from tests.core.toys import FIXED, answer, ends, last_event, random_prompt, tiny_engine

HOT, WARM = SamplingParams(temperature=1.0), SamplingParams(temperature=0.8)


def config(method: str, tokens: int = 16, **settings: Any) -> GenerationConfig:
    return GenerationConfig(method=method, max_new_tokens=tokens, speculation=FIXED, **settings)


def assert_usable(engine: Engine, prompt: list[int]) -> None:
    assert engine.full_cache.length == len(engine.held_tokens)
    after, expected = answer(engine, prompt, tokens=20), answer(tiny_engine(), prompt, "autoregressive", 20)
    assert after.token_ids == expected.token_ids


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns as short as can be: a round each, so that lanes change as often as possible."""
    monkeypatch.setattr(interleave, "SLICE_SECONDS", 0.0)


RACES = {
    "every method": (90, [config(method) for method in METHODS]),
    "the same caches": (
        300,
        [
            config("autoregressive", 20, sampling=HOT, seed=1),
            config("triforce", 20),
            config("autoregressive", 20, sampling=HOT, seed=2),
            config("retrieval", 20),
        ],
    ),
    "sampled": (
        300,
        [
            config(method, 14, sampling=WARM, seed=seed)
            for seed, method in enumerate(("triforce", "draft", "triforce-lookup", "streamingllm", "streamingllm"))
        ],
    ),
    "a long prompt": (700, [config(method) for method in METHODS]),
}


@pytest.mark.parametrize(
    "race", [pytest.param(name, marks=pytest.mark.slow if name == "a long prompt" else ()) for name in RACES]
)
def test_every_lane_writes_what_it_would_write_alone(race: str) -> None:
    """Whenever its turns come, and whatever others have drawn from the same caches."""
    length, configs = RACES[race]
    budget, prompt = 128 if race == "sampled" else 256, random_prompt(length)
    finished = ends(tiny_engine(noise=0.05, budget=budget).race(prompt, configs))
    sampled = [one.token_ids for one, own in zip(finished, configs, strict=True) if not own.sampling.greedy]
    assert len(set(sampled)) == len(sampled)
    for own, result in zip(configs, finished, strict=True):
        expected = last_event(tiny_engine(noise=0.05, budget=budget).generate(prompt, own))
        assert (result.token_ids, result.exact, result.method) == (expected.token_ids, expected.exact, own.method)
        if not own.sampling.greedy:
            assert (result.stats.level1, result.stats.level2) == (expected.stats.level1, expected.stats.level2)


def test_lanes_take_turns_and_count_only_their_own_passes() -> None:
    events = list(tiny_engine().race(random_prompt(300), [config("autoregressive"), config("triforce")]))
    order = [event.lane for event in events if isinstance(event.event, RoundDone)]
    assert sum(a != b for a, b in pairwise(order)) > 6, "the lanes move side by side"
    plain, fast = (result.stats for result in ends(events))
    assert plain.full_passes == plain.new_tokens == 16
    assert fast.full_passes < 16 and fast.level2 is not None and plain.level2 is None
    assert set(fast.seconds_by_part) == {"draft", "retrieval", "full", "other"}


def test_a_budget_of_time_ends_a_lane() -> None:
    (ended,) = ends(tiny_engine().race(random_prompt(100), [config("autoregressive", 500)], seconds=0.0))
    assert ended.stop_reason == "time_up" and len(ended.token_ids) == 1


@pytest.mark.parametrize(("after", "how"), [(12, "cancelled"), (8, "left"), (0, "cancelled while reading")])
def test_a_race_that_is_stopped_leaves_the_engine_usable(after: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, end = set[interleave.Lane](), interleave.Lane.end
    monkeypatch.setattr(interleave.Lane, "end", lambda lane: (ended.add(lane), end(lane)))
    engine, prompt, cancel = tiny_engine(), random_prompt(200 if after else 1900), threading.Event()
    lanes: Any = engine.race(prompt, [config("autoregressive", 500), config("triforce", 500)], cancel)
    events = []
    for number, event in enumerate(lanes):
        events.append(event)
        if number >= after:
            cancel.set()
            if how == "left":
                lanes.close()
                break
    assert [last.stop_reason for last in ends(events)] == ([] if how == "left" else ["cancelled"] * 2)
    assert len(ended) == 2, "what was set aside is freed, in other processes, too"
    if not after:
        assert not any(isinstance(event.event, RoundDone) for event in events), "no lane has begun"
        assert all(last.token_ids == () for last in ends(events)) and engine.cached_prefix(prompt) < len(prompt) - 1
    assert_usable(engine, prompt)
