"""Steps about single operations: attention of few rows, products with 4-bit weights, pinning and copying."""

import mmap
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from core.models.self_draft import SelfDraftLinear
from core.ops.attention import attend
from core.planning.hardware import free_memory_bytes, resolve_device
from core.planning.measured import measure_link, measure_sharing
from tests.gpu.checklist import Here
from tests.gpu.machine import NOT_HERE
from tests.gpu.traces import wait

GIB = 1 << 30
USABLE = 0.6  # of free host memory, for one thing
SCALING = 128**-0.5


def milliseconds(work: Callable[[], object], device: torch.device, *, repeats: int = 9) -> float:
    """Median time of one call, the first two left out. On CUDA by events, queued behind one another."""
    for _ in range(2):
        work()
    wait(device)
    if device.type != "cuda":
        return 1e3 * statistics.median(timed(work) for _ in range(repeats))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    marks[-1].synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def attention(here: Here) -> None:
    """Few rows against many keys, as the engine computes it: time and bandwidth."""
    device = resolve_device(here.device)
    matrix = torch.ones(here.sized(1 << 28, 1 << 22) // 1024, 1024, device=device)
    reading = milliseconds(lambda: matrix @ torch.ones(1024, 1, device=device), device)
    here.report.add("device reads, bytes a second", 1e3 * matrix.nbytes / reading)
    found: list[dict[str, Any]] = []
    for kv_heads, count, number in product((32, 8), here.sized((4096, 131072), (256,)), here.sized((1, 9, 25), (9,))):
        k, v = (torch.randn(1, kv_heads, count, 128, device=device, dtype=torch.float16) for _ in "kv")
        q = torch.randn(1, 32, number, 128, device=device, dtype=torch.float16)
        with torch.inference_mode():
            ms = milliseconds(partial(attend, q, k, v, SCALING), device, repeats=here.sized(15, 3))
        rate = (k.nbytes + v.nbytes) / ms / 1e6
        found.append({"rows": number, "keys": count, "kv_heads": kv_heads, "ms": ms, "gb/s": rate})
        here.report.add("rows", found)


def products(here: Here) -> None:
    """Weights of 4 bits by rows: torch's kernel, the same weights widened first, and a matrix of 16 bits.

    Sizes are those of Qwen3-14B's largest matrix; several lie side by side, so that none stays in the device's cache.
    """
    device, (outputs, inputs), count = resolve_device(here.device), here.sized((17408, 5120), (64, 128)), 4
    weights = [torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16) for _ in range(count)]
    layers = [SelfDraftLinear(weight, None, device) for weight in weights]
    found: list[dict[str, Any]] = []
    for number in here.sized((1, 4, 9, 16, 17, 25, 33, 64, 128, 256, 512, 1024, 3968), (1, 70)):
        x = torch.randn(number, inputs, device=device, dtype=torch.bfloat16)
        row: dict[str, Any] = {"rows": number}
        ways: dict[str, Callable[[int], Tensor]] = {
            "16 bits": lambda i: x @ weights[i].T,  # noqa: B023
            "4 bits": lambda i: layers[i].few(x),  # noqa: B023
        }
        if here.cuda:
            ways["4 bits, widened first"] = lambda i: layers[i].many(x)  # noqa: B023
            apart = ways["4 bits, widened first"](0) - ways["4 bits"](0)
            row["difference"] = float(apart.float().norm() / ways["4 bits"](0).float().norm())
        for name, way in ways.items():
            for i in range(count):
                way(i)
            row[f"{name}, ms"] = milliseconds(lambda: [way(i) for i in range(count)], device) / count  # noqa: B023
        found.append(row)
        here.report.add("rows", found)


# -------------------- pinning


def pinning(here: Here) -> None:
    """Host memory, untouched or touched before, with large pages or not: pinning it, and a copy from there."""
    device = resolve_device(here.device)
    here.report.add("as an engine measures it", measure_link(device))
    piece = here.sized((2, 32, 512, 128), (2, 2, 64, 32))
    here.report.add("host share", measure_sharing(piece, 32, 8, torch.float16, device))
    if not here.cuda:
        here.report.add("pinned", NOT_HERE)
        return
    cudart, size = torch.cuda.cudart(), min(here.sized(8 * GIB, 1 << 24), int(USABLE * free_memory_bytes()))
    there = torch.empty(min(size, GIB), dtype=torch.uint8, device=device)
    for huge, touched in product((False, True), repeat=2):
        mapped = mmap.mmap(-1, size)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        memory = torch.frombuffer(mapped, dtype=torch.uint8)  # the mapping goes with it
        row: dict[str, Any] = {"bytes": size, "touch seconds": timed(lambda: memory.fill_(1)) if touched else None}  # noqa: B023
        at, count = memory.data_ptr(), memory.numel()
        row["pin seconds"] = timed(lambda: row.update(result=int(cudart.cudaHostRegister(at, count, 0))))  # noqa: B023
        if row["result"] == 0:
            ms = milliseconds(lambda: there.copy_(memory[: there.numel()], non_blocking=True), device)  # noqa: B023
            row["to device, bytes a second"] = there.nbytes / ms * 1e3
            wait(device)
            cudart.cudaHostUnregister(at)
        here.report.add(f"large pages {huge}, touched before {touched}", row)
