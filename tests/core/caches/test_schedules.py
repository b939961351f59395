"""Offloaded layers on a pretended GPU whose streams and host may work in any order that events allow.

The same program runs on the processor and there: readings chunk by chunk and layer by layer, rounds, passes that break
off, rewinds into blocks on the host, selections, and a share of the attention left to the host. The same numbers come
out, and no access to memory depends on an order that nothing makes certain (`tests.core.order`).
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from core.caches import full, layer_storage
from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.policies import ByVerification
from core.caches.retrieval import RetrievalCache
from core.config import EngineConfig, RetrievalConfig
from core.models.loader import ModelDims
from core.ops import host_attention, transfer
from core.ops.native import VOTERS
from core.planning.sizes import Sizes
from tests.core.cuda_stubs import CUDA, DeviceTensor, pretended_gpu
from tests.core.order import Order, Thread
from tests.core.toys import CPU

LAYERS, HEADS, KV_HEADS, DIM = 2, 2, 1, 8
CHUNK, BLOCK, SLOTS, CAPACITY = 4, 16, 2, 240
CONFIG = RetrievalConfig(budget=32, chunk_size=CHUNK, local_window=8)
Step = tuple[str, int]


def steps_of(words: str) -> list[Step]:
    return [(name, int(count)) for name, count in (step.split() for step in words.split(", "))]


# All that offloaded layers do: blocks sent in long and in short passes, a layerwise reading of several chunks, rewinds
# that cut a block, a pass that broke off while a piece was in use, choices that move chunks and that keep some.
LONG = steps_of(
    "read 50, share 1, read 45, read 5, share 0, read 32, select 0, guess 3, read 5, rewind 30, break_off 1, read 9, "
    "layerwise 50, select 0, read 7, rewind 40, share 1, read 5, read 10, break_off 3, read 5, abandon 45, rows 0, "
    "select 0, guess 2, share 0, read 10, rewind 50, read 2, read 39"
)
# Each ends with what comes right behind a block that has not arrived yet: nothing in between waits for it.
AT_ONCE = {
    "cut": steps_of("read 50, rewind 20, read 2"),
    "attended to by the host": steps_of("share 2, read 50, read 2"),
    "gathered": steps_of("read 50, select 0"),
}


@pytest.fixture(autouse=True, scope="module")
def few_kept_rows() -> Iterator[None]:
    """Blocks leave early, passes are soon long, a buffer of the picker holds few chunks; operations of torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_storage, "KEPT_ROWS", 4)
        patch.setattr(layer_storage, "SHORT_PASS", 10)
        patch.setattr(full, "SHORT_PASS", 10)
        patch.setattr(transfer, "PICKED_BYTES", 5 * CHUNK * DIM * 4)
        patch.setattr(host_attention, "kernel_here", lambda: None)
        yield


