"""Layers that compute passes of few rows with our kernel: linear, norm, SiLU, and the look-up of their tokens' rows.

Decoding multiplies every weight with one to some twenty rows. Stock matmuls take twice as long for four rows as for one
and sum in another order, so that verified logits differ in their last bits from plain ones. The kernel avoids both.
A norm is five stock operations on a few hundred numbers, mostly call overhead (2 cores: 43 µs, 16 through the kernel).
torch's SiLU computes 32 numbers of a tensor at a time and the rest in another way. Where rows are not a multiple of 32
wide, a row's last bits therefore depend on the rows beside it.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from core.ops.kernel_structs import LinearSizes, packed
from core.ops.native import MOST_TOKENS, SmallRows
from core.ops.stored_blocks import LAYOUTS, StoredBlocks, StoredWeight, rounded, without_rounding

# 2 cores, all weights of the bundled target, stock / kernel ms: 1 row 2.1 / 0.9, 9 rows 4.8 / 2.0, 33 rows 7.9 / 7.2.
MOST_ROWS = MOST_TOKENS
KINDS = (torch.float32, torch.float16, torch.bfloat16)  # by their number in the kernel
PIECE = 1 << 22  # weights looked at together
ROUNDED = {8: "Q8_0", 4: "Q4_1"}  # the blocks that weights are rounded to, by bits


def stored_type(weight: Tensor) -> torch.dtype:
    """The 16 bits that hold a float32 weight [O, I] exactly, if some do: as files store it, and half to read."""
    pieces = torch.split(weight, max(1, PIECE // weight.shape[1]))  # none of a weight's size is made for it
    exact = (dtype for dtype in KINDS[1:] if all(torch.equal(part.to(dtype).float(), part) for part in pieces))
    return weight.dtype if weight.dtype != torch.float32 else next(exact, torch.float32)


class OutputLinear(nn.Linear):
    """A model's output layer: of 16-bit weights its logits are float32, as its sums are.

    bfloat16 logits near 20 are multiples of 0.125: many tie, and passes of one row and of many disagree.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to [..., O], float32 or wider."""
        if x.dtype.itemsize > 2:
            return super().forward(x)
        if x.device.type == "cuda":
            rows = torch.mm(x.flatten(0, -2), self.weight.t(), out_dtype=torch.float32).view(*x.shape[:-1], -1)
        else:  # which has no such product: the slow twin
            rows = functional.linear(x.float(), self.weight.float())
        return rows if self.bias is None else rows + self.bias


def use_fewer_launches(module: nn.Module) -> None:
    """For a GPU, in place: norms in one launch, and float32 logits of an output layer, whose weights may be shared."""
    _replace_norms(module, FusedNorm, 2**-6)
    head = module.get_output_embeddings()  # type: ignore[operator]
    if type(head) is nn.Linear:
        head.__class__ = OutputLinear


class PackedLinear(nn.Module):
    """`nn.Linear` through the kernel, float32 on CPU, with its weights in the order in which the kernel reads them.

    Weights stay in the type that the file had where that is exact, and are widened in registers. `packed`: panels of
    outputs [panels, I, panel], zeros beyond the last output. Blocks of a GGUF file stay what they are, in cells, and
    rows are rounded to 8 bits for them (`core.ops.stored_blocks`).
    """

    def __init__(self, linear: nn.Linear, kernel: SmallRows) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.kernel, stored = kernel, stored_blocks(linear.weight)
        self.reads_in_brain = False  # see `read_in_brain`
        self.stored = StoredWeight(stored, self.in_features, kernel) if stored else None
        if self.stored:
            panels, kind = self.stored.cells, self.stored.sizes.kind
        else:
            weight = linear.weight.detach()
            panels = packed(weight, kernel.panel, stored_type(weight))
            kind = KINDS.index(panels.dtype)
        self.packed = nn.Parameter(panels, requires_grad=False)
        self._bias = None if self.bias is None else self.bias.detach().contiguous()
        pointers = self.packed.data_ptr(), None if self._bias is None else self._bias.data_ptr()
        self.sizes = LinearSizes(*pointers, self.in_features, self.out_features, kind)

    @property
    def weight(self) -> Tensor:
        """A copy of the weights as `nn.Linear` has them, [O, I] float32."""
        return self.rows(0, self.out_features)

    def rows(self, first: int, last: int) -> Tensor:
        """A copy of the weights of some outputs, [last - first, I] float32; `first` begins a panel."""
        if self.stored:
            return self.stored.rows(torch.arange(first, last))
        panel = self.packed.shape[2]
        panels = self.packed[first // panel : -(-last // panel)]
        return panels.transpose(1, 2).reshape(-1, self.in_features)[: last - first].float()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to [..., O]."""
        if x.dtype != torch.float32:
            return functional.linear(x, self.weight.to(x.dtype), self.bias)
        brain = self.reads_in_brain and x.numel() > MOST_ROWS * self.in_features
        return self.kernel.product(x, self.sizes, brain=brain)


