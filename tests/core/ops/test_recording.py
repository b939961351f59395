"""Recording itself, against a stand-in for CUDA that keeps torch's books: streams, captures, pools of memory.

The stand-in follows ATen/cuda/CUDAGraph.cpp and c10/cuda/CUDACachingAllocator.cpp; what it refuses, torch asserts.
`tests/gpu` has the real one.
"""

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.ops.graphs import Graphs

FIRST, Pool = torch.device("cuda", 0), tuple[int, int]


class FakeCuda:
    """One device. `ends_late`: the allocator is not told that a capture was invalidated (mended in pytorch 180395)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends_late: bool) -> None:
        self.ends_late, self.waited = ends_late, False
        self.own = self.current = self.stream(FIRST)
        self.capturing: FakeGraph | None = None
        self.invalid = False
        self.underway: list[Pool] = []  # allocations go to these
        self.uses: dict[Pool, int] = {}  # graphs by pool; a pool that is there without any is only waiting to be freed
        self.pinned: set[Pool] = set()  # pools in which a tensor lives
        pools = itertools.count(1)
        monkeypatch.setattr(Tensor, "to", lambda x, _, copy: x.clone())  # all tensors are in host memory
        for name, stand_in in {
            "CUDAGraph": lambda: FakeGraph(self),
            "Stream": self.stream,
            "stream": self.on,
            "current_stream": lambda _: self.current,
            "synchronize": lambda _: self.wait(),
            "empty_cache": self.empty_cache,
            "graph_pool_handle": lambda: (0, next(pools)),
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocate)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release)

    def stream(self, device: torch.device) -> Any:
        def wait_stream(other: object) -> None:
            self.waited |= made is self.own

        made = SimpleNamespace(device=device, wait_stream=wait_stream, synchronize=lambda: None)
        return made

    @contextmanager
    def on(self, stream: object) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def wait(self, x: Any = None) -> Any:
        """What no capture survives."""
        if self.capturing is not None:
            self.invalid = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return x

    def empty_cache(self) -> None:
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.uses = {pool: uses for pool, uses in self.uses.items() if uses or pool in self.pinned}

    def end_allocate(self, device: int, pool: Pool) -> None:
        if device or pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, device: int, pool: Pool) -> None:
        assert device == 0 and self.uses[pool] > 0, "released more often than held: the process would end"
        self.uses[pool] -= 1

    def check_rest(self) -> None:
        """The thread is back on its stream, and memory that nothing was recorded into goes back."""
        assert self.current is self.own and self.capturing is None and not self.underway
        self.empty_cache()
        assert not self.uses


class FakeGraph:
    """Records nothing; replaying does nothing."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self._pool, self._ended = cuda, (0, 0), False

    def capture_begin(self, pool: Pool, capture_error_mode: str) -> None:
        cuda = self._cuda
        assert cuda.current is not cuda.own and cuda.capturing is None, "captured on the default stream, or twice"
        assert capture_error_mode == "thread_local"
        if cuda.uses.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self._pool, self._stream = pool, cuda.current
        cuda.uses[pool] = cuda.uses.get(pool, 0) + 1
        cuda.underway.append(pool)
        cuda.capturing, cuda.invalid = self, False

    def capture_end(self) -> None:
        cuda = self._cuda
        assert cuda.current is self._stream, "Capture must end on the same stream it began on."
        if cuda.capturing is not self:
            raise RuntimeError("CUDA error: the stream is not capturing")
        cuda.capturing = None
        if not cuda.invalid or not cuda.ends_late:
            cuda.end_allocate(0, self._pool)
        if cuda.invalid:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self._ended = True

    def pool(self) -> Pool:
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def reset(self) -> None:
        if self._ended:
            self._ended = False
            self._cuda.release(0, self._pool)

    __del__ = reset

    def replay(self) -> None:
        assert self._cuda.current is self._cuda.own


@pytest.fixture(params=[True, False], ids=["ends-late", "ends-at-once"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch, request.param)


def test_a_function_is_warmed_up_and_recorded_apart_without_collection_and_the_thread_comes_back(
    cuda: FakeCuda,
) -> None:
    """A finaliser that unlocks host memory waits for the device."""
    graphs, seen = Graphs(FIRST), []

    def double(x: Tensor) -> Tensor:
        seen.append((cuda.current is cuda.own, cuda.capturing is not None, gc.isenabled()))
        return 2 * x

    replay = graphs.prepare("double", double, torch.ones(2))
    assert replay is not None and replay().tolist() == [2, 2]
    assert seen == [(False, False, True), (False, False, True), (False, True, False)] and gc.isenabled()
    assert cuda.waited, "what was warmed up must be over before anything else runs"
    assert cuda.current is cuda.own and not cuda.underway


class Breaks(Exception):
    """No RuntimeError."""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("waits", "not permitted when stream is capturing"),
        ("hides", "previous error during capture"),  # the function goes on, and only `capture_end` tells
        (RuntimeError("CUDA error: odd\nmore"), "CUDA error: odd"),
        (torch.OutOfMemoryError("no room"), "no room"),
        (RuntimeError("CUDA error: out of memory"), "out of memory"),
        (Breaks("x"), ""),
        (KeyboardInterrupt(), ""),
    ],
)
def test_a_failure_leaves_the_thread_on_its_stream_and_the_allocator_at_rest(
    cuda: FakeCuda, fault: Any, reason: str
) -> None:
    """`torch.cuda.graph` left both behind. What lacked memory is tried again, anything else is final."""
    graphs, faults = Graphs(FIRST), [fault]

    def fails(x: Tensor) -> Tensor:
        if not faults or not cuda.capturing:
            return -x
        cuda.invalid = fault == "hides"
        if isinstance(fault, BaseException):
            raise faults.pop()
        return cuda.wait(x) if fault == "waits" else x

    if not reason:
        with pytest.raises(type(fault)):
            graphs.prepare("fails", fails, torch.ones(2))
    else:
        for key, function in (("fails", fails), ("neg", torch.neg)):  # an answer does not try again and again
            assert graphs.prepare(key, function, torch.ones(2)) is None and cuda.current is cuda.own and gc.isenabled()
            assert graphs.failure.startswith("recording failed: ") and reason in graphs.failure
        graphs.try_again()
        assert bool(graphs.failure) == (reason not in ("no room", "out of memory"))
    cuda.check_rest()
    again = (Graphs(FIRST) if graphs.failure else graphs).prepare("again", torch.neg, torch.ones(2))
    assert again is not None and again().tolist() == [-1, -1]


def test_after_everything_was_forgotten_recording_goes_on_in_another_pool(cuda: FakeCuda) -> None:
    """An id without graphs is dead while a tensor still lives in its memory; torch asserts that nobody uses it."""
    graphs = Graphs(FIRST)
    for name in ("full", "retrieval"):
        graphs.prepare((name, 1), torch.neg, torch.ones(2))
    (pool,) = cuda.uses
    assert cuda.uses[pool] == 2, "all share one"
    cuda.pinned.add(pool)  # somebody keeps a result
    graphs.forget("full")
    assert cuda.uses[pool] == 1
    graphs.prepare(("full", 2), torch.neg, torch.ones(2))
    assert cuda.uses == {pool: 2}, "while one is left, the others go on beside it"
    for name in ("full", "retrieval"):
        graphs.forget(name)
    assert graphs.num_kept == 0
    assert graphs.prepare(("full", 1), torch.neg, torch.ones(2)) is not None and not graphs.failure
    cuda.pinned.clear()
    cuda.empty_cache()
    assert pool not in cuda.uses and list(cuda.uses.values()) == [1]
