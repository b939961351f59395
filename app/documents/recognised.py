"""Recognised text on disk: a file for each document and engine, a line for each page, readable by its owner alone.

Lines are added as pages are recognised, so that nothing is lost by Stop or a kill. A damaged line is no line: its page is
recognised again.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "recognised"  # in the data folder
MOST_BYTES = 256 << 20  # of all files; those that were not used for longest go
ENDING = ".jsonl"


def file_digest(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class RecognisedPages:
    """The texts that one engine has recognised."""

    folder: Path
    engine: str  # its name and version: another one is asked again
    most_bytes: int = MOST_BYTES

    def load(self, digest: str) -> dict[int, str]:
        """The texts of a document by the indices of their pages."""
        texts: dict[int, str] = {}
        with suppress(OSError):
            path = self._path(digest)
            for line in path.read_bytes().splitlines()[: self.most_bytes]:
                texts |= page_of(line)
            os.utime(path)
        return texts

    def add(self, digest: str, index: int, text: str) -> None:
        """Keep the text of a page. What cannot be written is not kept."""
        content = json.dumps([index, text])
        line = f"{zlib.crc32(content.encode())} {content}\n".encode()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(len(line), self._path(digest))
            handle = os.open(self._path(digest), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    def forget(self, digest: str) -> None:
        """Delete what any engine has recognised of a document."""
        for path in self._files():
            if path.name.startswith(digest):
                with suppress(OSError):
                    path.unlink()

    def clear(self) -> int:
        """Delete everything. Returns the number of documents."""
        files = list(self._files())
        for path in files:
            with suppress(OSError):
                path.unlink()
        return len(files)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}-{self.engine}{ENDING}"

    def _files(self) -> Iterator[Path]:
        return self.folder.glob(f"*{ENDING}") if self.folder.is_dir() else iter(())

    def _make_room(self, num_bytes: int, own: Path) -> None:
        """Delete other files, the oldest first, until as many bytes fit.

        Raises:
            OSError: they do not fit beside the document's own.
        """
        sizes = {path: path.stat() for path in self._files()}
        total = sum(one.st_size for one in sizes.values()) + num_bytes
        for path in sorted(sizes, key=lambda path: sizes[path].st_mtime):
            if total > self.most_bytes and path != own:
                path.unlink()
                total -= sizes[path].st_size
        if total > self.most_bytes:
            raise OSError("no room")


def page_of(line: bytes) -> dict[int, str]:
    """The page that a line holds; nothing if it is damaged."""
    checksum, _, content = line.partition(b" ")
    try:
        if int(checksum) != zlib.crc32(content):
            return {}
        index, text = json.loads(content)
    except ValueError:
        return {}
    return {index: text} if isinstance(index, int) and isinstance(text, str) else {}
