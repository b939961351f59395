"""A windowed layer keeps what later tokens may attend to, whatever is forgotten again, and little more."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.window_layer import WindowLayer, window_rows
from core.errors import UnsupportedModel
from core.ops.backend import STOCK
from core.ops.reach import Asked, Reach, attend_as
from tests.core.toys import tiny_shape

REACHES = [Reach(5), Reach(6, chunked=True)]
FORGETTABLE = 4


def rows(start: int, stop: int, salt: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of tokens [start, stop); a token's rows depend on its number alone."""
    found = []
    for kind, heads in ((0, 2), (1, 1), (2, 1)):
        each = [
            torch.randn(1, heads, 1, 4, generator=torch.Generator().manual_seed(1000 * salt + 3 * token + kind))
            for token in range(start, stop)
        ]
        found.append(torch.cat(each, 2) if each else torch.empty(1, heads, 0, 4))
    return found[0], found[1], found[2]


def feed(layer: WindowLayer, start: int, stop: int, reach: Reach, salt: int = 0) -> Tensor:
    q, k, v = rows(start, stop, salt)
    layer.stage(start, k, v)
    out = layer.attend(start, q, 0.5, Asked(reach))
    layer.commit(stop)
    return out


@given(steps=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6)), max_size=12), number=st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_every_pass_is_attention_to_the_tokens_in_reach(steps: list[tuple[int, int]], number: int) -> None:
    """Passes of any length, after each of which some tokens are forgotten again, if they can be."""
    reach, length, most = REACHES[number], 0, 0
    layer = WindowLayer(tiny_shape(), 500, reach, STOCK, FORGETTABLE)
    for count, forgotten in steps:
        found = feed(layer, length, length + count, reach)
        q, _, _ = rows(length, length + count)
        _, k, v = rows(0, length + count)
        assert torch.allclose(found, attend_as(q, k, v, 0.5, Asked(reach), STOCK), atol=1e-6)
        length += count
        back, most = max(0, length - forgotten), max(most, length)
        assert most - back > FORGETTABLE or layer.reaches_back_to(back)
        layer.stage(length, *rows(length, length + 3, salt=7)[1:])  # wrong guesses, never committed
        assert most - back > FORGETTABLE or layer.reaches_back_to(back)
        if layer.reaches_back_to(back):
            layer.truncate(back)
            length = back


def test_it_takes_the_memory_of_its_window_whatever_the_context() -> None:
    layer = WindowLayer(tiny_shape(), 100_000, Reach(5), STOCK, FORGETTABLE)
    feed(layer, 0, 1000, Reach(5))
    assert layer._k.shape[2] == window_rows(Reach(5), FORGETTABLE) == 13
    assert layer.first >= 1000 - 13


@pytest.mark.parametrize("asked", [None, Asked(), Asked(Reach(6)), Asked(Reach(5, chunked=True))], ids=str)
def test_another_reach_than_that_of_the_config_is_refused(asked: Asked | None) -> None:
    layer = WindowLayer(tiny_shape(), 100, Reach(5), STOCK, FORGETTABLE)
    q, k, v = rows(0, 3)
    layer.stage(0, k, v)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        layer.attend(0, q, 0.5, asked)


def mixed(offload: Offload | None = None) -> FullCache:
    """A full cache whose second layer has a window of 5."""
    shape = tiny_shape(layers=3)._replace(reaches=(None, Reach(5), None))
    return FullCache(shape, 20_000, 4, offload=offload)


def run(full: FullCache, start: int, stop: int, salt: int = 0) -> list[Tensor]:
    full.begin(start, stop - start)
    q, k, v = rows(start, stop, salt)
    found = []
    for layer in range(3):
        full.stage(layer, k, v)
        found.append(full.attend(layer, q, 0.5, Asked(Reach(5)) if layer == 1 else None))
    full.commit(stop - start)
    return found


def same(found: list[Tensor], start: int, stop: int) -> bool:
    q, _, _ = rows(start, stop)
    _, k, v = rows(0, stop)
    window = attend_as(q, k, v, 0.5, Asked(Reach(5)), STOCK)
    whole = attend_as(q, k, v, 0.5, Asked(), STOCK)
    wanted = (whole, window, whole)
    return all(torch.allclose(ours, other, atol=1e-5) for ours, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("offload", [None, Offload(num_resident=1, block_rows=16), Offload(block_rows=16)])
def test_a_full_cache_offloads_the_other_layers_only(offload: Offload | None) -> None:
    full = mixed(offload)
    for start, stop in ((0, 90), (90, 91), (91, 104), (104, 300)):
        assert same(run(full, start, stop), start, stop)
    assert full.resident_layers == (2 if offload is None else offload.num_resident)
    assert len(full.host_memory) == 2 - full.resident_layers
    assert full.nbytes == (300 * 2 + 4) * full.shape.layer_bytes  # the next token attends to 4 old ones there


def test_a_rewind_beyond_the_window_finds_a_remembered_length_or_says_how_far_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("core.caches.full.FORGETTABLE", 4)
    full = mixed()
    run(full, 0, 60)
    full.remember_queries(4)
    run(full, 60, 90)
    run(full, 90, 150)
    assert full.rewindable(149) == 149 and full.rewindable(100) == 60 and full.rewindable(59) == 0
    full.truncate(100)
    assert full.length == 60
    assert same(run(full, 60, 75), 60, 75)


def test_an_end_that_was_set_aside_comes_back_behind_its_beginning() -> None:
    full = mixed()
    run(full, 0, 50)
    run(full, 50, 70)
    suffix = full.detach(50)
    run(full, 50, 90, salt=3)  # another lane
    full.truncate(50)
    full.attach(suffix)
    assert full.length == 70 and same(run(full, 70, 80), 70, 80)