class Program:
    """Calls a full and a retrieval cache as decoding does; keeps what came out. A step: a method's name and a count."""

    def __init__(
        self, device: torch.device, capacity: int = CAPACITY, layers: int = LAYERS, offload: Offload | None = None
    ) -> None:
        shape = KVShape(layers, HEADS, KV_HEADS, DIM, torch.float32, device)
        self.full = FullCache(shape, capacity, CHUNK, offload=offload or Offload(block_rows=BLOCK, num_slots=SLOTS))
        self.retrieval = RetrievalCache(self.full, ByVerification(self.full, CONFIG))
        self.found: list[Tensor] = []
        self._layers, self._generator = layers, torch.Generator().manual_seed(0)
        self._there = DeviceTensor if device == CUDA else lambda x: x  # computed there: nobody waits

    def run(self, steps: Sequence[Step]) -> list[Tensor]:
        for name, count in steps:
            getattr(self, name)(min(count, self.full.capacity - self.full.length))
        self.rows(0)
        return self.found

    def _attended(self, cache: Any, layer: int, count: int) -> None:
        """One layer of a pass: q, k, v of the device, never the same twice; a model keeps nothing of them."""
        with _disable_current_modes():
            made = torch.randn(1, HEADS + 2 * KV_HEADS, count, DIM, generator=self._generator)
            q, k, v = (self._there(part.clone()) for part in made.split([HEADS, KV_HEADS, KV_HEADS], 1))
        cache.stage(layer, k, v)
        del k, v
        self.found.append(cache.attend(layer, q, 0.4))

    def _pass(self, cache: FullCache | RetrievalCache, count: int, layers: int) -> None:
        cache.begin(cache.length, count)
        for layer in range(layers):
            self._attended(cache, layer, count)

    def read(self, count: int) -> None:
        """A piece of a prompt, longer than what a layer has room for on the device, or the verification of a round."""
        if count:
            self._pass(self.full, count, self._layers)
            self.full.commit(count)

    def break_off(self, count: int) -> None:
        """The device ran out of memory behind the first layer, while the second used a piece."""
        if not count:
            return
        self._pass(self.full, count, 1)
        if self.full._layers[1].pieces():
            assert self.full._ring is not None
            self.found.append(self.full._ring.take() * 2)
        self.full.truncate(self.full.length)

    def layerwise(self, count: int, chunk: int = 20, *, stopped: bool = False) -> None:
        """A block of a prompt, chunk by chunk within a layer."""
        start, stop = self.full.length, self.full.length + count
        if not count:
            return
        reading = self.full.layerwise(count, self.full.workspace(stop))
        for layer in range(self._layers):
            reading.enter(layer)
            for at in range(start, stop, chunk):
                end = min(at + chunk, stop)
                reading.begin(at, end - at)
                self._attended(reading, layer, end - at)
                if stopped and layer == self._layers - 1:
                    reading.close()
                    return
            reading.leave(layer)
        reading.commit()
        reading.close()

    def abandon(self, count: int) -> None:
        """A block whose reading is stopped in the middle of its last layer."""
        self.layerwise(count, stopped=True)

    def rewind(self, count: int) -> None:
        """Rejected guesses, or an edited question."""
        for cache in (self.full, self.retrieval):
            cache.truncate(max(1, self.full.length - count))

    def select(self, _: int) -> None:
        """A new question."""
        if self.full.length:
            self.retrieval.select()

    def guess(self, count: int) -> None:
        """A pass over the retrieval cache, then its tokens are forgotten."""
        if self.retrieval.length and self.retrieval.length <= self.full.length < self.retrieval.length + 20:
            count += self.full.length - self.retrieval.length
            self._pass(self.retrieval, count, self._layers)
            self.retrieval.commit(count)
            self.retrieval.truncate(self.full.length)

    def share(self, wanted: int) -> None:
        """Let the host attend: to no blocks, to most or, for 2, to all."""
        self.full.let_host_attend(min(0.9 * wanted, 1.0))

    def rows(self, _: int) -> None:
        """Everything that is held."""
        length, held = self.full.length, self.retrieval.nbytes // self.full.shape.bytes_per_token
        for layer in range(self._layers):
            for start in (0, length // 3, max(0, length - 7)):
                self.found += [rows.clone() for rows in self.full.rows(layer, start, length)]
            self.found.append(self.full.landmarks(layer, length // CHUNK).clone())
            self.found += [kind[layer][:, :, :held].clone() for kind in (self.retrieval.k, self.retrieval.v)]


@contextmanager
def any_order() -> Iterator[Order]:
    """A device on which whatever is not ordered is a fault."""
    order = Order()
    with pretended_gpu(order), pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_attention, "ThreadPoolExecutor", lambda *_, **__: Thread(order))
        yield order
    assert not order.faults, order.faults[0]


def differing(steps: Sequence[Step]) -> list[int]:
    """The numbers of results that are others there than on the processor."""
    expected = Program(CPU).run(steps)
    with any_order():
        program = Program(CUDA)
        found = [result.cpu() for result in program.run(steps)]
        del program
    pairs = enumerate(zip(expected, found, strict=True))
    return [number for number, (a, b) in pairs if not torch.allclose(a, b, atol=1e-6, rtol=0)]


@pytest.mark.parametrize("steps", [LONG, *AT_ONCE.values()], ids=["long", *AT_ONCE])
def test_the_same_numbers_come_out_and_every_access_is_ordered(steps: list[Step]) -> None:
    assert differing(steps) == []


any_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["read", "layerwise", "abandon"]), st.integers(1, 60)),
        st.tuples(st.sampled_from(["read", "break_off", "guess"]), st.integers(1, 10)),
        st.tuples(st.just("rewind"), st.integers(0, 60)),
        st.tuples(st.sampled_from(["select", "rows"]), st.just(0)),
        st.tuples(st.just("share"), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=6,
)


