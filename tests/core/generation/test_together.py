"""Answers that are decoded together: each is what it is alone, whoever comes, goes or is stopped beside it."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from core.caches.branch import BranchCache, BranchLayer
from core.config import DraftConfig, EngineConfig, GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.engine import Engine
from core.generation.events import Event, Finished, PrefillProgress, RoundDone
from core.generation.loaded import LoadedModels
from core.generation.together import MOST_TOGETHER, Question, in_order
from core.models import joined
from core.models.weights import prepared
from core.ops.backend import Backend
from core.ops.native import KEYS_OF_A_SHARE, MOST_TOKENS, SmallRows
from core.planning.devices import Rig
from core.planning.plan import make_plan
from tests.core.toys import CPU, MACHINE, Letters, last_event, loaded, random_prompt, tiny_config, tiny_engine

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)
BOOK = random_prompt(KEYS_OF_A_SHARE + 190)  # more than a share of keys, and no whole number of chunks


@pytest.fixture(scope="module")
def backend(kernel: SmallRows) -> Backend:
    return Backend("compiled", kernel, "test", kernel=kernel)


def engine_with(backend: Backend, *, heads: int = 4, kv_heads: int = 4, kv_bits: int | None = None) -> Engine:
    """A tiny pair whose layers are the kernel's."""
    config = EngineConfig(
        context=2048,
        prefill_chunk=256,
        kv_bits=kv_bits,
        retrieval=RetrievalConfig(budget=256, chunk_size=8, local_window=64),
        draft=DraftConfig(window=128),
    )
    tiny = [loaded(tiny_config(heads=heads, kv_heads=kv_heads), 3, noise) for noise in (0.0, 0.15)]
    plan = make_plan(tiny[0].dims, tiny[1].dims, config, MACHINE)
    target, draft = (prepared(one.module, one.dims, torch.float32, CPU, backend) for one in tiny)
    dims = replace(target.dims, kv_dtype=plan.kv.value)
    target = replace(target, dims=dims, shape=dims.shape(torch.float32, CPU))
    return Engine(config, plan, Letters(), LoadedModels(target=target, draft=draft, backend=backend))


@pytest.fixture(scope="module")
def engine(backend: Backend) -> Engine:
    return engine_with(backend)


def questions(
    method: str, sampling: SamplingParams = GREEDY, lengths: Sequence[int] = (9, 40, 3, 17, 70)
) -> list[Question]:
    """About one book: of different lengths, with answers of different lengths."""
    found = []
    for number, length in enumerate(lengths):
        config = GenerationConfig(method=method, max_new_tokens=12 + 5 * number, sampling=sampling, seed=number)
        found.append(Question([*BOOK, *random_prompt(length, 50 + number)], config, threading.Event()))
    return found


def alone(engine: Engine, asked: Sequence[Question]) -> list[Finished]:
    found = []
    for question in asked:
        finished = last_event(engine.generate(question.prompt_ids, question.config))
        found.append(finished)
    return found


def together(engine: Engine, asked: Sequence[Question]) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {number: [] for number in range(len(asked))}
    for one in engine.answer_together(asked):
        assert one.lane is not None
        events[one.lane].append(one.event)
    return events


def ends(events: dict[int, list[Event]]) -> list[Finished]:
    return [event for one in events.values() for event in one if isinstance(event, Finished)]


