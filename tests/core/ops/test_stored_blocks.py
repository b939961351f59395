"""Products with the blocks of GGUF files, against gguf's own numbers and sums in float64."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.ops import kernel_build
from core.ops.native import SmallRows
from core.ops.stored_blocks import LAYOUTS, StoredWeight, agrees, cell_bytes, random_blocks, rounded, without_rounding

OUTS, INPUTS, ROWS = 70, 768, 33


def in_8_bits(x: torch.Tensor) -> torch.Tensor:
    """The slow twin of what rows become: each 32 numbers in 255 steps of their largest, float64."""
    pieces = x.double().view(len(x), -1, 32)
    steps = pieces.abs().amax(-1, keepdim=True) / 127
    return torch.where(steps > 0, (pieces / steps).round() * steps, 0.0).flatten(1)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_weights_are_what_gguf_unpacks_and_rows_do_not_depend_on_each_other(
    kernel: SmallRows, threads: Callable[[int], None], kind: str
) -> None:
    stored = random_blocks(kind, OUTS, INPUTS, torch.Generator().manual_seed(0))
    weight = StoredWeight(stored, INPUTS, kernel)
    exact, outputs = stored.widened(), torch.tensor([[5, 69], [0, 5]])
    assert torch.equal(weight.rows(torch.arange(OUTS)), exact) and torch.equal(weight.rows(outputs), exact[outputs])
    assert weight.cells.nbytes <= cell_bytes(kind, OUTS, INPUTS)
    x, bias = torch.randn(ROWS, INPUTS, generator=torch.Generator().manual_seed(1)), torch.randn(OUTS)
    x[:, 40] *= 100
    x[3, 64:96], x[4], x[5] = 0, 1, -1  # nothing, and the largest sums
    weight.sizes.bias = bias.data_ptr()
    found = kernel.product(x, weight.sizes)
    with without_rounding(kernel):
        slow = kernel.product(x, weight.sizes)
    for ours, rows in ((found, in_8_bits(x)), (slow, x.double())):
        wanted = rows @ exact.double().T + bias
        assert torch.allclose(ours.double(), wanted, rtol=0, atol=5e-6 * float(wanted.abs().max()))
    for number in (1, 2, 3):
        threads(number)
        assert all(torch.equal(kernel.product(x[-n:], weight.sizes), found[-n:]) for n in (*range(1, 10), 17))
    x[1, 5], x[2, 700] = torch.nan, torch.inf  # a number that is none spoils its own row alone
    spoiled = kernel.product(x, weight.sizes)
    assert spoiled[1:3].isnan().all() and torch.equal(spoiled[3:], found[3:]) and torch.equal(spoiled[0], found[0])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_weights_are_rounded_to_the_nearest_level(kind: str) -> None:
    weight = torch.randn(40, 128, generator=torch.Generator().manual_seed(3)) + 0.5
    weight[3], weight[4, :32] = 0, 0.25  # no largest number, and no range
    found = rounded(weight, kind).widened()
    pieces = weight.view(40, 4, 32)
    steps = pieces.abs().amax(-1) / 127 if kind == "Q8_0" else (pieces.amax(-1) - pieces.amin(-1)) / 15
    off = (found - weight).abs().view(40, 4, 32).amax(-1)
    assert (off <= 0.52 * steps + 2e-3 * pieces.abs().amax(-1)).all() and (found[3] == 0).all()
    assert off.mean() > 0.3 * steps.mean()  # and no finer


def test_a_kernel_that_computes_something_else_is_noticed(kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agrees(kernel)
    product = SmallRows.product
    monkeypatch.setattr(SmallRows, "product", lambda self, x, sizes: product(self, x, sizes) * 1.01)
    assert not agrees(kernel)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["x86-64-v2", "haswell", "skylake-avx512"])
def test_other_processors_compute_the_same(
    kernel: SmallRows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processor: str
) -> None:
    """Without VNNI, without AVX-512, and without either."""
    own = kernel_build.find_compiler()
    assert own is not None, "there is a kernel"
    if processor == "skylake-avx512" and "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no AVX-512")
    flags = tuple(flag.replace("native", processor) for flag in own.flags)
    monkeypatch.setattr(kernel_build, "find_compiler", lambda: own._replace(flags=flags))
    try:
        other = SmallRows(kernel_build.compiled(tmp_path))
    except (subprocess.CalledProcessError, OSError):
        pytest.skip(f"no compiler for {processor}")
    assert agrees(other)
