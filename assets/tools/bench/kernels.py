"""`bench --suite kernels`: attention of some rows to many keys, and products of rows with weights of every stored type,
by the compiled kernel and by torch's operations; loads no model.

All candidates of one length are timed in turns, so that a busy moment of the machine affects all alike. With one thread
its processor time is measured, which waiting for a core is no part of.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from assets.tools.bench.report import Measurement, tell
from core.engine_builder import flush_denormals
from core.errors import InvalidSetting
from core.ops.attention import attend
from core.ops.backend import Attend
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.ops.kernel_structs import LinearSizes, packed
from core.ops.native import KEPT_AS, SmallRows
from core.ops.stored_blocks import LAYOUTS, StoredWeight, random_blocks

HEADS, DIM = 8, 64
DEFAULT_KEYS = (2048, 32_768, 122_880)
ROWS = (1, 2, 6, 12, 24)  # passes of decoding
PROMPT_ROWS = (256, 1024)  # pieces of a prompt
PROMPT_REPEATS = 3
TURNS = 5  # passes are short: --repeats counts fives of them
COMPILED, STOCK = "compiled", "torch"
# Weights of an MLP of Qwen2.5-1.5B, random; as many matrices of them in turns as no cache holds
OUTS, INS, COPIES = 8960, 1536, 8
PRODUCT_ROWS = (1, 4, 8, 16, 256)


def start(args: argparse.Namespace) -> Measurement:
    """Begin. Raises InvalidSetting: a length without keys."""
    contexts = args.contexts or DEFAULT_KEYS
    if min(contexts) < 1:
        raise InvalidSetting("Attention needs at least one key.", hint="Use --contexts 2048,32768.")
    flush_denormals()
    kernel: SmallRows | None = None
    try:
        kernel = small_rows()
    except NoKernel as reason:
        tell(f"Only torch's attention is measured: {reason}.")
    repeats = TURNS * args.repeats
    products = run_products(kernel, repeats) if kernel else iter(())
    told = {"suite": args.suite, "model": f"{HEADS} heads of {DIM}", "device": "cpu", "dtype": "float32"}
    told |= {
        "threads": torch.get_num_threads(),
        "clock": clock().__name__,
        "repeats": repeats,
        "kernel": kernel is not None,
    }
    return Measurement(told, itertools.chain(run_kernels(kernel, contexts, repeats), products))


class _Case(NamedTuple):
    rows: int
    method: str
    dtype: str
    num_bytes: int  # read, of what is kept in this type
    row_operations: int
    run: Callable[[], Tensor]
    taken: list[float]  # seconds


def run_kernels(
    kernel: Attend | None, contexts: Sequence[int], repeats: int, *, rows: Sequence[int] = (*ROWS, *PROMPT_ROWS)
) -> Iterator[dict[str, Any]]:
    """Measure; rows come when their number of keys is done. Memory: 6 KiB a key.

    Args:
        kernel: the compiled one; None: there is none here, and only torch's is measured.
        repeats: times that each is run; prompts' pieces at most PROMPT_REPEATS times.
    """
    for keys in contexts:
        cases = list(_cases(kernel, keys, [count for count in rows if count <= keys]))
        _time(cases, repeats)
        yield from _rows(keys, cases)


def run_products(kernel: SmallRows, repeats: int, *, rows: Sequence[int] = PRODUCT_ROWS) -> Iterator[dict[str, Any]]:
    """Measure products with weights of every type; rows come when their type is done. Memory: 0.5 GB."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(OUTS, INS, generator=generator) / INS**0.5
    x = torch.randn(max(rows), INS, generator=generator)
    stock = [
        _Case(count, STOCK, "float32", *_of_product(32), partial(functional.linear, x[:count], weight), [])
        for count in rows
    ]
    for kind in ("float32", "float16", *LAYOUTS):
        kept: list[Any] = []
        for _ in range(COPIES):
            if kind in LAYOUTS:
                kept.append(StoredWeight(random_blocks(kind, OUTS, INS, generator), INS, kernel))
            else:
                panels = packed(weight, kernel.panel, getattr(torch, kind))
                sizes = LinearSizes(panels.data_ptr(), None, INS, OUTS, KEPT_AS.index(panels.dtype))
                kept.append(Panels(panels, sizes))
        bits = LAYOUTS[kind].bits if kind in LAYOUTS else 8 * getattr(torch, kind).itemsize
        turns = itertools.cycle(kept)
        own = [
            _Case(count, COMPILED, kind, *_of_product(bits), partial(_next_product, kernel, x[:count], turns), [])
            for count in rows
        ]
        _time([*stock, *own], repeats)
        yield from _rows(0, [*stock, *own] if kind == "float32" else own, stock)


class Panels(NamedTuple):
    """A weight as the kernel multiplies with it, and what tells it so."""

    panels: Tensor
    sizes: LinearSizes


def _of_product(bits: float) -> tuple[int, int]:
    return round(bits * OUTS * INS / 8), 2 * OUTS * INS


def _next_product(kernel: SmallRows, x: Tensor, weights: Iterator[Any]) -> Tensor:
    return kernel.product(x, next(weights).sizes)


def _cases(kernel: Attend | None, keys: int, rows: Sequence[int]) -> Iterator[_Case]:
    generator = torch.Generator().manual_seed(keys)
    k, v = torch.randn(2, 1, HEADS, keys, DIM, generator=generator)
    kernels = {STOCK: attend} | ({COMPILED: kernel} if kernel else {})
    for dtype in (torch.float32, torch.float16):
        kept = k.to(dtype), v.to(dtype)
        name, numbers = str(dtype).removeprefix("torch."), keys * HEADS * DIM
        sizes = 2 * numbers * dtype.itemsize, 4 * numbers
        for count in rows:
            q = torch.randn(1, HEADS, count, DIM, generator=generator)
            for method, call in kernels.items():
                yield _Case(count, method, name, *sizes, partial(call, q, *kept, DIM**-0.5), [])


def clock() -> Callable[[], float]:
    """What is measured with torch's present number of threads: seconds of this thread, or of the wall."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def _time(cases: Sequence[_Case], repeats: int) -> None:
    now = clock()
    for turn in range(repeats + 1):  # the first is warm-up
        for case in cases:
            if case.rows in PROMPT_ROWS and turn > PROMPT_REPEATS:
                continue
            started = now()
            with torch.inference_mode():
                case.run()
            if turn > 0:
                case.taken.append(now() - started)


def _rows(keys: int, cases: Sequence[_Case], stock: Sequence[_Case] = ()) -> Iterator[dict[str, Any]]:
    seconds = {(case.rows, case.method, case.dtype): statistics.median(case.taken) for case in (*cases, *stock)}
    least = min(case.rows for case in cases)
    for case in cases:
        median = seconds[case.rows, case.method, case.dtype]
        yield {
            "context": keys,  # the rows' own included; 0: products
            "query_rows": case.rows,
            "method": case.method,
            "dtype": case.dtype,  # of keys and values, or of weights; queries and sums are float32
            "ms": 1e3 * median,
            "ms_min": 1e3 * min(case.taken),
            "gb_per_second": case.num_bytes / median / 1e9,  # keys and values, or weights, read once
            # 4 * rows * keys * heads * dimensions, or 2 * rows * weights
            "gflops": case.rows * case.row_operations / median / 1e9,
            "to_one_row": median / seconds[least, case.method, case.dtype],  # as a multiple of the same kernel's
            "times_stock": seconds[case.rows, STOCK, "float32"] / median,
        }
