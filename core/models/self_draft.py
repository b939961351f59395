"""The target's second set of linear weights, in 4 bits, for passes over the retrieval cache; or its own (`--bits 4`).

Those passes only guess for the full one, so rounded weights cost acceptance and never exactness: level 2 verifies with
the distribution that the guesses were really drawn from (self-speculation with quantised weights: QuantSpec, arXiv
2502.10424, section 4). All other parts are shared with the target, whose own weights and passes do not change. This
module does not know the caches. The keys and values of such passes are approximations, which the retrieval cache
replaces by the full cache's.

A group of GROUP weights of a row shares a scale and an offset, w = (level - 8) * scale + offset with levels 0 to 15
(asymmetric rounding to nearest, as in QuantSpec). The kernels are torch's own and get bfloat16: CUDA's supports no
other type, and a processor's is a plain loop for others. So activations are converted there and back: the range of
float16 fits, and the lost bits of precision are worth less than a step of the weights. Rows and columns are padded with
zeros to the multiples of the kernels. Where our compiled kernel runs the model, its products take the copy as they take
a 4-bit file (`core.ops.stored_blocks`). Weights outside linear layers (experts kept as one tensor) stay as
they are.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from core.errors import NotEnoughMemory, NotPossibleHere, UnsupportedModel
from core.models.linear import FewRowsNorm, FewRowsSiLU, PackedLinear, in_bits
from core.models.quantised import QuantisedLinear

BITS = 4
# Weights that share a scale and an offset. Overlap of distributions with the 16-bit ones, three books of the bundled
# pair: 0.957 with groups of 32 (5 bits in all), 0.943 with 64 (4.5), 0.918 with 128 (4.25).
GROUP = 64
COMPUTED = torch.bfloat16  # type in the kernels, and of scales and offsets
STORED_BITS = BITS + 2 * 8 * COMPUTED.itemsize / GROUP  # bits of a weight including its share of scale and offset
ROW_MULTIPLE = 16  # outputs: the CPU kernel's multiple; CUDA's is 8
INNER_TILES = 8  # of 16 inputs, which the CUDA kernel reads at once: its widest setting
TILE_ROWS = 8  # outputs of a tile
# Rows that the CUDA kernel multiplies as they are; a round of guesses has fewer. Its time grows with the rows: on an
# H200 (17,408 x 5,120 weights) 0.79 ms for 128, 24.0 for 3,968, where a matrix of 16 bits takes 0.05 and 0.90.
FEW_ROWS = 128
CAPABILITY = (8, 0)  # bfloat16 tensor cores, which the CUDA kernel needs
ROUNDED_AT_ONCE = 1 << 24  # weights: 64 MB in float32
WIDENING_BYTES = 4  # of a weight that a GPU widens: bfloat16, and its level in four steps
LEAVE_OUT = "Leave out --self-draft-bits."


class Rounded(NamedTuple):
    """A matrix [O, I] in 4 bits; I is a multiple of GROUP."""

    levels: Tensor  # [O, I] uint8, 0 to 15
    scales: Tensor  # [I / GROUP, O, 2]: scale and offset of each group


def round_to_levels(weight: Tensor) -> Rounded:
    """Round each group of a row to the nearest of 16 levels between its least and largest weight.

    Levels are chosen for scales and offsets in their stored type.

    Args:
        weight: [O, I], I a multiple of GROUP.
    """
    rows = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    parts = [_round_rows(weight[start : start + rows]) for start in range(0, len(weight), rows)]
    return Rounded(torch.cat([part.levels for part in parts]), torch.cat([part.scales for part in parts], 1))


def _round_rows(weight: Tensor) -> Rounded:
    groups = weight.float().reshape(len(weight), -1, GROUP)  # [O, I / GROUP, GROUP]
    least, largest = groups.aminmax(dim=2)  # [O, I / GROUP]
    step = (largest - least) / 15
    scale = torch.where(step > 0, step, 1.0).to(COMPUTED)
    offset = (least + 8 * scale.float()).to(COMPUTED)
    levels = ((groups - offset.float()[..., None]) / scale.float()[..., None]).round() + 8
    scales = torch.stack((scale, offset), 2).transpose(0, 1).contiguous()
    return Rounded(levels.clamp(0, 15).to(torch.uint8).flatten(1), scales)


def widened(rounded: Rounded) -> Tensor:
    """The matrix [O, I] used in the multiplication, float32: the slow twin of the kernels."""
    kept = rounded.scales.float().permute(2, 1, 0)[..., None]  # scales and offsets, [O, I / GROUP, 1] each
    groups = rounded.levels.float().reshape(len(rounded.levels), -1, GROUP) - 8
    return (groups * kept[0] + kept[1]).flatten(1)


class SelfDraftLinear(nn.Module):
    """`nn.Linear` with weights of 4 bits. Rows and columns are padded to the kernel's multiples."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        """Round a weight [O, I] to 4 bits on a device; `bias` [O] is shared."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._cuda = device.type == "cuda"
        columns = max(GROUP, 16 * INNER_TILES) if self._cuda else GROUP
        self._more_inputs, more_outputs = -self.in_features % columns, -self.out_features % ROW_MULTIPLE
        weight = weight.detach().to(device)
        if self._more_inputs or more_outputs:  # else padding would copy
            weight = functional.pad(weight, (0, self._more_inputs, 0, more_outputs))
        rounded = round_to_levels(weight)
        self.packed = nn.Parameter(self._pack(rounded.levels), requires_grad=False)
        self.scales = nn.Parameter(rounded.scales, requires_grad=False)

    def _pack(self, levels: Tensor) -> Tensor:
        """Levels [O, I] in the layout of this device's kernel."""
        if self._cuda:  # [O, I / 2] uint8, the even column in the upper half; then in the order of tensor cores
            pairs = levels[:, ::2] << 4 | levels[:, 1::2]
            packed: Tensor = torch.ops.aten._convert_weight_to_int4pack(pairs.contiguous(), INNER_TILES)
        else:
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.int(), INNER_TILES)
        return packed

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to [..., O]."""
        rows = functional.pad(x.reshape(-1, self.in_features).to(COMPUTED), (0, self._more_inputs)).contiguous()
        many = self._cuda and len(rows) > FEW_ROWS
        out = self.many(rows) if many else self.few(rows)
        out = out[:, : self.out_features].to(x.dtype).reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def few(self, rows: Tensor) -> Tensor:
        """Rows [T, I] to [T, O], padded, by the kernel, which widens each weight once for 16 rows."""
        multiply = torch.ops.aten._weight_int4pack_mm if self._cuda else torch.ops.aten._weight_int4pack_mm_for_cpu
        found: Tensor = multiply(rows, self.packed, GROUP, self.scales)
        return found

    def many(self, rows: Tensor) -> Tensor:
        """As `few`, on a GPU: each weight is widened once, to what the kernel multiplies with.

        Inputs come in the order in which tiles hold them. A tile of tensor cores has 8 outputs and 16 inputs; thread q
        of the four of an output holds inputs 2q, 2q + 1, 2q + 8 and 2q + 9 of two tiles in a word: bytes by odd input,
        then by tile, and half bytes by the tile's half.
        """
        tiles = rows.view(len(rows), -1, 4, 2, 2, 4, 2)  # by group of 128: pair of tiles, tile, half, q, odd
        rows = tiles.permute(0, 1, 5, 2, 6, 3, 4).reshape(rows.shape)
        out = rows.new_empty(len(rows), TILE_ROWS * len(self.packed))
        at_once = max(1, ROUNDED_AT_ONCE // rows.shape[1] // TILE_ROWS)  # tiles of outputs
        for first in range(0, len(self.packed), at_once):
            part = slice(TILE_ROWS * first, TILE_ROWS * (first + at_once))
            wide = _from_tiles(self.packed[first : first + at_once], self.scales[:, part])
            out[:, part] = functional.linear(rows, wide)
        return out


def _from_tiles(packed: Tensor, scales: Tensor) -> Tensor:
    """The matrix [O, I] bfloat16 from CUDA's packed levels, in the order of `SelfDraftLinear.many`.

    Args:
        packed: [O / 8, I / 128, 32, 4] int32. scales: [I / 64, O, 2].
    """
    tiles, groups, *_ = packed.shape
    own = packed.view(torch.int8).view(tiles, groups, TILE_ROWS, 4, 2, 2, 4) ^ -0x78  # levels - 8 as signed halves
    wide = torch.empty(tiles, TILE_ROWS, groups, 4, 2, 2, 4, 2, dtype=COMPUTED, device=packed.device)
    for half, levels in enumerate((own << 4 >> 4, own >> 4)):
        wide[..., half] = levels.transpose(1, 2)
    scale, offset = scales.view(groups, 2, tiles, TILE_ROWS, 2).permute(4, 2, 3, 0, 1)[..., None, :, None, None, None]
    torch.addcmul(offset, wide, scale, out=wide)
    return wide.view(tiles * TILE_ROWS, -1)


def quantised_linear(bits: int, device: torch.device) -> Callable[[nn.Linear], nn.Module]:
    """What a linear layer of a quantised model becomes: 4 bits by torch's own kernel on a GPU that has it."""
    if bits == BITS and _multiplies(device):
        return lambda part: SelfDraftLinear(part.weight, part.bias, device)
    return lambda part: QuantisedLinear(part, bits, device)


