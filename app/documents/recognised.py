"""Recognised text on disk: a file for each document and engine, a line for each page, readable by its owner alone.

Lines are added as pages are recognised, so that nothing is lost by Stop or a kill. A damaged line is no line: its page
is recognised again.
"""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "recognised"  # in the data folder
ENDING = ".jsonl"


@dataclass(frozen=True, slots=True)
class RecognisedPages:
    """The folder of recognised texts."""

    folder: Path

    def load(self, digest: str, engine: str | None) -> dict[int, str]:
        """The texts of a document by the indices of their pages.

        Args:
            engine: its name and version; None: there is none now, so that any engine's texts are taken.
        """
        texts: dict[int, str] = {}
        paths = [self._path(digest, engine)] if engine else sorted(self._files(digest))
        for path in paths:
            with suppress(OSError):
                for line in path.read_bytes().splitlines():
                    checksum, _, content = line.partition(b" ")
                    if checksum == b"%d" % zlib.crc32(content):
                        index, text = json.loads(content)
                        texts[index] = text
        return texts

    def add(self, digest: str, engine: str, index: int, text: str) -> None:
        """Keep the text of a page. What cannot be written is not kept."""
        content = json.dumps([index, text])
        line = f"{zlib.crc32(content.encode())} {content}\n".encode()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._path(digest, engine), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    def forget(self, digest: str = "") -> None:
        """Delete what any engine has recognised of a document; "": of all."""
        for path in self._files(digest):
            with suppress(OSError):
                path.unlink()

    def _path(self, digest: str, engine: str) -> Path:
        return self.folder / f"{digest}-{engine}{ENDING}"

    def _files(self, digest: str = "") -> Iterator[Path]:
        return self.folder.glob(f"{digest}*{ENDING}") if self.folder.is_dir() else iter(())
