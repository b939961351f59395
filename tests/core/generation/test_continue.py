"""An answer that was cut goes on as if it had never been: the same tokens, and nothing is read again."""

import threading

import pytest
import torch

from core.config import GenerationConfig, SamplingParams
from core.decoding.registry import EXACT_METHODS
from core.decoding.stats import DecodeStats, LevelStats, joined
from core.engine import Engine
from core.generation.decode_loop import sampler_behind
from core.generation.events import Finished, PrefillProgress, RoundDone
from tests.core.toys import FIXED, random_prompt, tiny_engine

LONG = 20


def write(
    engine: Engine, prompt: list[int], most: int, method: str, written: tuple[int, ...] = (), temperature: float = 0.0
) -> tuple[Finished, PrefillProgress, str]:
    """The end of an answer, how it began, and the text that was streamed."""
    sampling = SamplingParams(temperature=temperature)
    config = GenerationConfig(max_new_tokens=most, method=method, sampling=sampling, speculation=FIXED, seed=7)
    events = list(engine.generate(prompt, config, written=written))
    assert isinstance(events[0], PrefillProgress) and isinstance(events[-1], Finished)
    return events[-1], events[0], "".join(event.text for event in events if isinstance(event, RoundDone))


@pytest.mark.parametrize("method", EXACT_METHODS)
def test_a_continued_answer_equals_one_long_answer(method: str) -> None:
    engine, prompt = tiny_engine(noise=0.05), random_prompt(300)
    whole, _, _ = write(engine, prompt, LONG, method)
    cut, _, _ = write(engine, prompt, 9, method)
    rest, begun, streamed = write(engine, prompt, LONG - 9, method, cut.token_ids)
    assert rest.token_ids == whole.token_ids and rest.text == whole.text == cut.text + streamed
    assert begun.reused_tokens == begun.total_tokens == len(prompt) + 9 - 1, "nothing is read again"
    assert rest.stats.new_tokens == LONG - 9 and rest.prompt_tokens == len(prompt)


def test_a_continued_answer_by_plain_decoding_keeps_its_seed() -> None:
    engine, prompt = tiny_engine(), random_prompt(120)
    whole, _, _ = write(engine, prompt, LONG, "autoregressive", temperature=1.0)
    cut, _, _ = write(engine, prompt, 11, "autoregressive", temperature=1.0)
    rest, _, _ = write(engine, prompt, LONG - 11, "autoregressive", cut.token_ids, temperature=1.0)
    assert rest.token_ids == whole.token_ids
    greedy, _, _ = write(engine, prompt, LONG, "autoregressive")
    assert rest.token_ids != greedy.token_ids, "the text is really sampled, or this tests nothing"


def test_speculation_continues_with_draws_that_decided_nothing_before() -> None:
    generator = torch.Generator().manual_seed(7)
    used = set()
    for _ in range(200):
        torch.rand(1, generator=generator, dtype=torch.float64)
        used.add(generator.get_state().numpy().tobytes())
    for written in (1, 3, 17):
        sampler_behind(generator, 7, written, speculative=True)
        assert generator.get_state().numpy().tobytes() not in used
        sampler_behind(generator, 7, written, speculative=False)
        assert generator.get_state().numpy().tobytes() in used, "plain decoding goes on where it stopped"


def test_what_was_stopped_goes_on() -> None:
    engine, prompt, cancel = tiny_engine(), random_prompt(200), threading.Event()
    whole, _, _ = write(engine, prompt, LONG, "triforce")
    stream = engine.generate(prompt, GenerationConfig(max_new_tokens=LONG, speculation=FIXED), cancel)
    for event in stream:
        if isinstance(event, RoundDone) and event.stats.new_tokens > 9:
            cancel.set()
    assert isinstance(event, Finished) and event.stop_reason == "cancelled"
    rest, _, _ = write(engine, prompt, LONG - len(event.token_ids), "triforce", event.token_ids)
    assert rest.token_ids == whole.token_ids


def test_figures_of_two_stretches_add_up() -> None:
    level = LevelStats(2, 8, 6, 5, (2, 2), (2, 1), {3: 2})
    one = DecodeStats(new_tokens=6, decode_seconds=1.0, level2=level, seconds_by_part={"full": 1.0})
    two = DecodeStats(new_tokens=4, decode_seconds=1.0, level1=level, level2=level, seconds_by_part={"draft": 0.5})
    both = joined(one, two)
    assert both.tokens_per_second == 5.0 and both.level1 == level
    assert both.level2 == LevelStats(4, 16, 12, 10, (4, 4), (4, 2), {3: 4})
    assert both.seconds_by_part == {"full": 1.0, "draft": 0.5}
