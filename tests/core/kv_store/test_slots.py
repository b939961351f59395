"""Which texts stay in slots. That they come back exactly, `test_engine_store` shows for slots and disk alike."""

from collections.abc import Sequence

from core.engine import Engine
from core.generation.events import Finished
from core.kv_store.slots import Slots, size_bytes
from tests.core.toys import answer, random_prompt, tiny_engine

A, B = random_prompt(1300), random_prompt(1200, 1)
QUESTIONS = [random_prompt(14, seed) for seed in range(2, 6)]


def slots_of(engine: Engine, free_bytes: int = 1 << 40) -> Slots:
    return Slots(engine, lambda: free_bytes)


def ask(engine: Engine, prompt: Sequence[int], slots: Slots | None = None) -> Finished:
    if slots is not None:
        list(slots.bring(prompt))
    return answer(engine, prompt, tokens=5)


def read(engine: Engine, slots: Slots, *texts: Sequence[int]) -> None:
    for text in texts:
        list(slots.bring([*text, 0]))
        list(engine.read([*text, 0]))


def test_two_texts_take_turns_and_each_is_read_once() -> None:
    engine = tiny_engine()
    slots = slots_of(engine)
    for number, question in enumerate(QUESTIONS[:3]):
        for book in (A, B):
            finished = ask(engine, [*book, *question], slots)
            if number == 2:
                assert finished.token_ids == ask(tiny_engine(), [*book, *question]).token_ids
            assert (finished.prompt_tokens - finished.reused_tokens < 20) is (number > 0)
    assert len(slots) == 2, "a text that has only another question at its end is not kept twice"


def test_a_text_that_has_grown_shares_its_blocks_and_takes_the_old_one_s_place() -> None:
    engine, grown = tiny_engine(), [*A, *random_prompt(300, 7)]
    slots = slots_of(engine)
    read(engine, slots, A, B, grown)
    copied = [moving.done_tokens for moving in slots.bring([*B, 0])]
    list(engine.read([*B, 0]))
    assert len(slots) == 2 and 0 not in copied, "the first block was not copied again"
    assert ask(engine, [*grown, *QUESTIONS[0]], slots).reused_tokens >= len(grown)


def test_where_the_memory_ends_the_longest_unused_text_goes() -> None:
    engine = tiny_engine()
    cache, row = engine.full_cache, engine.full_cache.shape.bytes_per_token
    free = 5 * 1100 * row  # of which slots take half

    def free_bytes() -> int:
        return (cache.capacity - cache.length) * row + max(0, free - 2 * size_bytes(slots._texts))

    slots, texts = Slots(engine, free_bytes), [random_prompt(1000, seed) for seed in range(20, 24)]
    read(engine, slots, *texts)
    assert len(slots) == 2
    assert ask(engine, [*texts[2], *QUESTIONS[0]], slots).reused_tokens >= 1000
    assert ask(engine, [*texts[0], *QUESTIONS[0]], slots).reused_tokens < 64
    free = 0
    ask(engine, [*B, 0], slots)
    assert len(slots) <= 2, "nothing new has room"


def test_nothing_is_kept_where_nothing_is_free() -> None:
    engine = tiny_engine()
    slots = slots_of(engine, 0)
    read(engine, slots, A, B)
    assert len(slots) == 0 and size_bytes(slots._texts) == 0


def test_it_stops_when_it_is_cancelled_and_what_came_counts() -> None:
    engine, prompt = tiny_engine(), [*A, *QUESTIONS[1]]
    slots = slots_of(engine)
    read(engine, slots, A, B)
    assert list(slots.bring(prompt, lambda: engine.full_cache.length == 1024))
    assert engine.cached_prefix(prompt) == 1024
    assert ask(engine, prompt).token_ids == ask(tiny_engine(), prompt).token_ids
