"""Offloaded layers against resident ones, their twin: after any verdicts the same rows, landmarks and attention."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.caches import layer_storage
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.ops import host_attention
from core.ops.attention import Partial, partial, partial_reference, union
from core.ops.reach import Asked
from core.ops.transfer import PrefetchRing
from tests.core.toys import tiny_shape

SHAPE = tiny_shape(layers=3, heads=4, kv_heads=2, dim=8)
CHUNK, BLOCK = 4, 16
EVERY_LAYER = Offload(block_rows=BLOCK, num_slots=2)
ALL_BUT_ONE = Offload(num_resident=1, block_rows=BLOCK, num_slots=3, group=3)


@pytest.fixture(autouse=True)
def few_kept_rows() -> Iterator[None]:
    """Blocks leave early, so that short texts fill several, and rejected guesses cut some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_storage, "KEPT_ROWS", 4)
        yield


def run_pass(caches: tuple[FullCache, ...], count: int, seed: int, asked: Asked | None = None) -> list[Tensor]:
    """The same pass through all caches; their attention, layer by layer."""
    generator = torch.Generator().manual_seed(seed)
    shape, starts = caches[0].shape, {cache.length for cache in caches}
    assert len(starts) == 1
    for cache in caches:
        cache.begin(cache.length, count)
    seen = []
    for layer in range(shape.num_layers):
        k, v = torch.randn(2, 1, shape.num_kv_heads, count, shape.head_dim, generator=generator)
        q = torch.randn(1, shape.num_heads, count, shape.head_dim, generator=generator)
        for cache in caches:
            cache.stage(layer, k, v)
        seen.append(torch.stack([cache.attend(layer, q, 0.4, asked) for cache in caches]))
    for cache in caches:
        cache.commit(count)
    return seen


@pytest.mark.parametrize("count", [1, 2, 3, 8, 17])
def test_parts_are_merged_row_by_row(count: int) -> None:
    """A row's sums are the same bits with other rows beside it, and those of the slow twin but for rounding."""
    generator = torch.Generator().manual_seed(count)
    q = torch.randn(1, 4, 7, 8, generator=generator)
    k, v = torch.randn(2, 1, 2, 16 * count, 8, generator=generator)
    parts = [partial(q, *(x[:, :, at : at + 16] for x in (k, v)), 3.0) for at in range(0, 16 * count, 16)]
    whole, twin = union(parts), partial_reference(q, k, v, 3.0)
    assert torch.allclose(whole.out, twin.out, atol=1e-5) and torch.allclose(whole.lse, twin.lse, atol=1e-5)
    for row in range(7):
        alone = union([Partial(part.out[:, :, row : row + 1], part.lse[..., row : row + 1]) for part in parts])
        assert torch.equal(alone.out[:, :, 0], whole.out[:, :, row])
        assert torch.equal(alone.lse[..., 0], whole.lse[..., row])


