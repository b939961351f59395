"""One saved book as one safetensors file, written piece by piece and read a few tensors at a time.

The header's metadata has the label. The last tensor, `checksums`, has the CRC-32 of the header and of every tensor
before it. Tensors are read, not mapped: a bad sector is then an error that can be handled, where touching a mapped page
would end the process. Knows nothing of caches or folders.
"""

import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

FORMAT = 2  # of the file and of what the tensors mean; a book of another format is read again from its text
SUFFIX, EARLIER = ".book.safetensors", ".book"  # of format 1
LENGTH = struct.Struct("<Q")  # of the header behind it, in bytes
MOST_HEADER_BYTES = 64 << 20
READERS = 4  # threads that read and check ahead; both release Python's lock
TOKENS, CHECKSUMS = "tokens", "checksums"
DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "I32": torch.int32,
    "U32": torch.uint32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class OtherFormat(Exception):
    """The file was written by another version of the reader."""


class DamagedBook(Exception):
    """Some of the file's content differs from what was written."""


class Part(NamedTuple):
    """A tensor of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.dtype.itemsize * prod(self.shape)


class Placed(NamedTuple):
    """A tensor in the file: its first byte, and its checksum."""

    part: Part
    offset: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the file says about a book besides its tensors."""

    family: str  # digest of everything besides the text that keys and values depend on; see core.kv_store.identity
    identity: dict[str, str]  # the parts of that digest
    names: tuple[str, ...]  # of the documents, for display
    model: str
    num_tokens: int
    block_rows: int  # tokens whose keys and values are one tensor of each layer
    read_seconds: float  # how long reading the text took


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory; writable, no copy."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def header_of(label: Label, parts: Mapping[str, Part]) -> bytes:
    """The file's beginning, up to the first tensor."""
    metadata = {"format": str(FORMAT), "label": json.dumps(asdict(label))}
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, part in parts.items():
        start, end = end, end + part.size
        entries[name] = {"dtype": NAMES[part.dtype], "shape": part.shape, "data_offsets": (start, end)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % LENGTH.size)
    return LENGTH.pack(len(header)) + header


class BookWriter:
    """Writes a new file, tensor by tensor in the order of `parts`. The file is invalid before `finish`."""

    def __init__(self, file: BinaryIO, label: Label, parts: Mapping[str, Part]) -> None:
        self._file, self._left = file, deque(parts.values())
        header = header_of(label, {**parts, CHECKSUMS: Part(torch.uint32, (1 + len(parts),))})
        self._checksums = [zlib.crc32(header)]
        file.write(header)

    def add(self, *rows: Tensor) -> None:
        """The next tensor, on any device; several are the rows of one along its first dimension.

        Raises:
            OSError: the disk is full or fails.
        """
        part, size, crc = self._left.popleft(), 0, 0
        for row in rows:
            assert row.dtype == part.dtype, f"{row.dtype} is written as {part.dtype}"
            content = as_bytes(row.detach().cpu().contiguous())
            crc, size = zlib.crc32(content, crc), size + len(content)
            self._file.write(content)
        assert size == part.size, f"{size:,} bytes are no {part}"
        self._checksums.append(crc)

    def finish(self) -> None:
        """Write the checksums, and sync all to disk."""
        assert not self._left, "a tensor is missing"
        self._file.write(as_bytes(torch.tensor(self._checksums, dtype=torch.uint32)))
        self._file.flush()
        os.fsync(self._file.fileno())


class BookReader:
    """An open file. It stays readable when its name is given to another file or removed.

    Raises:
        OSError: it cannot be opened or read.
        OtherFormat, DamagedBook: depending on its header.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("rb", buffering=0), Lock()
        try:
            self.label, self._placed = self._opened()
        except BaseException:
            self._file.close()
            raise

    def _opened(self) -> tuple[Label, dict[str, Placed]]:
        try:
            (length,) = LENGTH.unpack(self._bytes(0, LENGTH.size))
            if length > MOST_HEADER_BYTES:
                raise DamagedBook("its header is too long")
            header = self._bytes(0, LENGTH.size + length)
            entries = json.loads(header[LENGTH.size :])
            metadata, checksums = entries.pop("__metadata__"), entries[CHECKSUMS]["data_offsets"]
            if len(header) + checksums[1] != self.file_bytes:
                raise DamagedBook(f"{self.file_bytes:,} bytes are there, {len(header) + checksums[1]:,} were written")
            (number,) = entries.pop(CHECKSUMS)["shape"]
            crc, *others = struct.unpack(f"<{number}I", self._bytes(len(header) + checksums[0], 4 * number))
            if crc != zlib.crc32(header):
                raise DamagedBook("its header is not what was written")
            if metadata["format"] != str(FORMAT):
                raise OtherFormat(f"it has format {metadata['format']}, this is {FORMAT}")
            label = json.loads(metadata["label"])
            placed = {}
            for (name, row), own in zip(entries.items(), others, strict=True):
                part = Part(DTYPES[row["dtype"]], tuple(row["shape"]))
                placed[name] = Placed(part, len(header) + row["data_offsets"][0], own)
            return Label(**{**label, "names": tuple(label["names"])}), placed
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error) as error:
            raise DamagedBook("its header cannot be understood") from error

    @property
    def file_bytes(self) -> int:
        """Size on disk."""
        return os.fstat(self._file.fileno()).st_size

    def tokens(self) -> Tensor:
        """The book's token ids, [n] int32.

        Raises:
            OSError, DamagedBook: they cannot be read.
        """
        return next(self.read([TOKENS])).clone()

    def read(self, names: Sequence[str] | None = None) -> Iterator[Tensor]:
        """Tensors, in order, each valid until the next one is requested; None: all. Threads read and check ahead.

        Raises:
            OSError, DamagedBook: at the tensor that cannot be read or differs from what was written.
        """
        try:
            placed = [self._placed[name] for name in (self._placed if names is None else names)]
        except KeyError as error:
            raise DamagedBook(f"it has no {error}") from error
        largest = max((one.part.size for one in placed), default=0)
        buffers = [torch.empty(largest, dtype=torch.uint8) for _ in range(min(len(placed), READERS) + 1)]

        def fetch(number: int) -> Tensor:
            (dtype, shape), offset, checksum = placed[number]
            content = buffers[number % len(buffers)][: placed[number].part.size]
            with self._lock:  # all threads share one file position: they read in turns and check in parallel
                self._fill(offset, as_bytes(content))
            if zlib.crc32(as_bytes(content)) != checksum:
                raise DamagedBook(f"the {len(content):,} bytes from {offset:,} on are not what was written")
            return content.view(dtype).view(shape)

        with ThreadPoolExecutor(READERS, "shelf") as pool:
            ahead: deque[Future[Tensor]] = deque()
            try:
                for number in range(len(placed) + READERS):
                    if number < len(placed):
                        ahead.append(pool.submit(fetch, number))
                    if number >= READERS:
                        yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    def _bytes(self, offset: int, size: int) -> bytearray:
        content = bytearray(size if offset + size <= self.file_bytes else 0)
        if not content:
            raise DamagedBook("its end is missing")
        self._fill(offset, memoryview(content))
        return content

    def _fill(self, offset: int, into: memoryview) -> None:
        self._file.seek(offset)
        while into:
            count = self._file.readinto(into)
            if not count:
                raise DamagedBook(f"{len(into):,} bytes are missing")
            into = into[count:]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
