"""Offloaded layers against resident ones, their twin: after any verdicts the same rows, landmarks and attention."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.caches import stores
from core.caches.full import FullCache, Offload
from core.config import GenerationConfig, SpeculationConfig
from core.events import Finished
from core.ops.transfer import Conveyor
from tests.core.toys import CPU, random_prompt, tiny_engine, tiny_shape

SHAPE = tiny_shape(layers=3, heads=4, kv_heads=2, dim=8)
CHUNK, BLOCK = 4, 16
EVERY_LAYER = Offload(block_rows=BLOCK, num_slots=2)
ALL_BUT_ONE = Offload(num_resident=1, block_rows=BLOCK, num_slots=3)


@pytest.fixture(autouse=True)
def few_kept_rows() -> Iterator[None]:
    """Blocks leave early, so that short texts fill several, and rejected guesses cut some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "KEPT_ROWS", 4)
        yield


def run_pass(caches: tuple[FullCache, ...], count: int, seed: int) -> list[Tensor]:
    """The same pass through all caches; their attention, layer by layer."""
    generator = torch.Generator().manual_seed(seed)
    starts = {cache.length for cache in caches}
    assert len(starts) == 1
    for cache in caches:
        cache.begin(cache.length, count)
    seen = []
    for layer in range(SHAPE.num_layers):
        k, v = torch.randn(2, 1, SHAPE.num_kv_heads, count, SHAPE.head_dim, generator=generator)
        q = torch.randn(1, SHAPE.num_heads, count, SHAPE.head_dim, generator=generator)
        for cache in caches:
            cache.stage(layer, k, v)
        seen.append(torch.stack([cache.attend(layer, q, 0.4) for cache in caches]))
    for cache in caches:
        cache.commit(count)
    return seen


def assert_alike(resident: FullCache, offloaded: FullCache) -> None:
    length = resident.length
    assert offloaded.length == length
    complete = length // CHUNK
    heads = torch.tensor([0, 1, 1, 0])
    chunks = torch.tensor([0, complete // 3, complete // 2, max(complete - 1, 0)])
    for layer in range(SHAPE.num_layers):
        for start in (0, length // 3, max(0, length - 7)):
            for a, b in zip(resident.rows(layer, start, length), offloaded.rows(layer, start, length), strict=True):
                assert torch.equal(a, b)
        assert torch.equal(resident.landmarks(layer, complete), offloaded.landmarks(layer, complete))
        if complete:
            for a, b in zip(resident.gather(layer, heads, chunks), offloaded.gather(layer, heads, chunks), strict=True):
                assert torch.equal(a, b)


verdicts = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=10)


@pytest.mark.parametrize("offload", [EVERY_LAYER, ALL_BUT_ONE])
@given(prompt=st.integers(1, 150), rounds=verdicts)
@settings(max_examples=25, deadline=None)
def test_offloaded_layers_equal_resident_ones(offload: Offload, prompt: int, rounds: list[tuple[int, int]]) -> None:
    """Rounds that commit, and that reject more than the newest rows, so that blocks come back."""
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=offload)
    run_pass(caches, prompt, 0)
    for number, (count, rejected) in enumerate(rounds, 1):
        for attention in run_pass(caches, count, number):
            assert torch.allclose(attention[0], attention[1], atol=1e-5)
        for cache in caches:
            cache.truncate(max(1, cache.length - rejected))
        assert_alike(*caches)


def test_a_lost_block_would_be_noticed() -> None:
    """Negative control: what lies on the host is really attended to."""
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    run_pass(caches, 100, 0)
    store = caches[1]._layers[0]
    assert isinstance(store, stores.OffloadedLayer)
    assert len(store.pieces()) == 6
    store.pieces()[2].zero_()
    attention = run_pass(caches, 3, 1)[0]
    assert not torch.allclose(attention[0], attention[1], atol=1e-3)


def test_a_tail_put_aside_comes_back_whole() -> None:
    caches = FullCache(SHAPE, 900, CHUNK), FullCache(SHAPE, 900, CHUNK, offload=EVERY_LAYER)
    run_pass(caches, 70, 0)
    run_pass(caches, 290, 1)  # more than is put back at a time
    run_pass(caches, 30, 2)
    tails = [cache.detach(70) for cache in caches]
    run_pass(caches, 40, 3)
    for cache, tail in zip(caches, tails, strict=True):
        cache.truncate(70)
        cache.attach(tail)
    assert_alike(*caches)


def test_a_pass_that_broke_off_leaves_nothing_behind() -> None:
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    run_pass(caches, 120, 0)
    broken = caches[1]
    broken.begin(120, 1)
    row = torch.zeros(1, SHAPE.num_kv_heads, 1, SHAPE.head_dim)
    broken.stage(0, row, row)
    broken.attend(0, torch.zeros(1, SHAPE.num_heads, 1, SHAPE.head_dim), 0.4)  # and no other layer, no commit
    for attention in run_pass(caches, 5, 1):
        assert torch.allclose(attention[0], attention[1], atol=1e-5)


def test_the_conveyor_hands_pieces_over_in_order_through_few_buffers() -> None:
    pieces = [torch.full((2, 3), float(number)) for number in range(7)]
    conveyor = Conveyor((2, 3), torch.float32, CPU, num_slots=2)
    for _ in range(2):  # a second pass begins anew
        conveyor.begin(pieces)
        for piece in pieces:
            assert torch.equal(conveyor.take(), piece)
            conveyor.release()
    assert conveyor.bytes_brought == 2 * 7 * 24
    with pytest.raises(AssertionError, match="not announced"):
        conveyor.take()


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("num_resident", [0, 1])
def test_every_method_writes_with_offloaded_layers_what_it_writes_without(kv_heads: int, num_resident: int) -> None:
    offload = Offload(num_resident=num_resident, block_rows=64)
    engines = tiny_engine(kv_heads=kv_heads), tiny_engine(kv_heads=kv_heads, offload=offload)
    fixed = SpeculationConfig(gamma1=2, gamma2=6, adaptive=False)
    for method in ("autoregressive", "triforce", "retrieval", "draft", "h2o"):
        config = GenerationConfig(method=method, max_new_tokens=40, speculation=fixed)
        written = []
        for engine in engines:
            *_, finished = engine.generate(random_prompt(500), config)
            assert isinstance(finished, Finished)
            written.append(finished.token_ids)
        assert written[0] == written[1], method
