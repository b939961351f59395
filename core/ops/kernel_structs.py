"""The structures of small_rows.cpp, as ctypes hands them over, and the order of its weights."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn


class Sizes(ctypes.Structure):
    """As in small_rows.cpp."""

    _fields_ = (
        ("scale", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("kv_heads", "rows", "num_new", "total", "dim")),
        *((name, ctypes.c_int64) for name in ("k_head", "k_row", "v_head", "v_row")),
        *((name, ctypes.c_int64) for name in ("share", "pieces", "groups", "threads", "unit", "chunk", "columns")),
        ("cap", ctypes.c_double),  # zero where it is left out
    )


class LinearSizes(ctypes.Structure):
    """`Linear` of small_rows.cpp: a layer whose weights are packed."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("inputs", "outs", "kind")),
    )


class DecoderSizes(ctypes.Structure):
    """`Decoder` of small_rows.cpp: a decoder layer."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "norm_after", "q_norm", "k_norm")),
        *((name, LinearSizes) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "dim")),
        ("eps", ctypes.c_float),
    )


class ModelSizes(ctypes.Structure):
    """`Model` of small_rows.cpp: the layers of a model, its last norm and its head."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("num_layers", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("norm", "head")),
        ("eps", ctypes.c_float),
    )


class QueryRows(NamedTuple):
    """Where a pass keeps its queries, by layer; token `start` is its first."""

    newest: Sequence[Tensor]  # a ring, each [H, N, D]
    samples: Sequence[Tensor]  # of every `stride`th token, each [H, S, D]; empty: none
    start: int
    stride: int


def pointers_of(tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    """Where tensors begin, as an array for the kernel."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


class BesideSizes(ctypes.Structure):
    """`Beside` of small_rows.cpp: what a pass leaves beside its rows."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("newest", "samples", "votes")),
        *((name, ctypes.c_int64) for name in ("start", "num_newest", "num_samples", "stride")),
    )

    @classmethod
    def of(cls, log: QueryRows | None, votes: Sequence[Tensor]) -> Self:
        """For a pass that logs its queries and counts votes, each where it is asked for."""
        newest, samples, start, stride = log or ((), (), 0, 0)
        lists, rows = (
            [pointers_of(kind) for kind in (newest, samples, votes)],
            [kind[0].shape[1] if kind else 0 for kind in (newest, samples)],
        )
        made = cls(*(ctypes.addressof(kind) if len(kind) else None for kind in lists), start, *rows, stride)
        made.lists = lists  # kept as long as it is
        return made


class ScratchPointers(ctypes.Structure):
    """`Scratch` of small_rows.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("x", "normed", "wide", "wider"))


def packed(weight: Tensor, panel: int, dtype: torch.dtype | None = None) -> Tensor:
    """A weight [O, I] as the kernel multiplies by it, [panels, I, panel]: zeros beyond the last output.

    Args:
        dtype: of the result; None: the weight's.
    """
    outs, ins = weight.shape
    whole = outs // panel * panel
    panels = torch.empty(-(-outs // panel), ins, panel, dtype=dtype or weight.dtype)
    panels[: whole // panel] = weight[:whole].view(-1, panel, ins).transpose(1, 2)
    if whole < outs:
        panels[-1] = nn.functional.pad(weight[whole:], (0, 0, 0, panel - outs + whole)).T
    return panels
