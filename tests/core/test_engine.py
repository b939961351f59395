"""The engine as a user of it sees it: exact text, nothing read twice, ends where it must, survives interruption."""

import threading
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import torch

from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import EXACT_METHODS, LOSSY_METHODS
from core.engine_info import Equality
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Finished, PrefillProgress, RoundDone
from core.planning.sizes import USABLE_SHARE
from tests.core.toys import FIXED, answer, random_prompt, tiny_engine

PROMPT = random_prompt(300)  # more than the retrieval cache holds, and near enough for mixed verdicts


@pytest.fixture(scope="module")
def plain() -> Finished:
    return answer(tiny_engine(), PROMPT, "autoregressive")


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_greedy_text_equals_plain_decoding_token_by_token(kv_heads: int) -> None:
    for length, methods in ((300, ("triforce", "triforce-lookup", "retrieval", "lookup")), (90, ("draft",))):
        engine, prompt = tiny_engine(kv_heads=kv_heads, noise=0.05), random_prompt(length)  # a draft sees 128 tokens
        plain = answer(engine, prompt, "autoregressive", 20)
        for method in methods:
            fast = answer(engine, prompt, method, 20)
            assert fast.token_ids == plain.token_ids and fast.exact, method
            level2 = fast.stats.level2
            assert level2 and 0.05 < (level2.acceptance or 0) < 1, "verdicts must be mixed for this to test anything"
            assert fast.stats.full_passes < plain.stats.full_passes
        for gamma1, gamma2 in ((1, 1), (3, 5), (2, 12)):
            shape = SpeculationConfig(gamma1=gamma1, gamma2=gamma2, adaptive=False)
            assert answer(engine, prompt, tokens=20, speculation=shape).token_ids == plain.token_ids


def test_another_budget_holds_what_an_engine_loaded_with_it_would_and_writes_the_same_text() -> None:
    engine = tiny_engine(budget=128, context=512)
    first = answer(engine, PROMPT, tokens=16)
    for budget in (192, 96):
        loaded_so = tiny_engine(budget=budget, context=512)
        expected, changed = answer(loaded_so, PROMPT, tokens=16), answer(engine, PROMPT, tokens=16, budget=budget)
        assert changed.token_ids == expected.token_ids == first.token_ids
        assert torch.equal(engine._levels.retrieval.held_chunks(), loaded_so._levels.retrieval.held_chunks())
        assert torch.allclose(engine.chunk_weights(), loaded_so.chunk_weights())
        assert changed.stats.level2 == expected.stats.level2
        assert changed.stats.kv_bytes_read == expected.stats.kv_bytes_read != first.stats.kv_bytes_read
    assert answer(engine, PROMPT, tokens=16).stats.level2 == first.stats.level2, "without one it is as it was loaded"


def test_a_budget_that_cannot_be_used_or_takes_memory_that_no_plan_takes_is_refused_and_changes_nothing() -> None:
    engine = tiny_engine(context=512)
    answer(engine, PROMPT, tokens=4)
    held = engine._levels.retrieval.held_chunks()
    for budget in (1, 257):
        with pytest.raises(InvalidSetting):
            answer(engine, PROMPT, budget=budget)
    more = engine.plan.total_bytes + 64 * engine.info.kv_bytes_per_token
    for free, fits in ((more, False), (ceil(more / USABLE_SHARE), True)):  # not all that is free is usable
        rig = engine.plan.rig
        machine = replace(rig.machine, free_ram_bytes=free)
        engine._placement.plan = replace(engine.plan, rig=replace(rig, machine=machine))
        if fits:
            assert torch.equal(engine._levels.retrieval.held_chunks(), held) and engine.use_budget(None) == 256
            assert engine.use_budget(256 + 64) == 320
        else:
            with pytest.raises(NotEnoughMemory, match="at most"):
                answer(engine, PROMPT, budget=256 + 64)