@pytest.fixture
def joined_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many conversations each joined pass had."""
    sizes: list[int] = []
    real = joined.RaggedCache

    def make(caches: Sequence[tuple[joined.KVCache, int]]) -> joined.RaggedCache:
        sizes.append(len(caches))
        return real(caches)

    monkeypatch.setattr(joined, "RaggedCache", make)
    yield sizes


@pytest.mark.parametrize(
    ("method", "sampling"),
    [(method, SAMPLED) for method in ("autoregressive", "retrieval", "lookup", "triforce", "triforce-lookup", "draft")]
    + [("autoregressive", GREEDY), ("triforce-lookup", GREEDY)],
)
def test_every_answer_is_what_it_is_alone(
    engine: Engine, method: str, sampling: SamplingParams, joined_sizes: list[int]
) -> None:
    asked = questions(method, sampling)
    expected = alone(engine, asked)
    assert not joined_sizes
    found = ends(together(engine, asked))
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.stop_reason for one in found] == [one.stop_reason for one in expected]
    assert max(joined_sizes) == len(asked), "passes were joined"
    if not sampling.greedy:  # greedy rounds follow measured times
        assert [one.stats.level2 for one in found] == [one.stats.level2 for one in expected]
        assert [one.stats.full_passes for one in found] == [one.stats.full_passes for one in expected]


def test_rounds_longer_than_a_short_pass_are_verified_one_by_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, real = [], joined.RaggedCache

    def make(caches: Sequence[tuple[joined.KVCache, int]]) -> joined.RaggedCache:
        rows.extend(count for _, count in caches)
        return real(caches)

    monkeypatch.setattr(joined, "RaggedCache", make)
    long = SpeculationConfig(gamma2=48, max_gamma2=48, adaptive=False)
    asked = [
        one._replace(config=replace(one.config, speculation=long)) for one in questions("retrieval", lengths=(9, 3))
    ]
    expected = [one.token_ids for one in alone(engine, asked)]
    found = ends(together(engine, asked))
    assert [one.token_ids for one in found] == expected and rows and max(rows) <= MOST_TOKENS
    assert sum(one.stats.level2.guessed for one in found) > MOST_TOKENS * len(asked), "rounds were long"


@pytest.mark.parametrize(("heads", "kv_heads", "kv_bits"), [(6, 2, None), (3, 3, None), (4, 4, 16)])
def test_with_shared_heads_uneven_heads_and_narrow_keys_too(
    backend: Backend, heads: int, kv_heads: int, kv_bits: int | None
) -> None:
    engine = engine_with(backend, heads=heads, kv_heads=kv_heads, kv_bits=kv_bits)
    asked = questions("triforce", SAMPLED)
    expected = [one.token_ids for one in alone(engine, asked)]
    assert [one.token_ids for one in ends(together(engine, asked))] == expected


def test_a_row_that_another_conversation_sees_would_be_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: own rows are laid one row short, so the newest is that of whoever attended before."""
    real = BranchLayer.laid
    monkeypatch.setattr(BranchLayer, "laid", lambda self, stop: real(self, stop - 1))
    asked = questions("autoregressive")
    assert [one.token_ids for one in ends(together(engine, asked))] != [one.token_ids for one in alone(engine, asked)]


