"""Texts in slots: an engine that comes back to one goes on exactly as one that never read anything else."""

from collections.abc import Sequence
from typing import Any

import pytest

from core.caches.full_parts import Offload
from core.config import SamplingParams
from core.engine import Engine
from core.generation.events import Finished
from core.kv_store.slots import Slots
from tests.core.kv_store.test_engine_store import hold_the_same
from tests.core.toys import answer, random_prompt, tiny_engine

A, B = random_prompt(1300), random_prompt(1200, 1)
QUESTIONS = [random_prompt(14, seed) for seed in range(2, 6)]
PLENTY = 1 << 40


def slots_of(engine: Engine, free_bytes: int = PLENTY) -> Slots:
    return Slots(engine, lambda: free_bytes)


def ask(
    engine: Engine,
    prompt: Sequence[int],
    slots: Slots | None = None,
    method: str = "triforce",
    temperature: float = 0.0,
) -> Finished:
    if slots is not None:
        list(slots.bring(prompt))
    return answer(engine, prompt, method, 5, sampling=SamplingParams(temperature=temperature), seed=5)


def read_tokens(finished: Finished) -> int:
    return finished.prompt_tokens - 1 - finished.reused_tokens


@pytest.mark.parametrize(("method", "temperature"), [("autoregressive", 0.0), ("triforce", 1.0), ("h2o", 1.0)])
def test_a_request_between_two_questions_changes_nothing(method: str, temperature: float) -> None:
    engine, alone = tiny_engine(kv_heads=2), tiny_engine(kv_heads=2)
    slots = slots_of(engine)
    ask(engine, [*A, *QUESTIONS[0]], slots, method, temperature)
    ask(engine, random_prompt(40, 9), slots, method, temperature)
    again = ask(engine, [*A, *QUESTIONS[1]], slots, method, temperature)
    ask(alone, [*A, *QUESTIONS[0]], None, method, temperature)
    expected = ask(alone, [*A, *QUESTIONS[1]], None, method, temperature)
    fresh = ask(tiny_engine(kv_heads=2), [*A, *QUESTIONS[1]], None, method, temperature)
    assert again.token_ids == expected.token_ids == fresh.token_ids
    assert again.stats.level2 == expected.stats.level2, "landmarks and queries came back too"
    assert read_tokens(again) == read_tokens(expected) < len(QUESTIONS[1])


def test_two_texts_take_turns_and_each_is_read_once() -> None:
    engine = tiny_engine()
    slots = slots_of(engine)
    for number, question in enumerate(QUESTIONS[:3]):
        for book in (A, B):
            finished = ask(engine, [*book, *question], slots)
            if number == 2:
                assert finished.token_ids == ask(tiny_engine(), [*book, *question]).token_ids
            assert (read_tokens(finished) < 20) is (number > 0)
    assert len(slots) == 2, "a text that has only another question at its end is not kept twice"


def test_everything_comes_back_to_the_last_bit() -> None:
    engine, other = tiny_engine(), tiny_engine()
    slots = slots_of(engine)
    for one in (engine, other):
        list(one.read([*A, 0]))
    list(slots.bring([*B, 0]))
    list(engine.read([*B, 0]))
    list(slots.bring([*A, 0]))
    assert engine.held_tokens == A and hold_the_same(engine, other, len(A))


def test_a_text_that_has_grown_shares_its_blocks_and_takes_the_old_one_s_place() -> None:
    engine = tiny_engine()
    slots = slots_of(engine)
    grown = [*A, *random_prompt(300, 7)]
    for prompt in ([*A, 0], [*B, 0], [*grown, 0]):
        list(slots.bring(prompt))
        list(engine.read(prompt))
    before = slots.nbytes
    list(slots.bring([*B, 0]))
    row = engine.full_cache.shape.bytes_per_token
    assert len(slots) == 2
    assert slots.nbytes - before < (len(grown) - 1024 + 64) * row * 9 // 8, "the first block was not copied again"
    list(engine.read([*B, 0]))
    assert ask(engine, [*grown, *QUESTIONS[0]], slots).reused_tokens >= len(grown)


def test_where_the_memory_ends_the_longest_unused_text_goes() -> None:
    engine = tiny_engine()
    cache = engine.full_cache
    texts = [random_prompt(1000, seed) for seed in range(20, 24)]
    one = 1100 * cache.shape.bytes_per_token
    free: list[int] = []

    def free_bytes() -> int:
        untouched = (cache.capacity - cache.length) * cache.shape.bytes_per_token
        return untouched + max(0, free[0] - 2 * slots.nbytes)

    free.append(5 * one)  # of which slots take half
    slots = Slots(engine, free_bytes)
    for text in texts:
        list(slots.bring([*text, 0]))
        list(engine.read([*text, 0]))
    assert len(slots) == 2
    assert ask(engine, [*texts[2], *QUESTIONS[0]], slots).reused_tokens >= 1000
    assert ask(engine, [*texts[0], *QUESTIONS[0]], slots).reused_tokens < 64
    free[0] = 0
    ask(engine, [*B, 0], slots)
    assert len(slots) <= 2, "nothing new has room"


def test_nothing_is_kept_where_nothing_is_free() -> None:
    engine = tiny_engine()
    slots = slots_of(engine, 0)
    for prompt in ([*A, 0], [*B, 0]):
        list(slots.bring(prompt))
        list(engine.read(prompt))
    assert len(slots) == 0 and slots.nbytes == 0


@pytest.mark.parametrize("options", [{"offload": Offload(num_resident=1, block_rows=64)}, {"kv_bits": 16}])
def test_layers_in_host_memory_and_narrow_rows_come_back_too(options: dict[str, Any]) -> None:
    engine, alone = tiny_engine(**options), tiny_engine(**options)
    slots = slots_of(engine)
    ask(engine, [*A, *QUESTIONS[0]], slots)
    ask(engine, [*B, *QUESTIONS[0]], slots)
    again = ask(engine, [*A, *QUESTIONS[1]], slots)
    assert again.token_ids == ask(alone, [*A, *QUESTIONS[1]]).token_ids and read_tokens(again) < 20


def test_it_stops_when_it_is_cancelled_and_what_came_counts() -> None:
    engine = tiny_engine()
    slots = slots_of(engine)
    ask(engine, [*A, *QUESTIONS[0]], slots)
    ask(engine, [*B, *QUESTIONS[0]], slots)
    prompt, seen = [*A, *QUESTIONS[1]], 0

    def cancelled() -> bool:
        return engine.full_cache.length == 1024

    seen = len(list(slots.bring(prompt, cancelled)))
    assert seen and engine.cached_prefix(prompt) == 1024
    assert ask(engine, prompt).token_ids == ask(tiny_engine(), prompt).token_ids
