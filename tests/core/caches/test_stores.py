"""Whatever a layer's store, resident, windowed or in host memory, a pass is attention to the text so far."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.caches import layer_storage
from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.window_layer import WindowLayer, window_rows
from core.errors import UnsupportedModel
from core.ops.attention import Partial, partial, partial_reference, union
from core.ops.backend import STOCK
from core.ops.host_attention import HostAttention
from core.ops.reach import Asked, Reach, attend_as
from core.ops.transfer import PrefetchRing
from tests.core.caches.passes import Text, run_pass
from tests.core.toys import tiny_shape

SHAPE = tiny_shape(layers=3, heads=4, kv_heads=2, dim=8)
CHUNK, BLOCK, FORGETTABLE = 4, 16, 4
EVERY_LAYER = Offload(block_rows=BLOCK, num_slots=2)
ALL_BUT_ONE = Offload(num_resident=1, block_rows=BLOCK, num_slots=3, group=3)
MIXED = SHAPE._replace(reaches=(None, Reach(5), None))
TEXT, OTHER = Text(SHAPE), Text(SHAPE, 1)


@pytest.fixture(autouse=True)
def little_is_kept() -> Iterator[None]:
    """Blocks leave early, so that short texts fill several, and rejected guesses cut some; windows forget little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_storage, "KEPT_ROWS", 4)
        patch.setattr("core.caches.full.FORGETTABLE", FORGETTABLE)
        yield


def cache(offload: Offload | None = EVERY_LAYER, share: float = 0.0, shape: KVShape = SHAPE) -> FullCache:
    """A cache, of whose blocks in host memory the host attends to a share."""
    full = FullCache(shape, 900, CHUNK, offload=offload)
    full.let_host_attend(share)
    return full


def that_has_read(count: int, share: float) -> FullCache:
    full = cache(share=share)
    run_pass(TEXT, count, full)
    return full


def error(full: FullCache, count: int, text: Text = TEXT) -> float:
    """How far the attention of the next pass is from that to all of the text's rows, at most."""
    start, shape, found = full.length, full.shape, []
    for layer, ours in enumerate(run_pass(text, count, full).attention):
        q, (_, k, v) = text.rows(layer, start, start + count)[0], text.rows(layer, 0, start + count)
        found.append((ours[0] - attend_as(q, k, v, 0.4, Asked(shape.reach(layer)), STOCK)).abs().max())
    return float(max(found))


def assert_holds(full: FullCache, text: Text = TEXT) -> None:
    """Every row, and chunks of it in the order of asking, of the layers that attend to all tokens."""
    length, layers, heads = full.length, torch.tensor(full.shape.full_layers), full.shape.num_kv_heads
    for layer in layers.tolist():
        for start in (0, length // 3, max(0, length - 7)):
            k, v = full.rows(layer, start, length)
            assert torch.equal(k, text.k[layer, :, start:length]) and torch.equal(v, text.v[layer, :, start:length])
    if complete := length // CHUNK:
        head = (torch.tensor([0, 1, 1, 0]) % heads).repeat(len(layers))
        chunk = torch.tensor([0, complete // 3, complete // 2, complete - 1]).repeat(len(layers))
        numbers = layers.repeat_interleave(4)
        for layer, which, k, v in full.gather(numbers, head, chunk):
            assert (numbers[which] == layer).all() and len(which) == 4
            for found, kind in ((k, text.k), (v, text.v)):
                rows = kind[layer, head[which], : complete * CHUNK].view(4, complete, -1)
                assert torch.equal(found, rows[torch.arange(4), chunk[which]])


STORES = {
    "in host memory": (SHAPE, EVERY_LAYER),
    "all but one in host memory": (SHAPE, ALL_BUT_ONE),
    "a head for every query": (SHAPE._replace(num_kv_heads=4), Offload(block_rows=8, num_slots=2)),
    "one head": (SHAPE._replace(num_kv_heads=1), Offload(block_rows=32, num_slots=2)),
    "windows": (SHAPE._replace(reaches=(None, Reach(5), Reach(6, chunked=True))), None),
    "windows, and others in host memory": (MIXED, EVERY_LAYER),
}


@pytest.mark.parametrize("stores", STORES)
@given(
    share=st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.9]),
    prompt=st.integers(1, 200),
    rounds=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6) | st.integers(0, 40)), min_size=1, max_size=10),
)
@settings(max_examples=15, deadline=None)
def test_every_pass_is_attention_to_the_text_so_far(
    stores: str, share: float, prompt: int, rounds: list[tuple[int, int]]
) -> None:
    """Rounds that commit, and that reject more than the newest rows, so that blocks come back; the host may help."""
    shape, offload = STORES[stores]
    full, texts = cache(offload, share, shape=shape), [Text(shape, salt, 600) for salt in range(3)]
    text, most = texts[0], prompt
    assert error(full, prompt, text) < 1e-5
    full.remember_queries(4)
    for number, (count, rejected) in enumerate(rounds, 1):
        text = text.then(texts[number % 3], full.length)  # what was rejected is not what follows
        assert error(full, count, text) < 1e-5
        back, most = max(1, full.length - rejected), max(most, full.length)
        left = full.rewindable(back)
        assert left == back or (shape.reaches and most - back > FORGETTABLE and left in (0, prompt))
        full.truncate(back)
        assert full.length == left
        most = most if left == back else left
        assert_holds(full, text)


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


