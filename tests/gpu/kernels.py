"""Steps about single operations: attention of few rows, pinning and copying."""

import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from core.ops.attention import attend, attend_reference, partial
from core.ops.backend import Attend
from core.planning.cost_model import measure_bandwidth, measure_link, measure_sharing
from core.planning.hardware import free_memory_bytes
from tests.gpu.checklist import Here
from tests.gpu.machine import NOT_HERE, device_of

GIB = 1 << 30
USABLE = 0.6  # of free host memory, for one thing


def wait(device: torch.device) -> None:
    """Until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object], device: torch.device, *, repeats: int = 9) -> float:
    """Median time of one call, the first two left out. On CUDA by events, queued behind one another."""
    for _ in range(2):
        work()
    wait(device)
    if device.type != "cuda":
        taken = []
        for _ in range(repeats):
            started = time.perf_counter()
            work()
            taken.append(1e3 * (time.perf_counter() - started))
        return statistics.median(taken)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    marks[-1].synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def kernels_of(work: Callable[[], object], device: torch.device) -> list[str]:
    """What runs on the device in one call; on a processor the names of operations."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as seen:
        work()
        wait(device)
    wanted = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    return sorted({event.name for event in seen.events() if event.device_type == wanted})


def attention(here: Here) -> None:
    """Partial attention by rows, keys, heads and type."""
    device = device_of(here.device)
    here.report.add("device reads, bytes a second", measure_bandwidth(device, here.sized(1 << 30, 1 << 24)))
    rows = here.sized((1, 2, 5, 9, 13, 17, 25), (1, 9))
    keys = here.sized((4096, 32768, 131072), (256, 1024))
    found: list[dict[str, Any]] = []
    for dtype, kv_heads, count in product((torch.float16, torch.bfloat16), (32, 8), keys):
        k, v = (torch.randn(1, kv_heads, count, 128, device=device, dtype=dtype) for _ in "kv")
        for number in rows:
            q = torch.randn(1, 32, number, 128, device=device, dtype=dtype)

            def work(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> object:
                return partial(q, k, v, 128**-0.5)

            with torch.inference_mode():
                ms = milliseconds(work, device, repeats=here.sized(15, 3))
                names = kernels_of(work, device)
            found.append(
                {
                    "rows": number,
                    "keys": count,
                    "heads": 32,
                    "kv_heads": kv_heads,
                    "dtype": str(dtype),
                    "ms": ms,
                    "gb_per_s": (k.nbytes + v.nbytes) / ms / 1e6,
                    "kernels": names,
                }
            )
        here.report.add("rows", found)
    here.report.add("few rows on the device: as the engine does it, and one call", one_call(here, device))


def one_call(here: Here, device: torch.device) -> list[dict[str, Any]]:
    """What the engine does in two calls and a merge, against torch's one call that masks from the end of the keys on.

    Where it is faster, exact for groups of heads and there in the oldest torch that is supported, it can be taken.
    """
    found: list[dict[str, Any]] = []
    keys = here.sized((4096, 32768), (256,))
    for kv_heads, count, number in product((32, 8), keys, here.sized((2, 9, 25), (9,))):
        k, v = (torch.randn(1, kv_heads, count, 128, device=device, dtype=torch.float16) for _ in "kv")
        q = torch.randn(1, 32, number, 128, device=device, dtype=torch.float16)
        row: dict[str, Any] = {"rows": number, "keys": count, "kv_heads": kv_heads}
        with torch.inference_mode():
            twin = attend_reference(q, k, v, 128**-0.5)
            for name, way in (("two and a merge", attend), ("one", _aligned_at_the_end)):

                def work(way: Attend = way, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
                    return way(q, k, v, 128**-0.5)

                try:
                    row[f"{name}, largest error"] = float((work() - twin).abs().max())
                    row[f"{name}, ms"] = milliseconds(work, device, repeats=here.sized(15, 3))
                except Exception as error:  # whatever this torch or this device lacks is an answer too
                    row[f"{name}, refused"] = f"{type(error).__name__}: {error}"[:300]
        found.append(row)
    return found


def _aligned_at_the_end(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """`attend` as one call of torch's flash attention for sequences of any length; in torch 2.11 it may lack groups."""
    from torch.nn.attention.varlen import varlen_attn

    counts = q.shape[2], k.shape[2]
    ends = (torch.tensor([0, count], dtype=torch.int32, device=q.device) for count in counts)
    rows = (x[0].transpose(0, 1) for x in (q, k, v))  # [T or S, heads, D]
    grouped: dict[str, Any] = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    out = varlen_attn(*rows, *ends, *counts, scale=scaling, window_size=(-1, 0), **grouped)
    assert isinstance(out, Tensor)
    return out.transpose(0, 1)[None]


# -------------------- pinning


@contextmanager
def host_memory(size: int, *, huge: bool) -> Iterator[Tensor]:
    """Fresh host memory [size] uint8, untouched; `huge`: the system is asked for large pages."""
    mapped = mmap.mmap(-1, size)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    yield torch.frombuffer(mapped, dtype=torch.uint8)
    # the mapping goes with the last tensor that looks at it


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def pinning(here: Here) -> None:
    """Host memory by size and kind of pages: touching, pinning, copies both ways and both at once."""
    device = device_of(here.device)
    here.report.add("as an engine measures it", measure_link(device))
    piece = here.sized((2, 32, 512, 128), (2, 2, 64, 32))
    here.report.add("host share", measure_sharing(piece, 32, torch.float16, device))
    found: list[dict[str, Any]] = []
    for size, huge in product(here.sized((8 * GIB, 64 * GIB), (1 << 24, 1 << 25)), (False, True)):
        if size > USABLE * free_memory_bytes():
            found.append({"bytes": size, "huge": huge, "skipped": f"{free_memory_bytes()} bytes of host memory free"})
            here.report.add("rows", found)
            continue
        row: dict[str, Any] = {"bytes": size, "huge": huge}
        with host_memory(size, huge=huge) as memory:
            row["touch seconds"] = timed(lambda memory=memory: memory.fill_(1))
            row |= _pinned(memory, device, here)
        found.append(row)
        here.report.add("rows", found)
    here.report.add("untouched, registered at once", _untouched(here))


def _pinned(memory: Tensor, device: torch.device, here: Here) -> dict[str, Any]:
    part = min(memory.numel(), here.sized(GIB, 1 << 22))
    there = [torch.empty(part, dtype=torch.uint8, device=device) for _ in range(2)]
    if device.type == "cpu":
        copied = timed(lambda: there[0].copy_(memory[:part]))
        return {"pin seconds": NOT_HERE, "copy, bytes a second": part / max(copied, 1e-9)}
    cudart = torch.cuda.cudart()
    row: dict[str, Any] = {"pageable to device, bytes a second": _rate(part, lambda: there[0].copy_(memory[:part]))}
    started = time.perf_counter()
    refused = int(cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
    row |= {"pin seconds": time.perf_counter() - started, "pin result": refused}
    if refused:
        return row
    try:
        down, up = memory[:part], memory[-part:]
        streams = [torch.cuda.Stream() for _ in range(2)]

        def to_device() -> None:
            with torch.cuda.stream(streams[0]):
                there[0].copy_(down, non_blocking=True)

        def to_host() -> None:
            with torch.cuda.stream(streams[1]):
                up.copy_(there[1], non_blocking=True)

        row["to device, bytes a second"] = _rate(part, to_device)
        row["to host, bytes a second"] = _rate(part, to_host)
        row["both at once, bytes a second together"] = _rate(2 * part, lambda: (to_device(), to_host()))
    finally:
        torch.cuda.synchronize()
        started = time.perf_counter()
        cudart.cudaHostUnregister(memory.data_ptr())
        row["unpin seconds"] = time.perf_counter() - started
    return row


def _untouched(here: Here) -> dict[str, Any] | str:
    """The driver touches the pages itself: what the reader does today."""
    if here.device == "cpu":
        return NOT_HERE
    rows: dict[str, Any] = {}
    cudart = torch.cuda.cudart()
    for huge in (False, True):
        with host_memory(2 * GIB, huge=huge) as memory:
            at, size = memory.data_ptr(), memory.numel()
            rows[f"2 GiB, huge {huge}"] = timed(lambda at=at, size=size: cudart.cudaHostRegister(at, size, 0))
            cudart.cudaHostUnregister(at)
    return rows


def _rate(size: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return size / statistics.median(seconds[1:])
