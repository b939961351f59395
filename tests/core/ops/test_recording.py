"""Recording itself, against a stand-in for CUDA that keeps torch's books: streams, captures, pools of memory.

The stand-in follows ATen/cuda/CUDAGraph.cpp and c10/cuda/CUDACachingAllocator.cpp; what it refuses, torch asserts.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from core.ops.graphs import Graphs, record

Pool = tuple[int, int]
FIRST = torch.device("cuda", 0)


class Stream:
    """A name, and what it waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.waited_for: list[Stream] = []
        self.synchronized = 0

    def wait_stream(self, other: "Stream") -> None:
        self.waited_for.append(other)

    def synchronize(self) -> None:
        self.synchronized += 1


class FakeCuda:
    """One device. `ends_late`: the allocator is not told that a capture was invalidated (mended in pytorch 180395)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ends_late: bool = True) -> None:
        self.ends_late = ends_late
        self.own = self.current = Stream(FIRST)
        self.capturing: FakeGraph | None = None
        self.invalid = False
        self.underway: list[Pool] = []  # allocations go to these
        self.uses: dict[Pool, int] = {}  # graphs by pool; a pool that is there without any is only waiting to be freed
        self.pinned: set[Pool] = set()  # pools in which a tensor lives
        self.handles = 0
        cuda = self

        class Graph(FakeGraph):
            world = cuda

        monkeypatch.setattr(Tensor, "to", lambda x, _, copy: x.clone())  # all tensors are in host memory
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: self.current)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty_cache)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self.handle)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocate)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release)
        monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def handle(self) -> Pool:
        self.handles += 1
        return 0, self.handles

    def synchronize(self, _: object = None) -> None:
        self.wait()

    def wait(self) -> None:
        """What no capture survives."""
        if self.capturing is not None:
            self.invalid = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def waits(self, x: Tensor) -> Tensor:
        """A function that cannot be recorded."""
        self.wait()
        return x

    def empty_cache(self) -> None:
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        for pool in [pool for pool, uses in self.uses.items() if uses == 0 and pool not in self.pinned]:
            del self.uses[pool]

    def begin_allocate(self, pool: Pool) -> None:
        if self.uses.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.uses[pool] = self.uses.get(pool, 0) + 1
        self.underway.append(pool)

    def end_allocate(self, device: int, pool: Pool) -> None:
        assert device == 0
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, device: int, pool: Pool) -> None:
        assert device == 0
        assert self.uses[pool] > 0, "released more often than held: the process would end"
        self.uses[pool] -= 1

    @property
    def at_rest(self) -> bool:
        return self.current is self.own and self.capturing is None and not self.underway


class FakeGraph:
    """Records nothing; replaying does nothing."""

    world: FakeCuda

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._ended = False

    def capture_begin(self, pool: Pool, capture_error_mode: str, check_input_liveness: bool = False) -> None:
        assert self.world.current is not self.world.own, "captured on the default stream"
        assert capture_error_mode == "thread_local"
        self._pool, self._stream = pool, self.world.current
        self.world.begin_allocate(pool)
        assert self.world.capturing is None
        self.world.capturing, self.world.invalid = self, False

    def capture_end(self) -> None:
        cuda, pool = self.world, self._pool
        assert pool is not None
        assert cuda.current is self._stream, "Capture must end on the same stream it began on."
        if cuda.capturing is not self:
            raise RuntimeError("CUDA error: the stream is not capturing")
        cuda.capturing = None
        if not cuda.invalid or not cuda.ends_late:
            cuda.end_allocate(0, pool)
        if cuda.invalid:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self._ended = True

    def pool(self) -> Pool:
        if not self._ended or self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def reset(self) -> None:
        if self._ended and self._pool is not None:
            self._ended = False
            self.world.release(0, self._pool)

    def __del__(self) -> None:
        self.reset()

    def replay(self) -> None:
        assert self.world.current is self.world.own


@pytest.fixture(params=[True, False], ids=["ends-late", "ends-at-once"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch, ends_late=request.param)


def test_a_function_is_warmed_up_and_recorded_apart_and_the_thread_comes_back(cuda: FakeCuda) -> None:
    graphs, seen = Graphs(FIRST), []

    def double(x: Tensor) -> Tensor:
        seen.append((cuda.current is cuda.own, cuda.capturing is not None))
        return 2 * x

    replay = graphs.prepare("double", double, torch.ones(2))
    assert replay is not None and replay().tolist() == [2, 2]
    assert seen == [(False, False), (False, False), (False, True)]
    assert cuda.at_rest and cuda.own.waited_for, "what was warmed up must be over before anything else runs"


@pytest.mark.parametrize(
    ("reported", "reason"),
    [(True, "not permitted when stream is capturing"), (False, "previous error during capture")],
)
def test_waiting_while_recording_leaves_the_thread_on_its_stream_and_the_allocator_at_rest(
    cuda: FakeCuda, reported: bool, reason: str
) -> None:
    """`torch.cuda.graph` left both behind. Not reported: the function goes on, and only `capture_end` tells."""
    graphs = Graphs(FIRST)

    def hides(x: Tensor) -> Tensor:
        cuda.invalid = cuda.capturing is not None
        return x

    assert graphs.prepare("waits", cuda.waits if reported else hides, torch.ones(2)) is None
    assert reason in graphs.failure, "the reason, not what came of it"
    assert cuda.at_rest
    cuda.empty_cache()
    assert not cuda.uses, "memory that was recorded into goes back"
    again = Graphs(FIRST).prepare("neg", torch.neg, torch.ones(2))
    assert again is not None and again().tolist() == [-1, -1]


class Breaks(Exception):
    """No RuntimeError."""


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), Breaks("x"), KeyboardInterrupt()])
def test_any_error_while_recording_ends_it(cuda: FakeCuda, error: BaseException) -> None:
    pool, stream = cuda.handle(), Stream(FIRST)

    def breaks(x: Tensor) -> Tensor:
        raise error

    with pytest.raises(type(error)):
        record(breaks, [torch.ones(1)], stream, pool)  # type: ignore[arg-type]
    assert cuda.at_rest
    cuda.empty_cache()
    assert not cuda.uses


def test_a_recording_that_lacked_memory_is_tried_again_and_another_failure_is_final(cuda: FakeCuda) -> None:
    graphs, lacking = Graphs(FIRST), [torch.OutOfMemoryError("no room"), RuntimeError("CUDA error: out of memory")]

    def lacks(x: Tensor) -> Tensor:
        if lacking:
            raise lacking.pop()
        return -x

    for _ in range(2):
        assert graphs.prepare("lacks", lacks, torch.ones(2)) is None and cuda.at_rest
        assert graphs.failure.startswith("recording failed")
        assert graphs.prepare("neg", torch.neg, torch.ones(2)) is None, "an answer does not try again and again"
        graphs.try_again()
    replay = graphs.prepare("lacks", lacks, torch.ones(2))
    assert replay is not None and replay().tolist() == [-1, -1] and not graphs.failure
    graphs.prepare("waits", cuda.waits, torch.ones(2))
    graphs.try_again()
    assert graphs.failure and graphs.prepare("neg", torch.neg, torch.ones(2)) is None


def test_garbage_is_not_collected_while_something_is_recorded(cuda: FakeCuda) -> None:
    """A finaliser that unlocks host memory waits for the device."""
    graphs, collects = Graphs(FIRST), []

    def look(x: Tensor) -> Tensor:
        collects.append(gc.isenabled())
        return x

    def breaks(x: Tensor) -> Tensor:
        return cuda.waits(look(x))

    for function in (look, breaks):
        graphs.prepare(function, function, torch.ones(2))
        assert collects == [True, True, False] and gc.isenabled()
        collects.clear()


def test_after_everything_was_forgotten_recording_goes_on_in_another_pool(cuda: FakeCuda) -> None:
    """An id without graphs is dead while a tensor still lives in its memory; torch asserts that nobody uses it."""
    graphs = Graphs(FIRST)
    graphs.prepare(("full", 1), torch.neg, torch.ones(2))
    graphs.prepare(("retrieval", 1), torch.neg, torch.ones(2))
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