# -------------------- the host attends to a share


@pytest.mark.parametrize("rows", [1, 9, layer_storage.SHORT_PASS])
def test_what_the_host_attends_to_does_not_cross_however_many_rows_ask(rows: int) -> None:
    full, block_bytes = that_has_read(200, 0.5), SHAPE.layer_bytes * BLOCK  # 12 blocks, as 4 rows stay
    assert full.link_traffic[0] == 0 and len(full._layers[0].pieces()) == 12
    run_pass(TEXT, rows, full)
    assert full.link_traffic[0] == SHAPE.num_layers * 6 * block_bytes
    full.begin(full.length, rows)
    there = (200 + rows - 4) // BLOCK
    assert full.link_bytes == SHAPE.num_layers * (there - there // 2) * block_bytes


def test_long_passes_and_passes_layer_by_layer_bring_everything() -> None:
    full = that_has_read(200, 0.9)
    for rows, pieces in ((layer_storage.SHORT_PASS + 1, 12), (9, 2)):
        full.begin(200, rows)
        assert all(len(layer.pieces()) == pieces for layer in full._layers)
    full.layerwise(9, full.workspace(209)).close()
    assert all(len(layer.pieces()) == 12 for layer in full._layers)


@pytest.mark.parametrize(
    ("where", "what", "raised"),
    [(HostAttention, "_attend", ArithmeticError), (PrefetchRing, "take", torch.OutOfMemoryError)],
    ids=["the host's thread", "the device, while the host attends"],
)
def test_a_pass_that_fails_tells_why_and_the_next_one_is_right(
    where: type, what: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody took the host's answer: the next pass drops it."""
    full = that_has_read(200, 0.5)

    def broken(*_: object) -> None:
        raise raised("injected")

    with monkeypatch.context() as patch:
        patch.setattr(where, what, broken)
        with pytest.raises(raised, match="injected"):
            run_pass(OTHER, 3, full)
    full.truncate(200)
    assert error(full, 3) < 1e-5


# -------------------- windows, and ends that are put aside


def test_a_windowed_layer_takes_the_memory_of_its_window_whatever_the_context() -> None:
    layer = WindowLayer(SHAPE, 100_000, Reach(5), STOCK, FORGETTABLE)
    layer.stage(0, *TEXT.rows(0, 0, 1000)[1:])
    layer.commit(1000)
    assert layer._k.shape[2] == window_rows(Reach(5), FORGETTABLE) == 13
    assert layer.first >= 1000 - 13


@pytest.mark.parametrize("asked", [None, Asked(), Asked(Reach(6)), Asked(Reach(5, chunked=True))], ids=str)
def test_another_reach_than_that_of_the_config_is_refused(asked: Asked | None) -> None:
    layer = WindowLayer(SHAPE, 100, Reach(5), STOCK, FORGETTABLE)
    q, k, v = TEXT.rows(0, 0, 3)
    layer.stage(0, k, v)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        layer.attend(0, q, 0.5, asked)


@pytest.mark.parametrize("offload", [None, Offload(num_resident=1, block_rows=BLOCK), EVERY_LAYER])
def test_an_end_that_was_put_aside_comes_back_whole(offload: Offload | None) -> None:
    """More than is put back at a time, after another lane. Windowed layers are never in host memory."""
    full, text = cache(offload, shape=MIXED), Text(MIXED)
    for count in (70, 290, 30):
        run_pass(text, count, full)
        full.remember_queries(4)
    assert full.resident_layers == (2 if offload is None else offload.num_resident)
    assert len(full.host_memory) == 2 - full.resident_layers
    assert full.nbytes == (390 * 2 + 4) * SHAPE.layer_bytes  # the next token attends to 4 old ones in the window
    suffix = full.detach(70)
    run_pass(Text(MIXED, 1), 40, full)
    full.truncate(70)
    full.attach(suffix)
    assert full.length == 390
    assert_holds(full, text)
    assert error(full, 10, text) < 1e-5
