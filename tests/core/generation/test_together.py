"""Answers that are decoded together: each is what it is alone, whoever comes, goes or is stopped beside it."""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.caches.branch import BranchCache
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.engine import Engine
from core.generation.events import Finished, LaneEvent, PrefillProgress, RoundDone
from core.generation.together import MOST_TOGETHER, Question, in_order
from core.models import joined
from core.ops.backend import Backend
from core.ops.native import KEYS_OF_A_SHARE, MOST_TOKENS
from core.planning.devices import Rig
from tests.core.toys import last_event, random_prompt, tiny_engine

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)
BOOK = random_prompt(KEYS_OF_A_SHARE + 190)  # more than a share of keys, and no whole number of chunks


@pytest.fixture(scope="module")
def engine(backend: Backend) -> Engine:
    return tiny_engine(backend=backend)


def questions(
    method: str, sampling: SamplingParams = GREEDY, lengths: Sequence[int] = (9, 40, 3, 17, 70), **settings: Any
) -> list[Question]:
    """About one book: of different lengths, with answers of different lengths."""
    found, settings = [], {"method": method, "sampling": sampling, **settings}
    for number, length in enumerate(lengths):
        config = GenerationConfig(max_new_tokens=12 + 5 * number, seed=number, **settings)
        found.append(Question([*BOOK, *random_prompt(length, 50 + number)], config, threading.Event()))
    return found


def alone(engine: Engine, asked: Sequence[Question]) -> list[Finished]:
    return [last_event(engine.generate(question.prompt_ids, question.config)) for question in asked]


def together(
    engine: Engine, asked: Sequence[Question], look: Callable[[LaneEvent], object] = lambda event: None
) -> dict[int | None, Finished]:
    """The last events by lane; `look` is shown every event."""
    found = {}
    for one in engine.answer_together(asked):
        look(one)
        if isinstance(one.event, Finished):
            found[one.lane] = one.event
    return dict(sorted(found.items()))


def assert_as_alone(engine: Engine, asked: Sequence[Question]) -> tuple[list[Finished], list[Finished]]:
    expected, found = alone(engine, asked), list(together(engine, asked).values())
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.stop_reason for one in found] == [one.stop_reason for one in expected]
    return found, expected


