"""The structures of small_rows.cpp, as ctypes hands them over."""

import ctypes


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


class BesideSizes(ctypes.Structure):
    """`Beside` of small_rows.cpp: what a pass leaves beside its rows."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("newest", "samples", "votes")),
        *((name, ctypes.c_int64) for name in ("start", "num_newest", "num_samples", "stride")),
    )


class ScratchPointers(ctypes.Structure):
    """`Scratch` of small_rows.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("x", "normed", "wide", "wider"))
