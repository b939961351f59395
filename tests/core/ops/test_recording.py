"""Recording itself, on a pretended GPU that keeps torch's books: streams, recordings, pools of memory."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from core.ops.graphs import Graphs
from tests.core.cuda_stubs import CUDA, PretendedGpu, pretended_gpu
from tests.core.order import Order


@pytest.fixture(params=[True, False], ids=["ends-late", "ends-at-once"])
def gpu(request: pytest.FixtureRequest) -> Iterator[PretendedGpu]:
    order = Order()
    with pretended_gpu(order) as found:
        found.pools.ends_late = request.param
        yield found
        assert found.stream == 0 and found.recording is None, "the thread is back on its stream"
    assert not order.faults, order.faults[0]


def ones() -> Tensor:
    return torch.ones(2, device=CUDA)


def replayed(graphs: Graphs, key: object, function: Any = torch.neg) -> list[float] | None:
    replay = graphs.prepare(key, function, ones())  # type: ignore[arg-type]
    found: list[float] | None = replay and replay().tolist()
    return found


def test_a_function_is_warmed_up_and_recorded_apart_and_without_collection(gpu: PretendedGpu) -> None:
    """A finaliser that unlocks host memory waits for the device."""
    seen = []

    def double(x: Tensor) -> Tensor:
        seen.append((gpu.stream == 0, gpu.recording is not None, gc.isenabled()))
        return 2 * x

    assert replayed(Graphs(CUDA), "double", double) == [2, 2]
    assert seen == [(False, False, True), (False, False, True), (False, True, False)] and gc.isenabled()
    assert gpu.capture_error_mode == "thread_local", "other threads may use the device meanwhile"


class Breaks(Exception):
    """No RuntimeError."""


@pytest.mark.parametrize("recording", [True, False], ids=["recording", "warming up"])
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
    gpu: PretendedGpu, fault: Any, reason: str, recording: bool
) -> None:
    """`torch.cuda.graph` left both behind. What lacked memory is tried again, anything else is final."""
    graphs, faults = Graphs(CUDA), [fault]

    def fails(x: Tensor) -> Tensor:
        if not faults or (gpu.recording is not None) != (recording or isinstance(fault, str)):
            return -x
        gpu.spoilt = fault == "hides"
        if isinstance(fault, BaseException):
            x + 1
            faults.clear()
            raise type(fault)(*fault.args)  # a new one, or its frames would keep x
        return x + float(x.sum()) if fault == "waits" else x

    if not reason:
        with pytest.raises(type(fault)) as kept:  # with its frames, so that nothing goes by itself
            replayed(graphs, "fails", fails)
    else:
        for key, function in (("fails", fails), ("neg", torch.neg)):  # an answer does not try again and again
            assert replayed(graphs, key, function) is None and gpu.stream == 0 and gc.isenabled()
            assert graphs.failure.startswith("recording failed: ") and reason in graphs.failure
        graphs.try_again()
        assert bool(graphs.failure) == (reason not in ("no room", "out of memory"))
    torch.cuda.empty_cache()
    assert not gpu.pools.uses, "memory that nothing was recorded into goes back"
    assert reason or kept.value.__traceback__
    assert replayed(Graphs(CUDA) if graphs.failure else graphs, "again") == [-1, -1]


def test_after_everything_was_forgotten_recording_goes_on_in_another_pool(gpu: PretendedGpu) -> None:
    """An id without graphs is dead while a tensor still lives in its memory; torch asserts that nobody uses it."""
    graphs = Graphs(CUDA)
    for name in ("full", "retrieval"):
        replayed(graphs, (name, 1))
    (pool,) = gpu.pools.uses
    assert gpu.pools.uses[pool] == 2, "all share one"
    gpu.pools.pinned.add(pool)  # somebody keeps a result
    graphs.forget("full")
    assert gpu.pools.uses[pool] == 1
    replayed(graphs, ("full", 2))
    assert gpu.pools.uses == {pool: 2}, "while one is left, the others go on beside it"
    for name in ("full", "retrieval"):
        graphs.forget(name)
    assert graphs.num_kept == 0
    assert replayed(graphs, ("full", 1)) is not None and not graphs.failure
    gpu.pools.pinned.clear()
    torch.cuda.empty_cache()
    assert pool not in gpu.pools.uses and list(gpu.pools.uses.values()) == [1]