@pytest.mark.parametrize("times", [1, 9])
def test_a_device_that_has_no_room_for_a_budget_moves_layers_away_or_keeps_the_one_it_had(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(context=512)
    before = answer(engine, PROMPT, tokens=8)
    retrieval = engine._levels.retrieval
    real, rows, calls = retrieval.allocate_buffers, retrieval._rows, list[int]()

    def allocate() -> None:
        calls.append(retrieval._rows)
        if retrieval._rows > rows and len(calls) <= times:
            raise torch.OutOfMemoryError("injected")
        real()

    monkeypatch.setattr(retrieval, "allocate_buffers", allocate)
    if times == 1:
        assert answer(engine, PROMPT, tokens=8, budget=320).token_ids == before.token_ids
        assert engine.plan.resident_layers < engine.plan.num_layers
    else:
        with pytest.raises(NotEnoughMemory):
            answer(engine, PROMPT, tokens=8, budget=320)
    assert answer(engine, PROMPT, tokens=8).token_ids == before.token_ids


def test_a_second_question_reads_no_book_token_again() -> None:
    engine, first, second = tiny_engine(), random_prompt(12, 1), random_prompt(15, 2)
    one = answer(engine, [*PROMPT, *first], tokens=20)
    assert one.reused_tokens == 0
    two = answer(engine, [*PROMPT, *first, *one.token_ids, *second], tokens=4)
    assert two.reused_tokens >= len(PROMPT) + len(first) + len(one.token_ids) - 1
    edited = answer(engine, [*PROMPT, *second])
    assert edited.reused_tokens == len(PROMPT)
    assert edited.token_ids == answer(tiny_engine(), [*PROMPT, *second]).token_ids, "as after reading everything"


@pytest.mark.parametrize("method", EXACT_METHODS)
def test_an_answer_ends_exactly_where_it_must(method: str, plain: Finished) -> None:
    """At the limit, before a stop string, at the end token wherever it falls, and where the context does."""
    engine, stop = tiny_engine(context=512), plain.text[9:12]
    for limit in (1, 2, 13):
        finished = answer(engine, PROMPT, method, limit)
        assert len(finished.token_ids) == finished.stats.new_tokens == limit
        assert finished.stop_reason == "max_new_tokens"
    finished = answer(engine, PROMPT, method, stop_strings=(stop,))
    assert finished.text == plain.text[: plain.text.index(stop)] and finished.stop_reason == "stop_string"
    finished = answer(engine, random_prompt(440), method, 500)
    assert finished.stop_reason == "context_full" and len(finished.token_ids) == 512 - LONGEST_ROUND - 440 + 1
    for index in (0, 5):
        ending = plain.token_ids[index]
        engine = tiny_engine(eos_ids=frozenset({ending}))
        finished = answer(engine, PROMPT, method)
        assert finished.token_ids == plain.token_ids[: plain.token_ids.index(ending) + 1]
        assert finished.stop_reason == "end_of_text" and engine.text.decode([ending]) not in finished.text


@pytest.mark.parametrize("method", LOSSY_METHODS)
def test_a_lossy_method_says_so_and_does_not_spoil_the_next_exact_answer(method: str, plain: Finished) -> None:
    engine = tiny_engine(budget=96)
    before, finished = answer(engine, PROMPT).token_ids, answer(engine, PROMPT, method, 40)
    assert before == plain.token_ids != finished.token_ids[: len(before)]
    assert not finished.exact and finished.stats.new_tokens == 40
    assert answer(engine, PROMPT).token_ids == before


def test_streamed_text_is_the_final_text_tokens_carry_their_origin_and_statistics_add_up() -> None:
    config = GenerationConfig(max_new_tokens=50, speculation=FIXED, stop_strings=("zzz",))
    *events, finished = tiny_engine().generate(PROMPT, config)
    rounds = [event for event in events if isinstance(event, RoundDone)]
    assert isinstance(finished, Finished)
    assert finished.text.startswith("".join(event.text for event in rounds))
    records = [record for event in rounds for record in event.tokens]
    assert tuple(record.token_id for record in records) == finished.token_ids
    assert "".join(record.text for record in records) == finished.text
    assert {record.origin.level for record in records} <= {"draft", "retrieval", "full"}
    assert all(0 < record.p <= 1 for record in records)
    accepted = sum(record.origin.level != "full" for record in records)
    stats, level2 = finished.stats, finished.stats.level2
    assert level2 is not None and stats.level1 is not None
    assert accepted <= level2.accepted < accepted + 24  # the last round may be cut
    assert sum(rounds * tokens for tokens, rounds in level2.committed_per_round.items()) >= stats.new_tokens
    assert stats.full_passes >= level2.rounds > 0
    assert stats.tokens_per_full_pass == stats.new_tokens / stats.full_passes
    assert set(stats.seconds_by_part) == {"draft", "retrieval", "full", "other"}
    assert sum(stats.seconds_by_part.values()) == pytest.approx(stats.decode_seconds, rel=0.2)
    assert stats.kv_bytes_read > 0 and stats.kv_bytes_read_plain > 0


# -------------------- interruptions and limits


def test_cancel_during_prefill_keeps_the_chunks_that_were_read() -> None:
    engine, cancel, prompt = tiny_engine(prefill_chunk=100), threading.Event(), random_prompt(450)
    for event in engine.generate(prompt, GenerationConfig(), cancel):
        if isinstance(event, PrefillProgress) and event.done_tokens >= 300:
            cancel.set()
    assert isinstance(event, Finished)
    assert (event.stop_reason, event.text, event.stats.full_passes) == ("cancelled", "", 0)
    assert engine.cached_prefix(prompt) == 300
    assert answer(engine, prompt, tokens=4).reused_tokens == 300


@pytest.mark.parametrize(("read_before", "stops"), [(0, [100, 200, 250, 350, 399]), (250, [350, 399]), (300, [399])])
def test_reading_stops_at_the_boundary_it_is_told_of(read_before: int, stops: list[int]) -> None:
    engine, prompt, held = tiny_engine(prefill_chunk=100), random_prompt(400), list[int]()
    if read_before:
        list(engine.read([*prompt[:read_before], 1]))
    for event in engine.generate(prompt, GenerationConfig(max_new_tokens=4), boundary=250):
        if isinstance(event, PrefillProgress):
            held.append(engine.full_cache.length)
            assert held[-1] == event.kept_tokens and event.total_tokens == 399
    assert held == [read_before, *stops]
    assert isinstance(event, Finished) and event.token_ids == answer(tiny_engine(), prompt, tokens=4).token_ids


def test_a_text_longer_than_the_context_is_refused_before_anything_is_read() -> None:
    engine = tiny_engine(context=512)
    answer(engine, random_prompt(100))
    with pytest.raises(ContextTooSmall) as error:
        answer(engine, random_prompt(600))
    assert error.value.needed == 600 + LONGEST_ROUND and error.value.capacity == 512
    with pytest.raises(InvalidSetting, match="empty"):
        answer(engine, [])
    assert engine.cached_prefix(random_prompt(100)) == 100, "what was there stays"


def test_after_an_answer_that_was_cut_in_a_round_no_cache_holds_what_was_not_committed() -> None:
    engine, prompt = tiny_engine(noise=0.0, budget=512), random_prompt(200)  # every guess is right
    shape, parts = SpeculationConfig(gamma1=3, gamma2=12, adaptive=False), engine._levels.parts
    assert answer(engine, prompt, tokens=5, speculation=shape).stats.full_passes == 1
    assert engine.full_cache.length == len(engine.held_tokens) == 204
    assert all(model.cache.length <= 204 for model in (parts.retrieval, parts.draft) if model)


def test_comparison_names_the_first_divergence_and_its_logit_gap() -> None:
    """The gap is that of each token to the best one, not of the best two."""
    engine, prompt = tiny_engine(), random_prompt(100)
    plain = answer(engine, prompt, "autoregressive", 20).token_ids
    assert engine.compare(prompt, plain, plain).verdict == "identical"
    equality = engine.compare(prompt, plain, (*plain[:7], (plain[7] + 1) % 64, *plain[8:]))
    assert (equality.verdict, equality.index) == ("mismatch", 7) and (equality.logit_gap or 0) > 1e-3
    for texts in ((plain, plain[:12]), (plain[:12], plain)):
        assert engine.compare(prompt, *texts) == Equality("mismatch", 12, None), "one ends where the other goes on"
    logits = engine._levels.parts.full.logits
    close = torch.full((1, 64), -9.0)
    close[0, 5], close[0, 6], close[0, 7] = 4.0, 4.0 - 1e-4, 4.0 - 2e-4
    engine._levels.parts.full.logits = lambda context, keep: logits(context, keep) * 0 + close  # type: ignore[method-assign]
    for one, other, gap in ((5, 6, 1e-4), (6, 7, 2e-4)):
        assert engine.compare(prompt, [one], [other]) == Equality("near_tie", 0, pytest.approx(gap, rel=1e-2))
    for one, other in ((5, 8), (8, 5), (8, 9)):
        assert engine.compare(prompt, [one], [other]) == Equality("mismatch", 0, pytest.approx(13.0))


# -------------------- what a rewind leaves


def test_a_second_answer_chooses_the_chunks_of_the_first_and_a_seed_gives_its_text_again() -> None:
    """Though an answer of more than 120 tokens overwrites the queries that chose its chunks."""
    engine, prompt = tiny_engine(budget=128), random_prompt(400)
    written: Any = {"method": "retrieval", "tokens": 125, "sampling": SamplingParams(temperature=0.8), "seed": 5}
    texts, held = [], []
    for number in range(2):
        first, *_ = engine.read(prompt)
        assert number == 0 or first.reused_tokens == first.total_tokens, "nothing is read again"
        engine._levels.retrieval.select()
        held.append(engine._levels.retrieval.held_chunks().sort().values)
        texts.append(answer(engine, prompt, **written).token_ids)
    assert torch.equal(*held) and texts[0] == texts[1]
    assert answer(tiny_engine(budget=128), prompt, **written).token_ids == texts[0]


def test_queries_that_a_long_answer_has_overwritten_are_asked_again() -> None:
    """Going on in the middle of it: nobody remembered the queries there. Those of the fresh engine are the judge."""
    engine, other, prompt = tiny_engine(), tiny_engine(), random_prompt(400)
    middle = [*prompt, *answer(engine, prompt, method="autoregressive", tokens=300).token_ids[:90]]
    first, *_ = engine.read(middle)
    window = engine.config.retrieval.query_window
    assert first.total_tokens - first.reused_tokens == window, "only these are read again"
    list(other.read(middle))
    for layer in range(2):
        ours, theirs = (e.full_cache.recent_queries(layer, window) for e in (engine, other))
        assert ours.shape[1] == window and torch.allclose(ours, theirs, atol=1e-4)


# -------------------- what the retrieval cache holds


def test_weights_of_chunks_depend_on_the_question_change_no_answer_and_stop_when_told() -> None:
    engine, book, stop = tiny_engine(noise=0.05), random_prompt(600), threading.Event()
    assert len(engine.chunk_weights()) == 0
    one, other, again = (engine.weights_after([*book, *question]) for question in ([5, 6, 7], [9, 8, 4], [5, 6, 7]))
    assert one is not None and other is not None and again is not None
    assert engine.cached_prefix(book) == len(book)
    assert torch.allclose(one, again, atol=1e-6) and not torch.allclose(one, other, atol=1e-4)
    assert one.shape[0] <= 604 // 8 and 0 < float(one.sum()) <= 1 + 1e-5
    held = torch.zeros(len(one)).index_fill(0, engine._levels.retrieval.held_chunks().flatten(), 1)
    assert bool((one[held == 0] == 0).all()) and not engine.holds_all_chunks
    assert answer(engine, book).token_ids == answer(tiny_engine(noise=0.05), book).token_ids
    stop.set()
    assert engine.weights_after(random_prompt(800, seed=3), stop) is None
    engine.weights_after(book[:100])
    assert engine.holds_all_chunks