def test_the_trunk_is_read_once_for_all(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, calls = questions("autoregressive"), []
    kernel = engine.full_cache.backend.kernel
    assert kernel is not None
    real = kernel.begun

    def begun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        calls.append((q.shape[2], k.shape[2]))
        return real(q, k, v, scaling)

    monkeypatch.setattr(kernel, "begun", begun)
    together(engine, asked)
    assert max(calls) == (len(asked), KEYS_OF_A_SHARE)


def test_events_of_each_come_in_order_and_more_questions_than_seats_follow_one_another(engine: Engine) -> None:
    asked = questions("triforce", lengths=[5 + number for number in range(MOST_TOGETHER + 2)])
    assert engine.together(asked).value == MOST_TOGETHER
    order: list[tuple[int | None, type]] = []
    for one in engine.answer_together(asked):
        order.append((one.lane, type(one.event)))
    for number in range(len(asked)):
        kinds = [kind for lane, kind in order if lane == number]
        first = kinds.index(RoundDone)
        assert set(kinds[:first]) == {PrefillProgress} and kinds[-1] is Finished
        assert set(kinds[first:-1]) == {RoundDone}
    last_read = order.index((len(asked) - 1, PrefillProgress))
    assert any(kind is Finished for _, kind in order[:last_read]), "the last one waited for a seat"
    assert [one.token_ids for one in ends(together(engine, asked))] == [one.token_ids for one in alone(engine, asked)]


def test_in_order_what_follows_a_question_that_was_cancelled_before_its_turn_still_comes(engine: Engine) -> None:
    asked = questions("triforce", lengths=(5, 6, 7))
    assert asked[1].cancel is not None
    asked[1].cancel.set()
    events = list(in_order(engine.answer_together(asked), len(asked)))
    assert [number for number, event in events if isinstance(event, Finished)] == [0, 2]
    assert [number for number, _ in events] == sorted(number for number, _ in events)


def test_a_question_stopped_while_it_is_read_leaves_nothing_behind_what_all_share(engine: Engine) -> None:
    """What it had read stayed known, was overwritten by the others, and was taken for its own when asked again."""
    asked = questions("triforce", lengths=(9, 3, 600))
    expected = alone(engine, asked)
    stopped, found = asked[2].cancel, {}
    assert stopped is not None
    for one in engine.answer_together(asked):
        if one.lane == 2 and isinstance(one.event, PrefillProgress) and one.event.done_tokens > len(BOOK):
            stopped.set()
        if isinstance(one.event, Finished):
            found[one.lane] = one.event
    assert [found[number].token_ids for number in (0, 1)] == [expected[number].token_ids for number in (0, 1)]
    again = last_event(engine.generate(asked[2].prompt_ids, asked[2].config))
    assert again.token_ids == expected[2].token_ids


def test_stopping_one_disturbs_no_other(engine: Engine) -> None:
    asked = questions("triforce")
    expected, found, rounds = alone(engine, asked), {}, 0
    for one in engine.answer_together(asked):
        rounds += isinstance(one.event, RoundDone)
        if rounds == 4 and asked[1].cancel is not None:
            asked[1].cancel.set()
        if isinstance(one.event, Finished):
            found[one.lane] = one.event
    assert found[1].stop_reason == "cancelled"
    assert found[1].token_ids == expected[1].token_ids[: len(found[1].token_ids)]
    others = [number for number in range(len(asked)) if number != 1]
    assert [found[number].token_ids for number in others] == [expected[number].token_ids for number in others]


def test_stopping_all_ends_those_that_run_and_begins_no_others(engine: Engine) -> None:
    stop = threading.Event()
    asked = [one._replace(cancel=stop) for one in questions("triforce", lengths=range(4, 4 + MOST_TOGETHER + 3))]
    found = []
    for one in engine.answer_together(asked):
        if isinstance(one.event, RoundDone):
            stop.set()
        if isinstance(one.event, Finished):
            found.append(one.event.stop_reason)
    assert found == ["cancelled"] * MOST_TOGETHER


def test_what_cannot_be_joined_is_answered_one_by_one_with_the_reason(engine: Engine) -> None:
    stock = tiny_engine(context=2048)
    chosen = stock.together(questions("triforce"))
    assert chosen.value == 1 and "as if it were alone" in chosen.because
    asked = questions("triforce", lengths=(4, 6))
    assert [one.token_ids for one in ends(together(stock, asked))] == [one.token_ids for one in alone(stock, asked)]
    assert "lossy" in engine.together(questions("streamingllm")).because
    assert engine.together(questions("triforce")[:1]).value == 1


def test_no_more_are_together_than_memory_holds(engine: Engine) -> None:
    asked = questions("triforce")
    plan = engine.plan
    own = max(len(one.prompt_ids) - len(BOOK) + one.config.max_new_tokens + 64 for one in asked)
    each = BranchCache.own_bytes(engine.full_cache.shape, own, 8)
    each += plan.bytes_of("retrieval cache") + plan.bytes_of("streaming cache")
    for fit, number in ((0, 1), (1, 1), (2, 2), (3, 3), (9, 5)):
        small = Engine(engine.config, plan, engine.text, engine._models)
        free = int((plan.total_bytes + (fit + 0.5) * each) / 0.9)
        small._placement.plan = replace(plan, rig=Rig.of(replace(plan.rig.machine, free_ram_bytes=free)))
        assert small.together(asked).value == number