def in_bits(part: PackedLinear, bits: int) -> PackedLinear:
    """A layer with the same bias and weights rounded to 8 or 4 bits; itself, where they have no more.

    And where blocks of 32 do not divide its rows.
    """
    has_no_more = part.stored and LAYOUTS[part.stored.kind].bits <= LAYOUTS[ROUNDED[bits]].bits
    if has_no_more or part.in_features % 32:
        return part
    linear = nn.Linear(part.in_features, part.out_features, bias=False, device="meta")
    linear.bias = part.bias
    outs, at_once = part.out_features, 1024
    pieces = (part.rows(first, min(first + at_once, outs)) for first in range(0, outs, at_once))
    blocks = torch.cat([rounded(piece, ROUNDED[bits]).blocks for piece in pieces])
    cast(Any, linear.weight).stored_blocks = StoredBlocks(ROUNDED[bits], blocks)
    return PackedLinear(linear, part.kernel)


def read_in_brain(module: nn.Module) -> bool:
    """Let passes over pieces of a prompt round their rows to bfloat16 for weights that bfloat16 holds, in place.

    Passes of up to MOST_ROWS tokens, which decoding has, stay as they are. Returns whether there are such layers, and
    the processor has such products.
    """
    for part in module.modules():
        if isinstance(part, PackedLinear):
            part.reads_in_brain = part.kernel.multiplies_brain and part.in_features % 2 == 0 and _is_brain(part.packed)
    return reads_in_brain(module)


def _is_brain(packed: Tensor) -> bool:
    """Whether bfloat16 holds weights of 16 bits exactly."""
    return packed.dtype == torch.bfloat16 or (
        packed.dtype == torch.float16 and all(torch.equal(panel.bfloat16().half(), panel) for panel in packed)
    )


def reads_in_brain(module: nn.Module) -> bool:
    """Whether some of a model's layers have been told to by `read_in_brain`."""
    return any(isinstance(part, PackedLinear) and part.reads_in_brain for part in module.modules())


def stored_kinds(module: nn.Module) -> str:
    """The GGML types of the blocks that a model's linear layers have, most weights first; empty: they have none."""
    sizes: Counter[str] = Counter()
    for part in module.modules():
        if isinstance(part, PackedLinear) and part.stored:
            sizes[part.stored.kind] += part.in_features * part.out_features
    return ", ".join(kind for kind, _ in sizes.most_common())


def stored_blocks(weight: Tensor) -> StoredBlocks | None:
    """What a weight stands for, whose own numbers were not filled."""
    return getattr(weight, "stored_blocks", None)


def exact_products(module: nn.Module) -> AbstractContextManager[None]:
    """Inside, this thread's products with blocks of a file do not round their rows, as those of float32 weights."""
    kernels = (part.kernel for part in module.modules() if isinstance(part, PackedLinear) and part.stored)
    return without_rounding(next(kernels, None))


