"""Reads the header of a GGUF file: its fields, and the table of its tensors.

It is read here: of a vocabulary of 150,000 tokens the reader of gguf's package makes 700 MB of objects in nine seconds.
"""

import functools
import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from packaging.version import Version

from core.errors import DamagedAssets, UnsupportedModel

LEAST_TRANSFORMERS = Version("5.19.0")  # 5.17 reads their tokenizers wrong, as the comparison with it shows
AGAIN = "Fetch the file again."
UNREADABLE = (struct.error, ValueError, LookupError, TypeError, ArithmeticError, MemoryError, StrictDataclassError)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOAT, STRING = 6, 8
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # types that hold numbers, not blocks


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in a file."""

    shape: tuple[int, ...]  # the last one varies fastest
    kind: str  # its GGML type
    start: int
    num_bytes: int

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that holds its numbers exactly."""
        return PLAIN.get(self.kind, torch.float32)


@contextmanager
def readable(path: Path, part: str = "header") -> Iterator[None]:
    """What fails inside is told as damage of a file. Raises DamagedAssets."""
    try:
        yield
    except UNREADABLE as error:
        raise DamagedAssets(f"The {part} of {path.name} is damaged.", hint=AGAIN) from error


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """All fields, and where each tensor lies.

    Raises:
        UnsupportedModel: it is no GGUF file, or has weights of an unknown type; or transformers is too old.
        DamagedAssets: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UnsupportedModel(f"{path.name} is no GGUF file.", hint="Choose another file, or a model's folder.")
        if Version(metadata.version("transformers")) < LEAST_TRANSFORMERS:
            raise UnsupportedModel(
                f"Models in GGUF files need transformers {LEAST_TRANSFORMERS} or newer.",
                hint="Run: python -m pip install --upgrade -r requirements.txt",
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, readable(path):
            fields = _Fields(data)
            _, version, tensors, count = fields.numbers("4sIQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version}")
            said = {}
            for _ in range(count):
                name = fields.string().decode()
                said[name] = fields.value(*fields.numbers("I"))
            if "general.architecture" not in said:
                raise KeyError("general.architecture")
            rows = []
            for _ in range(tensors):
                name, (dimensions,) = fields.string().decode(), fields.numbers("I")
                rows.append((name, fields.numbers(f"{dimensions}Q")[::-1], *fields.numbers("IQ")))
            alignment = said.get("general.alignment", 32)
            begin = -(-fields.at // alignment) * alignment
            return said, {name: _tensor(path.name, shape, kind, begin + offset) for name, shape, kind, offset in rows}


def _tensor(file: str, shape: tuple[int, ...], number: int, start: int) -> StoredTensor:
    if (kind := _kind(number)) is None:
        raise UnsupportedModel(
            f"{file} has weights of a type that cannot be unpacked here (number {number}).",
            hint="Take a file with others, such as Q8_0 or Q4_K_M.",
        )
    name, per_block, block_bytes = kind
    if shape[-1] % per_block:
        raise ValueError("part of a block")
    return StoredTensor(shape, name, start, math.prod(shape) // per_block * block_bytes)


@functools.cache
def _kind(number: int) -> tuple[str, int, int] | None:
    """The name of a type of weights, how many make a block, and its bytes; None: it cannot be unpacked."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        kind = GGMLQuantizationType(number)
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (ValueError, NotImplementedError):
        return None
    return kind.name, *GGML_QUANT_SIZES[kind]


class _Fields:
    """Reads a header's fields, one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{layout}", self.data, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return found

    def string(self) -> bytes:
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        self.at += 8 + length
        if self.at > len(self.data):
            raise ValueError("a text beyond the end")
        return self.data[self.at - length : self.at]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string().decode()
        if kind == FLOAT:  # the shortest number that stands for it, as config.json has it: 1e-06
            return float(str(np.float32(self.numbers("f")[0])))
        if kind in NUMBERS:
            return self.numbers(NUMBERS[kind])[0]
        inner, count = self.numbers("IQ")
        if inner in NUMBERS:
            return self.numbers(f"{count}{NUMBERS[inner]}")
        if inner != STRING:
            raise ValueError("an array of arrays")
        return tuple(self.string() for _ in range(count))
