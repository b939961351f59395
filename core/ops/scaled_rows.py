"""Keys and values as 16-bit integers with a scale of their own: as many bytes as float16, about its error, and products
of integers need no conversion (word_attention.h).

A row of D numbers becomes D + SCALE int16: its numbers / scale, rounded to nearest, then the bits of the float32 scale,
which is the row's length / FULL.
"""

import torch
from torch import Tensor

SCALE = 2  # numbers behind the integers of a row that hold its scale
FULL = 32760.0  # of the length of a row; its numbers are at most as large


def scaled_reference(x: Tensor) -> Tensor:
    """Rows x [..., D] as integers with a scale, [..., D + SCALE] int16: slow twin of `SmallRows.scaled`."""
    length = x.float().norm(dim=-1, keepdim=True)
    numbers = torch.where(length > 0, x.float() * (FULL / length), 0.0).round().to(torch.int16)
    return torch.cat((numbers, (length / FULL).view(torch.int16)), -1)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows x [..., D] as a type keeps them: slow twin of `KVShape.kept`."""
    return scaled_reference(x) if dtype == torch.int16 else x.to(dtype)


def widened(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values of any kept type in `dtype`, [..., D]."""
    if rows.dtype != torch.int16:
        return rows.to(dtype)
    scale = rows[..., -SCALE:].contiguous().view(torch.float32)
    return (rows[..., :-SCALE] * scale).to(dtype)
