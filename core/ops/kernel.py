"""The compiled kernel of this machine: made, loaded, and compared once with its slow twins."""

import contextlib
import hashlib
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from core.ops.attention import Masses, Partial, attend_reference, rounded, scaled_reference, widened
from core.ops.kernel_build import NoKernel, cache_folder, compiled
from core.ops.kernel_structs import LinearSizes, packed
from core.ops.native import CHUNKS, KEPT_AS, VOTERS, SmallRows
from core.ops.stored_blocks import agrees

# What attention to keys and values of a type may be off by here: float16 may be multiplied as integers of 16 bits
MOST_OFF = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 1e-5, torch.int16: 5e-4}
CALLERS = ("attention", "kernel_structs", "native", "stored_blocks")


def small_rows(cache: Path | None = None) -> SmallRows:
    """The kernel for this machine, compiled (seconds) if needed, and checked.

    Args:
        cache: folder for compiled kernels; default: triforce-reader in the user's cache folder.
    Raises:
        NoKernel: it is not available here; the message says why.
    """
    try:
        library = compiled(cache or cache_folder())
        kernel = SmallRows(library)
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: no home
        raise NoKernel(f"the kernel does not compile or load ({type(error).__name__})") from error
    mark, state = library.with_suffix(".checked"), _state(library)
    with contextlib.suppress(OSError):
        if mark.read_text(encoding="utf-8") == state:
            return kernel
    _check(kernel)
    with contextlib.suppress(OSError):  # the next start checks it again
        mark.write_text(state, encoding="utf-8")
    return kernel


@cache
def kernel_here() -> SmallRows | None:
    """The kernel, if it is to be had."""
    try:
        return small_rows()
    except NoKernel:
        return None


def scaled(x: Tensor) -> Tensor | None:
    """Rows x [..., D] as integers with a scale, [..., D + SCALE] int16; None: a number is infinite, or nearly."""
    kernel = kernel_here()
    if kernel is not None and kernel.scales(x.shape[-1]):
        return kernel.scaled(x)
    return scaled_reference(x) if bool(torch.isfinite(x).all()) else None


def _state(library: Path) -> str:
    """The digest of all that a check depends on: the library, the code that calls it, torch. Cost: a millisecond."""
    code = [Path(__file__), *(Path(__file__).with_name(f"{name}.py") for name in CALLERS), library]
    return hashlib.sha256(torch.__version__.encode() + b"".join(file.read_bytes() for file in code)).hexdigest()


def _check(kernel: SmallRows) -> None:
    """Compare every loop once with the slow twins, so that a miscompiled kernel is never used."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    # KV heads, heads of each, keys, new rows, dimensions: 1 to 26 rows a head, keys in shares, a piece of a prompt
    cases = (
        *((1, 1, 130, num_new, dim) for num_new, dim in ((1, 72), (1, 128), (2, 72), (3, 64), (5, 64))),
        *((2, 2, 700, num_new, dim) for num_new, dim in ((1, 64), (3, 64), (4, 72))),
        (3, 2, 1300, 13, 64),
        (1, 2, 300, 100, 64),
    )
    for kv_heads, group, length, num_new, dim in cases:
        q = random(1, group * kv_heads, num_new, dim)
        k, v = random(1, kv_heads, length, dim), random(1, kv_heads, length, dim)
        for kept in _types(kernel, dim):
            keys, values = rounded(k, kept), rounded(v, kept)
            twin = attend_reference(q, widened(keys, torch.float32), widened(values, torch.float32), 0.125)
            if not torch.allclose(kernel(q, keys, values, 0.125), twin, atol=MOST_OFF[kept]):
                raise NoKernel("the compiled kernel gives wrong results on this processor")
    q, k, v = random(1, 2, VOTERS, 64), random(1, 1, 200, 64), random(1, 1, 200, 64)
    seen = torch.ones(VOTERS, 200).tril(200 - VOTERS).log()
    attention = torch.softmax((q @ k.mT).double() * 0.125 + seen, -1).sum((1, 2))
    by_chunk = attention.view(1, 1, -1, CHUNKS[0]).sum(-1), kernel.with_votes(q, k, v, 0.125, CHUNKS[0])[1]
    x, weight, norm = random(3, 163), random(21, 163), random(163)
    exact = x.double() / (x.double().square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.double()
    silu = (kernel.silu(10 * x), 10 * x.double() * (10 * x.double()).sigmoid())
    panels = packed(weight, kernel.panel)
    product = kernel.product(x, LinearSizes(panels.data_ptr(), None, 163, 21, 0)), x.double() @ weight.double().T
    even, half = random(7, 300), random(21, 300).bfloat16()
    brains = packed(half, kernel.panel)
    narrow = LinearSizes(brains.data_ptr(), None, 300, 21, KEPT_AS.index(torch.bfloat16))
    by_brain = kernel.product(even, narrow, brain=kernel.multiplies_brain)
    taken = even.bfloat16() if kernel.multiplies_brain else even
    means, asked = random(2, 70, 24), random(2, 8, 24)
    shares = (kernel.votes(asked, means, 0.3), torch.softmax(asked.double() @ means.double().mT * 0.3, -1).sum(1))
    assert by_chunk[1] is not None, "the kernel votes in chunks of this size"
    pairs = [(by_brain, taken.double() @ half.double().T), product, shares]
    pairs += [(by_chunk[1], by_chunk[0]), (kernel.norm(x, norm, 1e-5), exact), silu]
    for kept in _types(kernel, 64):
        numbers, found = random(9, 2, 1, 56, 64), Partial(torch.empty_like(q), torch.empty(1, 2, VOTERS))
        masses = Masses(torch.empty(9, 1, 2 * VOTERS, 7), torch.empty(9, 1, 2 * VOTERS))
        blocks = rounded(numbers, kept)
        kernel.blocks(q, blocks, 0.125, found, 2.0, 1, masses)
        keys, values = widened(blocks, torch.float64).transpose(0, 1).reshape(2, -1, 64)
        scores = 2 * torch.tanh(q[0].double() @ keys.T * 0.125 / 2)
        pairs += [(found.out[0], scores.softmax(-1) @ values), (found.lse[0], scores.logsumexp(-1))]
        exact = scores.view(2 * VOTERS, 9, 7, 8).transpose(0, 1).flatten(2).softmax(-1).view(9, -1, 7, 8).sum(-1)
        pairs.append((masses.shares[:, 0], exact))
    if not all(torch.allclose(found.double(), twin, atol=MOST_OFF[torch.float16]) for found, twin in pairs):
        raise NoKernel("the compiled products compute something else on this processor")
    if not agrees(kernel):
        raise NoKernel("products with stored blocks compute something else on this processor")


def _types(kernel: SmallRows, dim: int) -> list[torch.dtype]:
    """The types of keys and values that it attends to, of heads of `dim` numbers."""
    return [kept for kept in KEPT_AS if kept != torch.int16 or kernel.scales(dim)]
