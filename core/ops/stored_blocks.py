"""Weights in the blocks of their GGUF file, which the compiled kernel multiplies with as they are (stored_blocks.h)."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.ops.host_memory import in_large_pages
from core.ops.kernel_structs import LinearSizes
from core.ops.native import KEPT_AS, SmallRows


class Layout(NamedTuple):
    """How a kind of weights lies in files, and in the kernel's cells."""

    numbers: int  # of a block
    num_bytes: int  # of a block in a file
    halves: tuple[int, ...]  # where it has float16 numbers
    bits: float  # of a weight in cells, with its share of scales and minima


LAYOUTS = {  # by GGML type, in the order of their numbers in the kernel, which are behind those of KEPT_AS
    "Q4_0": Layout(32, 18, (0,), 4.5),
    "Q4_1": Layout(32, 20, (0, 2), 5),
    "Q5_0": Layout(32, 22, (0,), 5.5),
    "Q5_1": Layout(32, 24, (0, 2), 6),
    "Q8_0": Layout(32, 34, (0,), 8.5),
    "Q4_K": Layout(256, 144, (0, 2), 4.625),
    "Q5_K": Layout(256, 176, (0, 2), 5.625),
    "Q6_K": Layout(256, 210, (208,), 6.625),
}
LANES = 16  # outputs of a cell, at most
CHECKED = (9, 512, 21)  # rows, inputs and outputs
ROUNDED_AT_ONCE = 1 << 19  # weights, so that what is computed on the way stays in a processor's caches


class StoredBlocks(NamedTuple):
    """A weight [O, I] as a file has it."""

    kind: str  # its GGML type
    blocks: Tensor  # uint8 [O, bytes of I weights]

    def widened(self) -> Tensor:
        """The weights as float32, [O, I], by the package of gguf: the slow twin of the kernel's."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        return torch.from_numpy(dequantize(np.asarray(self.blocks), GGMLQuantizationType[self.kind]))


def cell_bytes(kind: str, outs: int, inputs: int) -> int:
    """Bytes of a weight [outs, inputs] in the kernel's cells, for the widest vectors."""
    return round(LAYOUTS[kind].bits * inputs / 8) * -(-outs // LANES) * LANES


def rounded(weight: Tensor, kind: str) -> StoredBlocks:
    """A weight [O, I] rounded to the nearest levels, I a multiple of 32; NaN and infinity are not rounded.

    Args:
        kind: Q8_0, whose scale is a 127th of the largest number of a block; or Q4_1, from the least number to the
            largest in 15 steps.
    """
    rows = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    return StoredBlocks(kind, torch.cat([_rounded(part.float(), kind) for part in torch.split(weight, rows)]))


def _rounded(weight: Tensor, kind: str) -> Tensor:
    pieces = weight.reshape(len(weight), -1, 32)
    if kind == "Q8_0":
        scale = (pieces.abs().amax(-1, keepdim=True) / 127).half()
        levels = (pieces / scale.float().clamp_min(1e-30)).round_().clamp_(-127, 127).to(torch.int8).view(torch.uint8)
        parts = [scale.view(torch.uint8), levels]
    else:
        least, most = (number[..., None] for number in pieces.aminmax(dim=-1))
        offset, scale = least.half(), ((most - least) / 15).half()
        levels = (pieces - offset.float()).div_(scale.float().clamp_min(1e-30)).round_().clamp_(0, 15).to(torch.uint8)
        parts = [scale.view(torch.uint8), offset.view(torch.uint8), levels[..., :16] | levels[..., 16:] << 4]
    return torch.cat(parts, -1).flatten(1)


class StoredWeight:
    """A weight [O, I] in the kernel's cells; `stored_blocks.h` says how they lie."""

    def __init__(self, stored: StoredBlocks, inputs: int, kernel: SmallRows) -> None:
        self.kind, self._kernel, number = stored.kind, kernel, len(KEPT_AS) + list(LAYOUTS).index(stored.kind)
        blocks, outs = stored.blocks.contiguous(), len(stored.blocks)
        size: int = kernel.library.small_rows_store(number, None, inputs, outs, None, 1)
        self.cells = torch.empty(size, dtype=torch.uint8)
        in_large_pages(self.cells)
        pointers = blocks.data_ptr(), self.cells.data_ptr()
        kernel.library.small_rows_store(number, pointers[0], inputs, outs, pointers[1], kernel.threads)
        self.sizes = LinearSizes(pointers[1], None, inputs, outs, number)

    def __deepcopy__(self, _memo: object) -> "StoredWeight":
        return self

    def rows(self, outputs: Tensor) -> Tensor:
        """The weights of outputs [...] as float32, [..., I]."""
        numbers = outputs.contiguous()
        out = torch.empty(*numbers.shape, self.sizes.inputs)
        pointers = ctypes.byref(self.sizes), numbers.data_ptr(), numbers.numel(), out.data_ptr()
        self._kernel.library.small_rows_widen(*pointers, self._kernel.threads)
        return out


@contextmanager
def without_rounding(kernel: SmallRows | None) -> Iterator[None]:
    """Inside, this thread's products with stored blocks do not round their rows to 8 bits; slow."""
    if kernel is not None:
        kernel.library.small_rows_rounds(0)
    try:
        yield
    finally:
        if kernel is not None:
            kernel.library.small_rows_rounds(1)


def random_blocks(kind: str, outs: int, inputs: int, generator: torch.Generator) -> StoredBlocks:
    """A weight of random levels, the first output's the largest ones, with scales and minima of 0 to 1."""
    numbers, num_bytes, halves, _ = LAYOUTS[kind]
    blocks = torch.randint(0, 256, (outs, inputs // numbers, num_bytes), generator=generator).to(torch.uint8)
    blocks[0] = 127 if kind == "Q8_0" else 255
    for at in halves:
        blocks[..., at : at + 2] = torch.rand(*blocks.shape[:2], 1, generator=generator).half().view(torch.uint8)
    return StoredBlocks(kind, blocks.flatten(1))


def agrees(kernel: SmallRows) -> bool:
    """Whether products with every kind of blocks are those of float64, with rows in 8 bits and as they are."""
    rows, inputs, outs = CHECKED
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(rows, inputs, generator=generator), torch.randn(outs, generator=generator)
    x[:, 7] *= 50
    x[0] = 1.0  # the largest sums
    pieces = x.double().view(rows, -1, 32)
    steps = pieces.abs().amax(-1, keepdim=True) / 127
    for kind in LAYOUTS:
        weight = StoredWeight(random_blocks(kind, outs, inputs, generator), inputs, kernel)
        weight.sizes.bias = bias.data_ptr()
        numbers, found = weight.rows(torch.arange(outs)).double(), kernel.product(x, weight.sizes)
        with without_rounding(kernel):
            exact = kernel.product(x, weight.sizes)
        for ours, theirs in ((found, (pieces / steps).round() * steps), (exact, pieces)):
            wanted = theirs.flatten(1) @ numbers.T + bias
            if not torch.allclose(ours.double(), wanted, rtol=0, atol=1e-3 * float(wanted.abs().max())):
                return False
        if not all(torch.equal(kernel.product(x[:some], weight.sizes), found[:some]) for some in range(1, rows)):
            return False
    return True
