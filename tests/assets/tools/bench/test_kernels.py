"""The kernels suite: its rows say what was timed, and what stock operations do where there is no kernel."""

import pytest
import torch
from torch import Tensor

from assets.tools.bench import kernels
from assets.tools.bench.kernels import COMPILED, STOCK, run_kernels, run_products
from core.ops.attention import attend
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.ops.stored_blocks import LAYOUTS


def test_rows_hold_what_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(kernels, "clock", lambda: lambda: float(next(ticks)))
    asked: list[tuple[int, torch.dtype]] = []

    def counted(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        asked.append((q.shape[2], k.dtype))
        return attend(q, k, v, scaling)

    rows = list(run_kernels(counted, (64,), 4, rows=(1, 6, 256)))
    assert {(row.query_rows, row.method, row.dtype) for row in rows} == {
        (count, name, dtype) for count in (1, 6) for name in (COMPILED, STOCK) for dtype in ("float32", "float16")
    }, "256 rows do not fit in 64 keys"
    assert asked.count((6, torch.float16)) == 5, "one is warm-up"
    row = next(row for row in rows if (row.query_rows, row.dtype) == (6, "float16"))
    assert (row.ms, row.ms_min, row.to_one_row, row.times_stock) == (1000.0, 1000.0, 1.0, 1.0)
    assert row.gb_per_second == 2 * 64 * 8 * 64 * 2 / 1e9 and row.gflops == 4 * 6 * 64 * 8 * 64 / 1e9


def test_products_of_every_stored_type_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        kernel = small_rows()
    except NoKernel as reason:
        pytest.skip(f"no kernel here: {reason}")
    monkeypatch.setattr(kernels, "OUTS", 48)
    monkeypatch.setattr(kernels, "INS", 512)
    ticks = iter(range(100_000))
    monkeypatch.setattr(kernels, "clock", lambda: lambda: float(next(ticks)))
    rows = list(run_products(kernel, 2, rows=(1, 4)))
    assert {(row.query_rows, row.method, row.dtype) for row in rows} == {
        *((count, COMPILED, kind) for count in (1, 4) for kind in ("float32", "float16", *LAYOUTS)),
        *((count, STOCK, "float32") for count in (1, 4)),
    }
    row = next(row for row in rows if (row.query_rows, row.dtype) == (4, "Q4_K"))
    assert row.gb_per_second == 48 * 512 * 4.625 / 8 / 1e9 and row.gflops == 4 * 2 * 48 * 512 / 1e9
    assert (row.context, row.ms, row.to_one_row, row.times_stock) == (0, 1000.0, 1.0, 1.0)
