"""One saved book as one file: blocks of bytes with a checksum each, and a header that describes them.

    preamble | token ids | beside layer 0 .. L-1 | rows [0, R) of layer 0 .. L-1 | rows [R, 2R) of ... | header

The preamble is written last, over zeros, so a truncated file is never valid. Blocks are read, not mapped: reading a
bad sector raises an error that can be handled, touching a mapped page would end the process. Knows nothing of caches
or folders.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from io import RawIOBase
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

MAGIC = b"TFRSHELF"
FORMAT = 1  # of the file and of what the blocks mean; a book of another format is read again from its text
PREAMBLE = struct.Struct("<8sIIQQ")  # magic, format, checksum of the header, its offset and size in bytes
MOST_HEADER_BYTES = 64 << 20
READERS = 4  # threads that read and check ahead; both release Python's lock


class NotABook(Exception):
    """The file was not written by this program."""


class OtherFormat(NotABook):
    """The file was written by another version of the reader."""


class DamagedBook(Exception):
    """The file is ours, but some of its content differs from what was written."""


class Block(NamedTuple):
    """A block's place, size and checksum."""

    offset: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the file says about a book besides its blocks."""

    family: str  # digest of everything besides the text that keys and values depend on; see core.kv_store.identity
    identity: dict[str, str]  # the parts of that digest
    names: tuple[str, ...]  # of the documents, for display
    model: str
    num_tokens: int
    num_layers: int
    block_rows: int  # tokens in a block of rows
    read_seconds: float  # how long reading the text took


@dataclass(frozen=True, slots=True)
class Header:
    """Everything known about a file without reading its blocks."""

    label: Label
    blocks: tuple[Block, ...]

    @property
    def token_block(self) -> Block:
        """The book's token ids, int32."""
        return self.blocks[0]

    @property
    def side_blocks(self) -> tuple[Block, ...]:
        """The data beside the rows of each layer."""
        return self.blocks[1 : 1 + self.label.num_layers]

    def row_blocks(self, num_tokens: int) -> tuple[Block, ...]:
        """The blocks with the first `num_tokens` rows: range by range, in each of them layer by layer."""
        first, ranges = 1 + self.label.num_layers, -(-num_tokens // self.label.block_rows)
        return self.blocks[first : first + ranges * self.label.num_layers]

    def spans(self, num_tokens: int) -> list[range]:
        """The ranges of rows, in the order of `row_blocks`."""
        step, total = self.label.block_rows, self.label.num_tokens
        return [range(start, min(start + step, total)) for start in range(0, num_tokens, step)]


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory; writable, no copy."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def checksum(content: memoryview | bytes | bytearray) -> int:
    """CRC-32: finds errors of disks and interrupted copies; no defence against intentional changes."""
    return zlib.crc32(content)


class BookWriter:
    """Writes a new file block by block. The file is invalid before `finish`."""

    def __init__(self, file: BinaryIO, label: Label) -> None:
        self._file, self._label = file, label
        self._blocks: list[Block] = []
        file.write(bytes(PREAMBLE.size))

    def add(self, *parts: Tensor) -> None:
        """One block of one or more tensors, on any device.

        Raises:
            OSError: the disk is full or fails.
        """
        offset, total = self._file.tell(), 0
        crc = 0
        for part in parts:
            content = as_bytes(part.detach().cpu().contiguous())
            crc = zlib.crc32(content, crc)
            self._file.write(content)
            total += len(content)
        self._blocks.append(Block(offset, total, crc))

    def finish(self) -> None:
        """Write header and preamble, and sync all of it to disk."""
        offset = self._file.tell()
        header = json.dumps({"label": asdict(self._label), "blocks": self._blocks}).encode()
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())  # before the preamble makes them valid
        self._file.seek(0)
        self._file.write(PREAMBLE.pack(MAGIC, FORMAT, checksum(header), offset, len(header)))
        self._file.flush()
        os.fsync(self._file.fileno())