class RowsInBits(nn.Module):
    """`nn.Embedding` whose weights stay in the bits of the file; a row is widened to float32 when it is looked up.

    Where the output layer has the same weights, rows come out of its panels, and there is no second copy.
    """

    def __init__(self, embedding: nn.Embedding, head: PackedLinear | None, kernel: SmallRows) -> None:
        super().__init__()
        self.num_embeddings, self.scale = embedding.num_embeddings, _scale(embedding)
        stored, self.stored = stored_blocks(embedding.weight), head.stored if head else None
        if head is None and stored:
            self.stored = StoredWeight(stored, embedding.embedding_dim, kernel)
        if head:
            self.rows = head.packed
        else:
            weight = self.stored.cells if self.stored else embedding.weight.detach()
            self.rows = nn.Parameter(weight if self.stored else weight.to(stored_type(weight), copy=True), False)

    @property
    def weight(self) -> nn.Parameter:
        """For model code that asks on which device it lies (Llama 4)."""
        return self.rows

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [...] to [..., D]."""
        if self.stored:
            found = self.stored.rows(tokens)
        elif self.rows.ndim == 2:
            found = functional.embedding(tokens, self.rows).float()
        else:
            panel = self.rows.shape[2]
            found = self.rows[tokens // panel, :, tokens % panel].float()
        return found if self.scale is None else found * self.scale


def _scale(embedding: nn.Embedding) -> Tensor | None:
    return getattr(embedding, "embed_scale", None)


def _looks_up(part: nn.Module) -> bool:
    """Whether a module finds rows as `RowsInBits` does: families write their own, so each is tried (random weights)."""
    if not isinstance(part, nn.Embedding) or part.max_norm is not None or part.weight.dtype not in KINDS:
        return False
    rows = torch.randn(4, part.embedding_dim, generator=torch.Generator().manual_seed(0))
    tried, tokens, scale = copy.copy(part), torch.tensor([[2, 0, 3]]), _scale(part)
    tried._parameters, tried.padding_idx = {"weight": nn.Parameter(rows, False)}, None  # it counts for training alone
    with torch.inference_mode():
        return torch.equal(tried(tokens), rows[tokens] if scale is None else rows[tokens] * scale)


Place = tuple[nn.Module, str]  # a module's parent, and its name there


def places(module: nn.Module) -> list[list[Place]]:
    """Every part of a model that has parameters of its own; those with one weight in common are together.

    No part is referred to, so that its memory is free as soon as it is replaced.
    """
    found: dict[int, list[Place]] = {}
    for parent in module.modules():
        for name, part in parent.named_children():
            if any(own is not None for own in part._parameters.values()):
                found.setdefault(id(part._parameters.get("weight", part)), []).append((parent, name))
    return list(found.values())


def pack(together: Sequence[Place], kernel: SmallRows, bits: int | None = None) -> None:
    """Replace the linear layers and embeddings among parts with one weight in common, of a float32 model on CPU.

    Args:
        bits: 8 or 4: weights of linear layers that have more are rounded to so many.
    """
    head: PackedLinear | None = None
    for parent, name in together:
        part = getattr(parent, name)
        if type(part) is nn.Linear and part.weight.dtype in KINDS:
            head = PackedLinear(part, kernel)
            head = in_bits(head, bits) if bits else head
            setattr(parent, name, head)
    for parent, name in together:
        if _looks_up(getattr(parent, name)):
            setattr(parent, name, RowsInBits(getattr(parent, name), head, kernel))
        elif (stored := stored_blocks(weight := getattr(parent, name)._parameters.get("weight"))) is not None:
            weight.data = stored.widened()


class FewRowsNorm(nn.Module):
    """RMSNorm that uses the kernel for up to MOST_ROWS tokens; float32 on CPU."""

    def __init__(self, weight: nn.Parameter, eps: float, few_rows: Callable[[Tensor, Tensor, float], Tensor]) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight, eps
        self._few_rows = few_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] to the same shape; hidden states [B, T, D] or queries or keys [B, T, H, D]."""
        if x.shape[: min(2, x.ndim - 1)].numel() <= MOST_ROWS and x.dtype == torch.float32:
            return self._few_rows(x, self.weight, self.variance_epsilon)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class FusedNorm(nn.Module):
    """RMSNorm in one launch, which rounds to 16 bits once; transformers' takes seven and rounds twice."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] to the same shape."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def _replace_norms(
    module: nn.Module, make: Callable[[nn.Parameter, float], nn.Module], error: float, only: torch.dtype | None = None
) -> None:
    """Replace every RMSNorm that computes what `make` makes of its weight and epsilon.

    Families use similar names for different norms (Gemma multiplies by 1 + weight), so each one is tried.

    Args:
        error: that a number may have, relative to the largest one. only: type of weights; None: any.
    """
    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            if not type(part).__name__.endswith("RMSNorm"):  # others may make their weights when asked for them
                continue
            weight, eps = getattr(part, "weight", None), getattr(part, "variance_epsilon", None)
            if not isinstance(weight, nn.Parameter) or eps is None or weight.ndim != 1 or not weight.is_contiguous():
                continue
            if only not in (None, weight.dtype):
                continue
            ours, drawn = make(weight, float(eps)), torch.Generator().manual_seed(0)
            rows = torch.randn(2, weight.shape[0], generator=drawn).to(weight)
            with torch.inference_mode():
                wanted, found = part(rows), ours(rows)
            if wanted.dtype == found.dtype and (wanted - found).abs().max() <= error * wanted.abs().max():
                setattr(parent, name, ours)


class FewRowsSiLU(nn.Module):
    """SiLU that uses the kernel for up to MOST_ROWS rows; float32 on CPU."""

    def __init__(self, few_rows: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._few_rows = few_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to the same shape."""
        if x.numel() > MOST_ROWS * x.shape[-1] or x.dtype != torch.float32:
            return functional.silu(x)
        return self._few_rows(x)


def use_few_rows(module: nn.Module, kernel: SmallRows) -> None:
    """Replace the norms and SiLUs of a float32 model on CPU, in place."""
    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            if type(part).__name__ in ("SiLU", "SiLUActivation"):
                setattr(parent, name, FewRowsSiLU(kernel.silu))
    _replace_norms(module, partial(FewRowsNorm, few_rows=kernel.norm), 1e-5, torch.float32)
