"""Reads bytes from a hostile ZIP archive, under limits. Unpacks nothing to disk; names are keys, never paths.

Knows nothing of books. The sizes in the archive's directory may be false: they are checked, and then bytes are counted.
"""

import posixpath
import zipfile
import zlib
from typing import BinaryIO
from urllib.parse import unquote

from app.documents.messages import Reason

MAX_ENTRIES = 10_000
MAX_ENTRY_BYTES = 16_000_000  # of one file when unpacked: ten times a long novel
MAX_TOTAL_BYTES = 64_000_000  # of all files that are read, without pictures and fonts
MAX_RATIO = 200  # markup compresses by a factor of five to ten
RATIO_FROM_BYTES = 1_000_000  # a high ratio below this is harmless
SMALL_FILE, SMALL_TEXT = 100_000, 1_000_000  # bytes of a file, and characters or bytes of text that it may hold
MAX_TEXT_RATIO = 20  # of text to what a file has beyond that; texts compress by a factor of three to ten
CHUNK_BYTES = 1 << 16
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # all methods that EPUB allows
# Exceptions that zipfile lets through on malformed input.
MALFORMED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError, ValueError)


def most_text(num_bytes: int) -> int:
    """How much text, in characters or bytes, a file of so many bytes may hold: what follows its parser takes it all."""
    return SMALL_TEXT + MAX_TEXT_RATIO * max(0, num_bytes - SMALL_FILE)


class Refused(Exception):
    """The whole file is refused, with the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class RefusedEntry(Refused):
    """One file in the archive is refused, with the reason; whether the whole archive is, the caller decides."""


class BadEntry(RefusedEntry):
    """One file in the archive is missing, damaged, or packed in a way that is not read."""

    def __init__(self, reason: Reason = "damaged") -> None:
        super().__init__(reason)


def read_most(stream: BinaryIO, num_bytes: int) -> bytes:
    """A whole file.

    Raises:
        Refused: it has more bytes.
    """
    content = stream.read(num_bytes + 1)
    if len(content) > num_bytes:
        raise Refused("oversized")
    return content


class Archive:
    """A ZIP archive that is read file by file. `num_bytes` counts the bytes returned so far."""

    def __init__(
        self, stream: BinaryIO, max_entry_bytes: int = MAX_ENTRY_BYTES, max_total_bytes: int = MAX_TOTAL_BYTES
    ) -> None:
        """Read the directory.

        Args:
            max_entry_bytes: limit of one unpacked file.
            max_total_bytes: limit of all files that are read.
        Raises:
            Refused: the directory is missing or malformed, or lists too much.
        """
        if not zipfile.is_zipfile(stream):
            raise Refused("cut off")  # the directory is at the end
        try:
            self._zip = zipfile.ZipFile(stream)
        except MALFORMED as error:
            raise Refused("damaged") from error
        self._entries = {entry.filename: entry for entry in self._zip.infolist()}
        self.num_bytes = 0
        self._max_entry_bytes, self._max_total_bytes = max_entry_bytes, max_total_bytes
        if len(self._zip.infolist()) > MAX_ENTRIES:
            raise Refused("oversized")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        """All files, in the order of the directory."""
        return [name for name, entry in self._entries.items() if not entry.is_dir()]

    def find(self, folder: str, href: str) -> str:
        """The name that a reference in a file of that folder means; "": it is missing, or outside this archive."""
        path = href.partition("#")[0]
        names = (posixpath.normpath(posixpath.join(folder, name)) for name in (unquote(path), path) if name)
        return next((name for name in names if name in self), "")

    def read(self, name: str) -> bytes:
        """Read one whole file.

        Raises:
            BadEntry: it is missing, damaged, or packed in a way that is not read.
            RefusedEntry: it is encrypted, or it unpacks to more than it should.
            Refused: all that was read is more than it should be.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise BadEntry
        if entry.flag_bits & 1:
            raise RefusedEntry("password")
        if entry.compress_type not in METHODS:
            raise BadEntry("packed")
        inflated = entry.file_size > max(RATIO_FROM_BYTES, MAX_RATIO * entry.compress_size)
        if inflated or entry.file_size > self._max_entry_bytes:
            raise RefusedEntry("oversized")
        content = bytearray()
        try:
            with self._zip.open(entry) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    content += chunk
                    self.num_bytes += len(chunk)
                    if self.num_bytes > self._max_total_bytes:
                        raise Refused("oversized")
                    if len(content) > self._max_entry_bytes:
                        raise RefusedEntry("oversized")
        except MALFORMED as error:
            raise BadEntry from error
        return bytes(content)
