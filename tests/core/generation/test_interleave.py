"""A race: lanes in fair turns over one reading, none of which knows of the others."""

import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest

from core.config import GenerationConfig, SamplingParams
from core.decoding.registry import METHODS
from core.engine import Engine
from core.generation import interleave
from core.generation.events import Finished, LaneEvent, RoundDone
from tests.core.toys import FIXED, last_event, random_prompt, tiny_engine


def config(method: str, tokens: int = 16, **settings: object) -> GenerationConfig:
    return GenerationConfig(method=method, max_new_tokens=tokens, speculation=FIXED, **settings)  # type: ignore[arg-type]


def raced(
    engine: Engine, prompt: list[int], configs: Sequence[GenerationConfig]
) -> tuple[list[LaneEvent], list[Finished]]:
    events = list(engine.race(prompt, configs))
    finished = {event.lane: event.event for event in events if isinstance(event.event, Finished)}
    assert sorted(finished, key=str) == list(range(len(configs))), "every lane ends once"
    return events, [finished[number] for number in range(len(configs))]


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns as short as can be: a round each, so that lanes change as often as possible."""
    monkeypatch.setattr(interleave, "SLICE_SECONDS", 0.0)


@pytest.mark.parametrize("length", [90, pytest.param(700, marks=pytest.mark.slow)])
def test_every_lane_writes_what_it_would_write_alone(length: int) -> None:
    engine, alone = tiny_engine(noise=0.05), tiny_engine(noise=0.05)
    prompt = random_prompt(length)
    _, finished = raced(engine, prompt, [config(method) for method in METHODS])
    for method, result in zip(METHODS, finished, strict=True):
        expected = last_event(alone.generate(prompt, config(method)))
        assert result.token_ids == expected.token_ids, method
        assert result.exact == expected.exact and result.method == method


def test_lanes_of_the_same_caches_do_not_disturb_each_other() -> None:
    """Two lanes that share retrieval cache and draft, with different samples behind the same prompt."""
    engine, prompt = tiny_engine(noise=0.05), random_prompt(300)
    hot = SamplingParams(temperature=1.0)
    plain = [config("autoregressive", 20, sampling=hot, seed=seed) for seed in (1, 2)]
    greedy = [config("triforce", 20), config("retrieval", 20)]
    _, finished = raced(engine, prompt, [plain[0], greedy[0], plain[1], greedy[1]])
    assert finished[0].token_ids != finished[2].token_ids
    assert finished[1].token_ids == finished[3].token_ids
    for configured, result in zip([plain[0], greedy[0], plain[1]], finished, strict=False):
        expected = last_event(tiny_engine(noise=0.05).generate(prompt, configured))
        assert result.token_ids == expected.token_ids


def test_sampled_lanes_write_what_they_would_write_alone() -> None:
    """With a seed, whenever their turns come. As it was, every turn began with another choice and an empty draft."""
    prompt, hot = random_prompt(300), SamplingParams(temperature=0.8)
    methods = ("triforce", "draft", "triforce-lookup", "streamingllm", "streamingllm")
    configs = [config(method, 14, sampling=hot, seed=number) for number, method in enumerate(methods)]
    _, finished = raced(tiny_engine(noise=0.05, budget=128), prompt, configs)
    assert len({result.token_ids for result in finished}) == len(methods)
    for configured, result in zip(configs, finished, strict=True):
        expected = last_event(tiny_engine(noise=0.05, budget=128).generate(prompt, configured))
        assert result.token_ids == expected.token_ids, configured.method
        assert result.stats.level2 == expected.stats.level2 and result.stats.level1 == expected.stats.level1


def test_a_lane_that_cannot_end_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt, end = tiny_engine(), random_prompt(200), interleave.Lane.end
    ended: list[str] = []

    def ending(lane: interleave.Lane) -> None:
        ended.append(lane.answer.decoder.name)
        end(lane)
        if lane.answer.decoder.name == "retrieval":
            raise RuntimeError("the device is gone")

    monkeypatch.setattr(interleave.Lane, "end", ending)
    left = engine.race(prompt, [config(method, 500) for method in ("autoregressive", "retrieval", "triforce")])
    for _ in range(9):
        next(left)
    with pytest.raises(RuntimeError, match="the device is gone"):
        left.close()  # type: ignore[attr-defined]
    assert sorted(ended) == ["autoregressive", "retrieval", "triforce"]
    assert engine.full_cache.length == len(prompt) - 1, "and the engine is where it should be"
    monkeypatch.undo()
    after = last_event(engine.generate(prompt, config("triforce", 20)))
    expected = last_event(tiny_engine().generate(prompt, config("autoregressive", 20)))
    assert after.token_ids == expected.token_ids


def test_lanes_take_turns_and_count_only_their_own_passes() -> None:
    events, finished = raced(tiny_engine(), random_prompt(300), [config("autoregressive"), config("triforce")])
    order = [event.lane for event in events if isinstance(event.event, RoundDone)]
    assert sum(a != b for a, b in pairwise(order)) > 6, "the lanes move side by side"
    plain, fast = (result.stats for result in finished)
    assert plain.full_passes == plain.new_tokens == 16
    assert fast.full_passes < 16 and fast.level2 is not None and plain.level2 is None
    assert set(fast.seconds_by_part) == {"draft", "retrieval", "full", "other"}


def test_a_budget_of_time_ends_a_lane() -> None:
    events = list(tiny_engine().race(random_prompt(100), [config("autoregressive", 500)], seconds=0.0))
    ended = events[-1].event
    assert isinstance(ended, Finished) and ended.stop_reason == "time_up" and len(ended.token_ids) == 1


def test_cancelling_and_leaving_keep_the_engine_usable() -> None:
    engine, prompt, cancel = tiny_engine(), random_prompt(200), threading.Event()
    lanes = engine.race(prompt, [config("autoregressive", 500), config("triforce", 500)], cancel)
    ended = []
    for number, event in enumerate(lanes):
        if number == 12:
            cancel.set()
        if isinstance(event.event, Finished):
            ended.append(event.event.stop_reason)
    assert ended == ["cancelled", "cancelled"]
    left = engine.race(prompt, [config("autoregressive", 500), config("triforce", 500)])
    for _ in range(8):
        next(left)
    left.close()  # type: ignore[attr-defined]
    after = last_event(engine.generate(prompt, config("triforce", 20)))
    expected = last_event(tiny_engine().generate(prompt, config("autoregressive", 20)))
    assert after.token_ids == expected.token_ids


def test_cancelling_while_reading_begins_no_lane() -> None:
    engine, prompt, cancel = tiny_engine(), random_prompt(1900), threading.Event()
    events = []
    for event in engine.race(prompt, [config("autoregressive"), config("triforce")], cancel):
        events.append(event.event)
        cancel.set()
    ended = [event for event in events if isinstance(event, Finished)]
    assert [event.stop_reason for event in ended] == ["cancelled", "cancelled"]
    assert not any(isinstance(event, RoundDone) for event in events)
    assert all(event.token_ids == () for event in ended)
    assert engine.cached_prefix(prompt) < len(prompt) - 1, "only a part was read"
    after = last_event(engine.generate(prompt, config("autoregressive", 5)))
    assert len(after.token_ids) == 5