class BookReader:
    """An open file. It stays readable when its name is given to another file or removed.

    Raises:
        OSError: it cannot be opened or read.
        NotABook, OtherFormat, DamagedBook: depending on its preamble and header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._lock = path.open("rb", buffering=0), Lock()
        try:
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def _header(self) -> Header:
        start = self._file.read(PREAMBLE.size)
        if len(start) < PREAMBLE.size or not start.startswith(MAGIC):
            raise NotABook(f"{self.path.name} does not begin like a book")
        _, number, expected, offset, size = PREAMBLE.unpack(start)
        if number != FORMAT:
            raise OtherFormat(f"{self.path.name} has format {number}, this is {FORMAT}")
        length = self.file_bytes
        if size > MOST_HEADER_BYTES or offset + size != length:
            raise DamagedBook(f"{length:,} bytes are there, {offset + size:,} were written")
        content = bytearray(size)
        read_exactly(self._file, offset, memoryview(content))
        if checksum(content) != expected:
            raise DamagedBook("its header is not what was written")
        return parsed(content)

    @property
    def file_bytes(self) -> int:
        """Size on disk."""
        return os.fstat(self._file.fileno()).st_size

    def is_at(self, path: Path) -> bool:
        """Whether the name still belongs to this file."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except OSError:
            return False

    def tokens(self) -> Tensor:
        """The book's token ids, [n] int32.

        Raises:
            OSError, DamagedBook: they cannot be read.
        """
        content = torch.empty(self.header.token_block.size, dtype=torch.uint8)
        self._read(self.header.token_block, content)
        return content.view(torch.int32)

    def read(self, blocks: Sequence[Block]) -> Iterator[Tensor]:
        """The contents of blocks, in order, each a [size] uint8 tensor that is valid until the next one is requested.

        Threads read and check ahead.

        Raises:
            OSError, DamagedBook: at the block that cannot be read or differs from what was written.
        """
        largest = max((block.size for block in blocks), default=0)
        buffers = [torch.empty(largest, dtype=torch.uint8) for _ in range(READERS + 1)]

        def fetch(number: int) -> Tensor:
            block = blocks[number]
            content = buffers[number % len(buffers)][: block.size]
            self._read(block, content)
            return content

        with ThreadPoolExecutor(READERS, "shelf") as pool:
            ahead: list[Future[Tensor]] = []
            try:
                for number in range(len(blocks) + READERS):
                    if number < len(blocks):
                        ahead.append(pool.submit(fetch, number))
                    if number >= READERS:
                        yield ahead.pop(0).result()
            finally:
                for future in ahead:
                    future.cancel()

    def _read(self, block: Block, into: Tensor) -> None:
        with self._lock:  # all threads share one file position: they read in turns and check in parallel
            read_exactly(self._file, block.offset, as_bytes(into))
        if checksum(as_bytes(into)) != block.checksum:
            raise DamagedBook(f"the {block.size:,} bytes from {block.offset:,} on are not what was written")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_exactly(file: RawIOBase, offset: int, into: memoryview) -> None:
    """Fill `into` from `offset` on.

    Raises:
        DamagedBook: the file ends before. OSError.
    """
    file.seek(offset)
    while into:
        count = file.readinto(into)
        if not count:
            raise DamagedBook(f"{len(into):,} bytes are missing")
        into = into[count:]


def is_plausible(header: Header) -> bool:
    """Whether all values of a header have the right types, and all numbers a possible size."""
    label = header.label
    texts = (label.family, label.model, *label.names, *label.identity) if isinstance(label.identity, dict) else (None,)
    wholes = (label.num_tokens, label.num_layers, label.block_rows, *(n for block in header.blocks for n in block))
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(whole) is int and 0 <= whole < 1 << 62 for whole in wholes)
        and isinstance(label.read_seconds, int | float)
        and 0 <= label.read_seconds < 1e15
    )


def parsed(content: bytes | bytearray) -> Header:
    """Parse a header.

    Raises:
        DamagedBook: the content is not a header.
    """
    try:
        written = json.loads(content)
        label = Label(**{**written["label"], "names": tuple(written["label"]["names"])})
        blocks = tuple(Block(*block) for block in written["blocks"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DamagedBook("its header cannot be understood") from error
    header = Header(label, blocks)
    if not is_plausible(header):
        raise DamagedBook("its header says what no header says")
    if (
        label.block_rows < 1
        or label.num_layers < 1
        or len(blocks) != 1 + label.num_layers + len(header.row_blocks(label.num_tokens))
    ):
        raise DamagedBook("its header does not fit its blocks")
    return header