def _multiplies(device: torch.device) -> bool:
    """Whether this is a GPU with a kernel for 4 bits, in this build of torch."""
    if device.type != "cuda" or too_old(device):
        return False
    try:
        SelfDraftLinear(torch.ones(ROW_MULTIPLE, GROUP, device=device), None, device)(
            torch.ones(1, GROUP, device=device)
        )
    except RuntimeError:
        return False
    return True


def is_int4(module: nn.Module) -> bool:
    """Whether a model's own linear layers have 4 bits of this format."""
    return any(isinstance(part, SelfDraftLinear) for part in module.modules())


def too_old(device: torch.device) -> str:
    """Why this GPU has no kernel for 4 bits; empty: it has one, or it is a processor."""
    if device.type != "cuda" or (found := torch.cuda.get_device_capability(device)) >= CAPABILITY:
        return ""
    return f"Self-draft weights of 4 bits need a GPU of compute capability 8.0, this one has {found[0]}.{found[1]}."


def self_draft_of(module: nn.Module, device: torch.device) -> nn.Module:
    """A model that shares everything with `module` except its linear layers, which have 4 bits.

    This includes the output layer: it is up to a sixth of what such a pass reads (Llama-3.1-8B), and costs little. On
    three books of the bundled pair distributions overlap the 16-bit ones by 0.943 without it, by 0.941 with it.

    Raises:
        InvalidSetting: the GPU is too old. UnsupportedModel: this build of torch has no kernel for it.
        NotEnoughMemory: the device is full.
    """
    if problem := too_old(device):
        raise NotPossibleHere(problem, hint=LEAVE_OUT)
    own: dict[int, object] = {id(shared): shared for shared in (*module.parameters(), *module.buffers())}
    try:
        for part in module.modules():
            if isinstance(part, PackedLinear):
                own[id(part)] = in_bits(part, BITS)
            elif isinstance(part, nn.Linear | QuantisedLinear):
                weight = part.weight if isinstance(part, nn.Linear) else part.weight_as(torch.float32)
                own[id(part)] = SelfDraftLinear(weight, part.bias, device)
            elif isinstance(part, FewRowsNorm | FewRowsSiLU):
                own[id(part)] = part
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory("The self-draft weights do not fit beside the model's own.", hint=LEAVE_OUT) from error
    except RuntimeError as error:  # torch's error for a kernel that was not built, or not for this device
        first = str(error).splitlines()[0]
        raise UnsupportedModel(
            f"This torch has no 4-bit kernel for the {device.type} device: {first}.", hint=LEAVE_OUT
        ) from error
    return copy.deepcopy(module, own)  # uses the parts in `own` instead of copying them


def self_draft_bytes(twin: nn.Module, model: nn.Module) -> int:
    """Bytes of a self-draft without what it shares with its model."""
    shared = {parameter.data_ptr() for parameter in model.parameters()}
    return sum(parameter.nbytes for parameter in twin.parameters() if parameter.data_ptr() not in shared)