def assert_alike(resident: FullCache, offloaded: FullCache) -> None:
    length = resident.length
    assert offloaded.length == length
    complete = length // CHUNK
    heads = torch.tensor([0, 1, 1, 0]) % resident.shape.num_kv_heads
    chunks = torch.tensor([0, complete // 3, complete // 2, max(complete - 1, 0)])
    for layer in range(resident.shape.num_layers):
        for start in (0, length // 3, max(0, length - 7)):
            for a, b in zip(resident.rows(layer, start, length), offloaded.rows(layer, start, length), strict=True):
                assert torch.equal(a, b)
    if complete:
        layers = torch.arange(resident.shape.num_layers).repeat_interleave(4)
        asked = layers, heads.repeat(resident.shape.num_layers), chunks.repeat(resident.shape.num_layers)
        one, other = (gathered(cache, *asked) for cache in (resident, offloaded))
        assert torch.equal(one, other) and len(one) == len(layers)


def gathered(cache: FullCache, layer: Tensor, head: Tensor, chunk: Tensor) -> Tensor:
    """Chosen chunks in the order of asking, keys and values: [N, 2, chunk_size * D]."""
    found = torch.full((len(layer), 2, CHUNK * cache.shape.head_dim), torch.nan)
    for number, which, k, v in cache.gather(layer, head, chunk):
        assert (layer[which] == number).all()
        found[which] = torch.stack((k, v), 1)
    return found


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


# -------------------- the host attends to a share


@pytest.mark.parametrize(("kv_heads", "block"), [(4, 8), (2, 16), (1, 32)])
@given(share=st.sampled_from([0.05, 0.3, 0.5, 0.9]), prompt=st.integers(1, 200), rounds=verdicts)
@settings(max_examples=8, deadline=None)
def test_a_share_left_to_the_host_equals_bringing_everything(
    kv_heads: int, block: int, share: float, prompt: int, rounds: list[tuple[int, int]]
) -> None:
    """Rounds after which blocks move to the host, and rejections that cut blocks the host attended to."""
    shape = tiny_shape(layers=2, heads=4, kv_heads=kv_heads, dim=8)
    offload = Offload(block_rows=block, num_slots=2)
    resident, carried, helped = (FullCache(shape, 600, CHUNK, offload=one) for one in (None, offload, offload))
    helped.let_host_attend(share)
    caches = resident, carried, helped
    run_pass(caches, prompt, 0)
    for number, (count, rejected) in enumerate(rounds, 1):
        for attention in run_pass(caches, count, number):
            assert torch.allclose(attention[1], attention[2], atol=1e-5)
            assert torch.allclose(attention[0], attention[2], atol=1e-5)
        for cache in caches:
            cache.truncate(max(1, cache.length - rejected))
        assert_alike(resident, helped)


@pytest.mark.parametrize("rows", [1, 9, layer_storage.SHORT_PASS])
def test_what_the_host_attends_to_does_not_cross_however_many_rows_ask(rows: int) -> None:
    cache = FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    cache.let_host_attend(0.5)
    run_pass((cache,), 200, 0)  # 12 blocks of 16 rows, as 4 rows stay
    assert cache.link_traffic[0] == 0 and len(cache._layers[0].pieces()) == 12
    run_pass((cache,), rows, 1)
    block_bytes = SHAPE.bytes_per_token // SHAPE.num_layers * BLOCK
    assert cache.link_traffic[0] == SHAPE.num_layers * 6 * block_bytes
    cache.begin(cache.length, rows)
    there = (200 + rows - 4) // BLOCK
    assert cache.link_bytes == SHAPE.num_layers * (there - there // 2) * block_bytes


def test_long_passes_and_passes_layer_by_layer_bring_everything() -> None:
    cache = FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    cache.let_host_attend(0.9)
    run_pass((cache,), 200, 0)
    cache.begin(200, layer_storage.SHORT_PASS + 1)
    assert all(len(layer.pieces()) == 12 for layer in cache._layers)
    cache.begin(200, 9)
    assert all(len(layer.pieces()) == 2 for layer in cache._layers)
    cache.layerwise(9, cache.workspace(209)).close()
    assert all(len(layer.pieces()) == 12 for layer in cache._layers)


def test_decoding_goes_on_with_the_host_behind_a_reading_layer_by_layer() -> None:
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    caches[1].let_host_attend(0.5)
    for cache in caches:
        generator = torch.Generator().manual_seed(7)
        for start in (0, 90):
            reading = cache.layerwise(90, cache.workspace(180))
            for layer in range(SHAPE.num_layers):
                reading.enter(layer)
                for at in range(start, start + 90, 30):
                    reading.begin(at, 30)
                    k, v = torch.randn(2, 1, SHAPE.num_kv_heads, 30, SHAPE.head_dim, generator=generator)
                    reading.stage(layer, k, v)
                    reading.attend(layer, torch.randn(1, SHAPE.num_heads, 30, SHAPE.head_dim, generator=generator), 0.4)
                reading.leave(layer)
            reading.commit()
            reading.close()
            assert cache.length == start + 90
    before = caches[1].link_traffic[0]
    for attention in run_pass(caches, 5, 1):
        assert torch.allclose(attention[0], attention[1], atol=1e-5)
    assert 0 < caches[1].link_traffic[0] - before < caches[1].link_bytes * 2
    assert_alike(*caches)


@pytest.mark.parametrize("fault", ["nothing", "a block less", "a block of another place", "what is brought"])
def test_a_lost_part_would_be_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the host's part counts, all of it and once, and so does what lies there."""
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    caches[1].let_host_attend(0.0 if fault == "what is brought" else 0.5)
    run_pass(caches, 200, 0)
    if fault == "what is brought":
        pieces = caches[1]._layers[0].pieces()
        assert len(pieces) == 12
        pieces[2].zero_()  # a view of it
    elif fault == "nothing":
        answered = host_attention.HostAttention.answer

        def unheard(self: host_attention.HostAttention) -> host_attention.Answer:
            found, masses = answered(self)
            return host_attention.Answer(Partial(found.out, torch.full_like(found.lse, float("-inf"))), masses)

        monkeypatch.setattr(host_attention.HostAttention, "answer", unheard)
    else:
        real = host_attention.HostAttention.ask
        first = 1 if fault == "a block less" else 0
        moved = 3 if fault == "a block of another place" else 0

        def wrong(self: host_attention.HostAttention, q: Tensor, blocks: Tensor, *how: Any) -> None:
            real(self, q, torch.cat((blocks[first:], blocks[:moved])), *how)

        monkeypatch.setattr(host_attention.HostAttention, "ask", wrong)
    attention = run_pass(caches, 3, 1)[0]
    assert not torch.allclose(attention[0], attention[1], atol=1e-3)


def test_an_error_of_the_host_s_thread_comes_up_in_the_pass_and_the_next_one_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    caches[1].let_host_attend(0.5)
    run_pass(caches, 200, 0)

    def broken(*_: object) -> None:
        raise ArithmeticError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(host_attention.HostAttention, "_attend", broken)
        with pytest.raises(ArithmeticError, match="injected"):
            run_pass((caches[1],), 3, 1)
    for attention in run_pass(caches, 3, 1):
        assert torch.allclose(attention[0], attention[1], atol=1e-5)


def test_an_answer_that_nobody_took_is_dropped_by_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device fails while the host attends."""
    caches = FullCache(SHAPE, 600, CHUNK), FullCache(SHAPE, 600, CHUNK, offload=EVERY_LAYER)
    caches[1].let_host_attend(0.5)
    run_pass(caches, 200, 0)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(PrefetchRing, "take", full)
        with pytest.raises(torch.OutOfMemoryError):
            run_pass((caches[1],), 3, 2)
    caches[1].truncate(200)
    for attention in run_pass(caches, 3, 1):
        assert torch.allclose(attention[0], attention[1], atol=1e-5)


def test_a_tail_put_aside_comes_back_whole() -> None:
    caches = FullCache(SHAPE, 900, CHUNK), FullCache(SHAPE, 900, CHUNK, offload=EVERY_LAYER)
    run_pass(caches, 70, 0)
    run_pass(caches, 290, 1)  # more than is put back at a time
    run_pass(caches, 30, 2)
    suffixes = [cache.detach(70) for cache in caches]
    run_pass(caches, 40, 3)
    for cache, suffix in zip(caches, suffixes, strict=True):
        cache.truncate(70)
        cache.attach(suffix)
    assert_alike(*caches)