@pytest.fixture
def joined_rows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows of each conversation in every joined pass."""
    rows, real = list[list[int]](), joined.RaggedCache

    def make(caches: Sequence[tuple[joined.KVCache, int]]) -> joined.RaggedCache:
        rows.append([count for _, count in caches])
        return real(caches)

    monkeypatch.setattr(joined, "RaggedCache", make)
    return rows


@pytest.mark.parametrize(
    ("method", "sampling"),
    [(method, SAMPLED) for method in ("autoregressive", "retrieval", "lookup", "triforce", "triforce-lookup", "draft")]
    + [("autoregressive", GREEDY), ("triforce-lookup", GREEDY)],
)
def test_every_answer_is_what_it_is_alone(
    engine: Engine, method: str, sampling: SamplingParams, joined_rows: list[list[int]]
) -> None:
    found, expected = assert_as_alone(engine, questions(method, sampling))
    assert max(map(len, joined_rows)) == 5, "passes were joined"
    if not sampling.greedy:  # greedy rounds follow measured times
        assert [one.stats.level2 for one in found] == [one.stats.level2 for one in expected]
        assert [one.stats.full_passes for one in found] == [one.stats.full_passes for one in expected]


def test_rounds_longer_than_a_short_pass_are_verified_one_by_one(engine: Engine, joined_rows: list[list[int]]) -> None:
    long = SpeculationConfig(gamma2=48, max_gamma2=48, adaptive=False)
    found, _ = assert_as_alone(engine, questions("retrieval", lengths=(9, 3), speculation=long))
    assert 0 < max(map(max, joined_rows)) <= MOST_TOKENS
    assert sum(one.stats.level2.guessed for one in found if one.stats.level2) > MOST_TOKENS * 2, "rounds were long"


@pytest.mark.parametrize(("heads", "kv_heads", "kv_bits"), [(6, 2, None), (3, 3, None), (4, 4, 16)])
def test_with_shared_heads_uneven_heads_and_narrow_keys_too(
    backend: Backend, heads: int, kv_heads: int, kv_bits: int | None
) -> None:
    engine = tiny_engine(backend=backend, heads=heads, kv_heads=kv_heads, kv_bits=kv_bits)
    assert_as_alone(engine, questions("triforce", SAMPLED))


def test_the_trunk_is_read_once_for_all(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, kernel = [], engine.full_cache.backend.kernel
    assert kernel is not None
    real = kernel.begun

    def begun(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append((q.shape[2], k.shape[2]))
        return real(q, k, *rest)

    monkeypatch.setattr(kernel, "begun", begun)
    together(engine, questions("autoregressive"))
    assert max(calls) == (5, KEYS_OF_A_SHARE)


def test_the_caches_of_an_answer_that_has_ended_are_free(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made, living, real = weakref.WeakSet[BranchCache](), list[int](), BranchCache.__init__

    def make(cache: BranchCache, *given: Any) -> None:
        real(cache, *given)
        made.add(cache)

    def look(one: LaneEvent) -> None:
        if isinstance(one.event, PrefillProgress):
            living.append(len(made))

    monkeypatch.setattr(BranchCache, "__init__", make)
    together(engine, questions("triforce", lengths=[5] * (MOST_TOGETHER + 3)), look)
    assert max(living) == MOST_TOGETHER - 1


def test_events_of_each_come_in_order_and_more_questions_than_seats_follow_one_another(engine: Engine) -> None:
    asked = questions("triforce", lengths=[5 + number for number in range(MOST_TOGETHER + 2)])
    assert engine.together(asked).value == MOST_TOGETHER
    order: list[tuple[int | None, type]] = []
    found = together(engine, asked, lambda one: order.append((one.lane, type(one.event))))
    for number in range(len(asked)):
        kinds = [kind for lane, kind in order if lane == number]
        reading, first = kinds.count(PrefillProgress), kinds.index(RoundDone)
        assert reading == first > 0 and kinds[reading:] == [RoundDone] * (len(kinds) - reading - 1) + [Finished]
    last_read = order.index((len(asked) - 1, PrefillProgress))
    assert any(kind is Finished for _, kind in order[:last_read]), "the last one waited for a seat"
    assert [one.token_ids for one in found.values()] == [one.token_ids for one in alone(engine, asked)]


# -------------------- questions that are stopped


def test_in_order_what_follows_a_question_that_was_cancelled_before_its_turn_still_comes(engine: Engine) -> None:
    asked = questions("triforce", lengths=(5, 6, 7))
    asked[1].cancel.set()
    events = list(in_order(engine.answer_together(asked), len(asked)))
    assert [number for number, event in events if isinstance(event, Finished)] == [0, 2]
    assert [number for number, _ in events] == sorted(number for number, _ in events)


@pytest.mark.parametrize("while_reading", [True, False])
def test_stopping_one_disturbs_no_other_and_leaves_nothing_behind(engine: Engine, while_reading: bool) -> None:
    """What it had read must not be taken for its own when it is asked again: others have overwritten it."""
    asked = questions("triforce", lengths=(9, 3, 600, 17) if while_reading else (9, 40, 3, 17))
    expected, stop, rounds = alone(engine, asked), asked[2].cancel, []

    def look(one: LaneEvent) -> None:
        rounds.extend([one] if isinstance(one.event, RoundDone) else [])
        reading = one.lane == 2 and isinstance(one.event, PrefillProgress) and one.event.done_tokens > len(BOOK)
        if (while_reading and reading) or (not while_reading and len(rounds) == 4):
            stop.set()

    found = together(engine, asked, look)
    if 2 in found:
        written = found.pop(2)
        assert written.stop_reason == "cancelled"
        assert written.token_ids == expected[2].token_ids[: len(written.token_ids)]
    assert {number: one.token_ids for number, one in found.items()} == {n: expected[n].token_ids for n in (0, 1, 3)}
    assert alone(engine, asked[2:3])[0].token_ids == expected[2].token_ids


def test_stopping_all_ends_those_that_run_and_begins_no_others(engine: Engine) -> None:
    stop = threading.Event()
    asked = [one._replace(cancel=stop) for one in questions("triforce", lengths=range(4, 4 + MOST_TOGETHER + 3))]
    found = together(engine, asked, lambda one: stop.set() if isinstance(one.event, RoundDone) else None)
    assert [one.stop_reason for one in found.values()] == ["cancelled"] * MOST_TOGETHER


# -------------------- how many


def test_what_cannot_be_joined_is_answered_one_by_one_with_the_reason(engine: Engine, backend: Backend) -> None:
    away = tiny_engine(backend=backend, placement="split", cpu_attention_share=0.0)
    for other, reason in ((tiny_engine(), "as if it were alone"), (away, "host memory")):
        chosen = other.together(questions("triforce"))
        assert chosen.value == 1 and reason in chosen.because
        assert_as_alone(other, questions("triforce", lengths=(4, 6)))
    assert "lossy" in engine.together(questions("streamingllm")).because
    assert engine.together(questions("triforce")[:1]).value == 1


@pytest.mark.parametrize(("fit", "number"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 5)])
def test_no_more_are_together_than_memory_holds(engine: Engine, fit: int, number: int) -> None:
    asked, plan = questions("triforce"), engine.plan
    own = max(len(one.prompt_ids) - len(BOOK) + one.config.max_new_tokens + 64 for one in asked)
    each = BranchCache.own_bytes(engine.full_cache.shape, own, 8)
    each += plan.bytes_of("retrieval cache") + plan.bytes_of("streaming cache")
    small = Engine(engine.config, plan, engine.text, engine._models)
    free = int((plan.total_bytes + (fit + 0.5) * each) / 0.9)
    small._placement.plan = replace(plan, rig=Rig(machine=replace(plan.rig.machine, free_ram_bytes=free)))
    assert small.together(asked).value == number
    endless = [one._replace(config=replace(one.config, max_new_tokens=1 << 30)) for one in asked]
    assert engine.together(endless).value == 5, "none takes more than the context"
