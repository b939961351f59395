"""An answer that was cut goes on as if it had never been: the same tokens, and nothing is read again."""

import threading

import pytest

from core.config import GenerationConfig, SamplingParams
from core.decoding.registry import EXACT_METHODS
from core.decoding.stats import DecodeStats, LevelStats, joined
from core.engine import Engine
from core.generation.events import Finished, PrefillProgress, RoundDone
from tests.core.toys import FIXED, answer, last_event, random_prompt, tiny_engine

LONG, PROMPT = 20, random_prompt(300)


def stopped(engine: Engine, method: str, how: str) -> Finished:
    """The beginning of an answer: nine tokens and a little more where it was cancelled behind them."""
    if how == "at its limit":
        return answer(engine, PROMPT, method, 9)
    cancel = threading.Event()
    for event in engine.generate(
        PROMPT, GenerationConfig(method=method, max_new_tokens=LONG, speculation=FIXED), cancel
    ):
        if isinstance(event, RoundDone) and event.stats.new_tokens > 9:
            cancel.set()
    assert isinstance(event, Finished) and event.stop_reason == "cancelled"
    return event


@pytest.mark.parametrize(
    ("method", "how"), [*((method, "at its limit") for method in EXACT_METHODS), ("triforce", "cancelled")]
)
def test_a_continued_answer_equals_one_long_answer(method: str, how: str) -> None:
    engine = tiny_engine(noise=0.05)
    whole, cut = answer(engine, PROMPT, method, LONG), stopped(engine, method, how)
    rest = GenerationConfig(method=method, max_new_tokens=LONG - len(cut.token_ids), speculation=FIXED)
    begun, *rounds, end = engine.generate(PROMPT, rest, written=cut.token_ids)
    streamed = "".join(event.text for event in rounds if isinstance(event, RoundDone))
    assert isinstance(begun, PrefillProgress) and isinstance(end, Finished)
    assert end.token_ids == whole.token_ids and end.text == whole.text == cut.text + streamed
    assert begun.reused_tokens == begun.total_tokens == len(PROMPT) + len(cut.token_ids) - 1, "nothing is read again"
    assert end.stats.new_tokens == LONG - len(cut.token_ids) and end.prompt_tokens == len(PROMPT)


def test_a_continued_answer_by_plain_decoding_keeps_its_seed() -> None:
    engine = tiny_engine()

    def write(most: int, temperature: float = 1.0, written: tuple[int, ...] = ()) -> tuple[int, ...]:
        sampling = SamplingParams(temperature=temperature)
        config = GenerationConfig(max_new_tokens=most, method="autoregressive", sampling=sampling, seed=7)
        return last_event(engine.generate(PROMPT, config, written=written)).token_ids

    whole = write(LONG)
    assert write(LONG - 11, written=write(11)) == whole
    assert write(LONG, temperature=0.0) != whole, "the text is really sampled, or this tests nothing"


def test_figures_of_two_stretches_add_up() -> None:
    level = LevelStats(2, 8, 6, 5, (2, 2), (2, 1), {3: 2})
    one = DecodeStats(new_tokens=6, decode_seconds=1.0, level2=level, seconds_by_part={"full": 1.0})
    two = DecodeStats(new_tokens=4, decode_seconds=1.0, level1=level, level2=level, seconds_by_part={"draft": 0.5})
    both = joined(one, two)
    assert both.tokens_per_second == 5.0 and both.level1 == level
    assert both.level2 == LevelStats(4, 16, 12, 10, (4, 4), (4, 2), {3: 4})
    assert both.seconds_by_part == {"full": 1.0, "draft": 0.5}
