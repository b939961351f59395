"""Greedy texts that go on repeating themselves end, at the same token with every method."""

import random
from typing import Any

import pytest

from core.config import SamplingParams
from core.generation import decode_loop
from core.generation.decode_loop import LONGEST_LOOP, LOOP_TIMES, LOOP_TOKENS, loops
from core.generation.events import Finished
from tests.core.toys import answer, random_prompt, tiny_engine


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
