"""The compiled kernel against its slow twin; without a compiler these tests are skipped by name."""

from pathlib import Path

import pytest
import torch

from core.ops import backend, native
from core.ops.attention import attend, attend_reference
from core.ops.backend import STOCK, choose_backend
from core.ops.native import NoKernel, SmallRows, small_rows

# heads, KV heads, cached keys, new rows, dimensions of a head
SHAPES = [
    (1, 1, 0, 1, 8),
    (6, 6, 6, 9, 64),
    (4, 4, 63, 1, 64),
    (4, 4, 57, 7, 64),
    (8, 2, 130, 5, 128),
    (5, 5, 1029, 12, 72),
    (3, 3, 2600, 1, 64),  # heads that do not divide by two threads: cut into shares
    (2, 1, 500, 32, 256),
]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kernel() -> SmallRows:
    try:
        return small_rows()
    except NoKernel as reason:
        pytest.skip(f"no kernel here: {reason}")


def tensors(heads: int, kv_heads: int, cached: int, new: int, dim: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(heads * 1000 + cached + new)
    q = 2 * torch.randn(1, new, heads, dim, generator=generator).transpose(1, 2)  # as models hand it over
    k, v = torch.randn(2, 1, kv_heads, cached + new + 3, dim, generator=generator)[..., : cached + new, :]
    return q, k, v


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_equals_its_slow_twin(kernel: SmallRows, shape: tuple[int, int, int, int, int]) -> None:
    q, k, v = tensors(*shape)
    assert torch.allclose(kernel(q, k, v, 0.3), attend_reference(q, k, v, 0.3), atol=5e-6)


def test_a_row_comes_out_bit_for_bit_whatever_rows_stand_beside_it(kernel: SmallRows) -> None:
    """What keeps verification of many rows equal to plain decoding of one: the order of sums depends on keys alone."""
    q, k, v = tensors(6, 6, 700, 12, 64)
    together = kernel(q, k, v, 0.3)
    for row in range(12):
        end = 701 + row
        alone = kernel(q[:, :, row : row + 1], k[:, :, :end], v[:, :, :end], 0.3)
        assert torch.equal(alone[:, :, 0], together[:, :, row])


def test_scores_far_apart_neither_overflow_nor_vanish(kernel: SmallRows) -> None:
    q, k, v = tensors(4, 4, 300, 3, 64)
    for scaling in (0.0, 30.0):
        got = kernel(q, k, v, scaling)
        assert torch.allclose(got, attend_reference(q, k, v, scaling), atol=2e-4)
    assert torch.isfinite(got).all()


def test_an_unseen_key_would_be_noticed(kernel: SmallRows) -> None:
    """Negative control: the last key counts for the last row only."""
    q, k, v = tensors(4, 4, 70, 3, 64)
    before = kernel(q, k, v, 0.3)
    v[:, :, -1] += 100.0
    after = kernel(q, k, v, 0.3)
    assert torch.equal(before[:, :, :2], after[:, :, :2])
    assert not torch.allclose(before[:, :, 2], after[:, :, 2])


def test_what_the_kernel_was_not_made_for_goes_to_stock_operations(kernel: SmallRows) -> None:
    q, k, v = tensors(4, 4, 40, 65, 64)
    assert torch.equal(kernel(q, k, v, 0.3), attend(q, k, v, 0.3))
    q, k, v = (x.to(torch.bfloat16) for x in tensors(4, 4, 40, 2, 64))
    assert torch.equal(kernel(q, k, v, 0.3), attend(q, k, v, 0.3))


def test_without_a_compiler_stock_operations_serve_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    chosen = choose_backend(CPU, torch.float32)
    assert (chosen.name, chosen.attend) == ("torch", attend)
    assert "compiler" in chosen.because


def test_a_kernel_that_computes_something_else_is_refused(kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallRows, "__call__", lambda self, q, k, v, scaling: attend(q, k, v, 1.01 * scaling))
    with pytest.raises(NoKernel, match="something else"):
        small_rows()


def test_a_compiler_that_fails_leaves_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = tmp_path / "bad.cpp"
    bad.write_text("this is not C++", encoding="utf-8")
    monkeypatch.setattr(native, "SOURCE", bad)
    with pytest.raises(NoKernel):
        small_rows(tmp_path / "cache")
    assert not list(tmp_path.rglob("*.so"))


def test_the_slower_backend_is_not_chosen(kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_seconds", lambda *candidates: [0.001, 0.002])
    chosen = choose_backend(CPU, torch.float32)
    assert chosen.attend is STOCK.attend
    assert "0.5x" in chosen.because


def test_only_float32_on_a_processor_is_compiled_for() -> None:
    assert choose_backend(CPU, torch.bfloat16).name == "torch"
    assert choose_backend(torch.device("cuda"), torch.float32).name == "torch"
