"""One answer: it goes on where it was cut, ends where it repeats itself, and tells the target's log-probabilities."""

import random
import threading
from contextlib import closing
from typing import Any

import pytest

from core.caches.tokens import Context
from core.config import GenerationConfig, SamplingParams
from core.decoding.registry import EXACT_METHODS
from core.decoding.stats import DecodeStats, LevelStats, joined
from core.engine import Engine
from core.errors import InvalidSetting
from core.generation import decode_loop
from core.generation.decode_loop import LONGEST_LOOP, LOOP_TIMES, LOOP_TOKENS, loops
from core.generation.events import Finished, PrefillProgress, RoundDone, TokenRecord
from tests.core.toys import FIXED, answer, last_event, random_prompt, tiny_engine

LONG, PROMPT = 20, random_prompt(300)


def beginning(engine: Engine, method: str, how: str) -> tuple[list[int], str]:
    """Tokens and text of an answer: nine tokens and a little more where it was cancelled or closed behind them."""
    limit, cancel, tokens, text = 9 if how == "at its limit" else LONG, threading.Event(), list[int](), ""
    config = GenerationConfig(method=method, max_new_tokens=limit, speculation=FIXED)
    with closing(engine.generate(PROMPT, config, cancel)) as events:
        for event in events:
            if isinstance(event, RoundDone):
                tokens, text = [*tokens, *(record.token_id for record in event.tokens)], text + event.text
            if len(tokens) > 9 and how == "closed":
                return tokens, text
            if len(tokens) > 9:
                cancel.set()
    assert isinstance(event, Finished) and event.stop_reason == ("cancelled" if limit == LONG else "max_new_tokens")
    return tokens, text


@pytest.mark.parametrize(
    ("method", "how"),
    [*((method, "at its limit") for method in EXACT_METHODS), ("triforce", "cancelled"), ("triforce", "closed")],
)
def test_a_continued_answer_equals_one_long_answer(method: str, how: str) -> None:
    engine = tiny_engine(noise=0.05)
    whole, (tokens, text) = answer(engine, PROMPT, method, LONG), beginning(engine, method, how)
    rest = GenerationConfig(method=method, max_new_tokens=LONG - len(tokens), speculation=FIXED)
    begun, *rounds, end = engine.generate(PROMPT, rest, written=tokens)
    streamed = "".join(event.text for event in rounds if isinstance(event, RoundDone))
    assert isinstance(begun, PrefillProgress) and isinstance(end, Finished)
    assert end.token_ids == whole.token_ids and end.text == whole.text == text + streamed
    assert begun.reused_tokens == begun.total_tokens == len(PROMPT) + len(tokens) - 1, "nothing is read again"
    assert end.stats.new_tokens == LONG - len(tokens) and end.prompt_tokens == len(PROMPT)


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


# -------------------- greedy texts that go on repeating themselves end, at the same token with every method


def loops_by_counting(tokens: list[int]) -> bool:
    """By the definition: how far back each length of a piece goes on as it is."""
    for size in range(1, min(LONGEST_LOOP, len(tokens)) + 1):
        same = next((n for n in range(size, len(tokens)) if tokens[-1 - n] != tokens[-1 - n % size]), len(tokens))
        if same >= max(LOOP_TIMES * size, LOOP_TOKENS):
            return True
    return False


@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 40, LONGEST_LOOP, LONGEST_LOOP + 1])
def test_a_loop_is_a_piece_that_stands_there_often_enough(size: int) -> None:
    rng = random.Random(size)
    piece, before = [rng.randrange(50, 99) for _ in range(size)], [rng.randrange(40) for _ in range(70)]
    found = []
    for length in range(LOOP_TIMES * size + LOOP_TOKENS):
        tokens = [*before, *(piece[at % size] for at in range(length))]
        found.append(loops(tokens))
        assert found[-1] is loops_by_counting(tokens)
    assert any(found) is (size <= LONGEST_LOOP)
    assert found == sorted(found), "once in a loop, always in it"


def test_every_method_ends_a_loop_at_the_same_token_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as a loop here: the newest token stands there three times. Tiny models do not come into real ones."""
    monkeypatch.setattr(decode_loop, "loops", in_loop := lambda tokens: list(tokens).count(tokens[-1]) >= 3)
    engine, prompt = tiny_engine(), random_prompt(300, 1)

    def written(method: str, **settings: Any) -> Finished:
        return answer(engine, prompt, method, 60, **{"end_loops": True, **settings})

    whole = written("autoregressive", end_loops=False)
    assert whole.stop_reason == "max_new_tokens"
    first = next(n for n in range(1, 60) if in_loop(whole.token_ids[:n]))
    for method in ("autoregressive", "triforce", "lookup"):
        ended = written(method)
        assert ended.stop_reason == "repeating" and ended.token_ids == whole.token_ids[:first]
    assert written("lookup", sampling=SamplingParams(temperature=1.0)).stop_reason == "max_new_tokens"
    more = written("lookup", written=whole.token_ids[:first])
    assert more.stop_reason == "repeating" and len(more.token_ids) >= first + 3, "who wants more of it can have it"


# -------------------- log-probabilities


GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.3, top_p=0.8, top_k=20)


def written(engine: Engine, sampling: SamplingParams, method: str, top: int | None = 3) -> list[TokenRecord]:
    shape = {"method": method, "sampling": sampling, "speculation": FIXED, "seed": 3, "top_logprobs": top}
    events = engine.generate(PROMPT, GenerationConfig(max_new_tokens=12, **shape))
    return [record for event in events if isinstance(event, RoundDone) for record in event.tokens]


@pytest.mark.parametrize(
    ("method", "sampling"),
    [("autoregressive", SAMPLED), ("retrieval", GREEDY), ("triforce", SAMPLED), ("triforce-lookup", GREEDY)],
)
def test_they_are_the_target_s_own_before_any_sampling_option(method: str, sampling: SamplingParams) -> None:
    """The slow twin: one pass of one row a token, over the full cache."""
    records, slow = written(tiny_engine(), sampling, method), tiny_engine()
    assert len(records) == 12 and (method == "autoregressive" or len({record.round for record in records}) < 12)
    text = list(PROMPT)
    for record in records:
        list(slow.read(text))
        expected = slow._levels.parts.full.logits(Context(text), 1)[0].log_softmax(-1)
        slow.settle(text)
        assert record.logprob == pytest.approx(float(expected[record.token_id]), abs=1e-4)
        best = expected.topk(3)
        assert [one.token_id for one in record.top] == best.indices.tolist()
        assert [one.logprob for one in record.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        text.append(record.token_id)


def test_noting_them_changes_no_token_and_costs_nothing_unless_asked_for() -> None:
    noted, silent = (written(tiny_engine(), SamplingParams(temperature=1.0), "triforce", top) for top in (0, None))
    assert [one.token_id for one in noted] == [one.token_id for one in silent]
    assert all(one.logprob is not None and one.top == () for one in noted)
    assert all(one.logprob is None for one in silent)


def test_the_end_of_the_text_has_none_and_so_many_are_refused() -> None:
    records = written(tiny_engine(eos_ids=frozenset(range(0, 64, 2))), GREEDY, "triforce")
    assert records[-1].token_id % 2 == 0 and records[-1].logprob is None
    assert all(record.logprob is not None for record in records[:-1])
    with pytest.raises(InvalidSetting, match="log-probabilities"):
        GenerationConfig(top_logprobs=21)