@given(
    first=st.integers(20, 80),
    steps=any_steps,
)
@settings(max_examples=12, deadline=None)
def test_any_program_gives_the_same_numbers_in_any_order(first: int, steps: list[Step]) -> None:
    assert differing([("read", first), *steps]) == []


# -------------------- memory


def test_caches_that_go_while_copies_are_on_their_way_free_no_host_memory_in_use() -> None:
    """Another model is chosen in the middle of a pass."""
    with any_order():
        program = Program(CUDA)
        program.run(steps_of("read 50, read 45"))
        program.full.begin(program.full.length, 1)
        del program
        gc.collect()


@pytest.mark.parametrize("way", ["to the device", "to the host"])
def test_a_ring_that_goes_leaves_its_buffers_to_the_copies_that_use_them(way: str) -> None:
    with any_order():
        memory = transfer.HostRows((3, 4), torch.float32, CUDA)
        memory.rows.fill_(1.0)
        ring = transfer.PrefetchRing((4,), torch.float32, CUDA, 2)
        if way == "to the device":
            ring.begin([memory.rows[:1]])
        else:
            x = torch.ones(4, device=CUDA)
            ring.store(memory.rows[0], [(..., x)])
            ring.reclaim()
        del ring, memory


ROWS = 160  # of a long pass
DIMS = ModelDims(4, HEADS, KV_HEADS, DIM, HEADS * DIM, 8, 4096, 0, torch.float32)
SIZES = Sizes(DIMS, EngineConfig(retrieval=CONFIG), torch.float32, "cuda")
CONTEXT = 640
# What a pass has at a time beside what is planned for the cache: queries, new keys and values, attention to one block
# and what was found before with their log-sum-exps; a part of "prefill buffers".
PASS_BYTES = ROWS * 4 * (DIM * (HEADS + 2 * KV_HEADS + 4 * HEADS) + 4 * HEADS)


class Forgetful(list[Tensor]):
    """Keeps no result, as a model does not."""

    def append(self, _: Tensor) -> None:
        pass


@pytest.mark.parametrize("read", ["chunk by chunk", "layer by layer"])
def test_rows_that_wait_for_the_host_take_no_device_memory_that_was_not_planned(read: str) -> None:
    """They wait as long as they can; no more of them wait than the plan counts."""
    planned = SIZES.layers * SIZES.tail_bytes(CONTEXT) // 2  # there from the beginning; as much again may come
    planned += SIZES.layer_bytes(CONTEXT) if read == "layer by layer" else ROWS * SIZES.row_bytes
    if read == "layer by layer":
        planned += 4 * HEADS * VOTERS * CONTEXT  # scores of the tokens that vote at the end of a block
    with pretended_gpu() as gpu:
        program = Program(CUDA, CONTEXT, SIZES.layers, SIZES.offload(CONTEXT, 0))
        program.found = Forgetful()
        before = gpu.used_bytes
        gpu.memory.reset_peak()
        for _ in range(CONTEXT // ROWS):
            if read == "layer by layer":
                program.layerwise(ROWS, chunk=ROWS // 2)
            else:
                program.read(ROWS)
        peak = gpu.memory.peak_bytes - before
        program.full.votes.forget()  # planned apart
        left = gpu.used_bytes - before
        del program
    assert peak <= planned + PASS_BYTES
    assert left == 0, "nothing waits behind the end"


def test_a_reading_that_is_stopped_gives_its_memory_back() -> None:
    with pretended_gpu() as gpu:
        program, left = Program(CUDA), []
        for steps in ("read 50", "abandon 45", "break_off 45"):
            program.run(steps_of(steps)).clear()
            program.full.votes.forget()
            left.append(gpu.used_bytes)
        del program
    assert left[0] == left[1] == left[2] > 0
