"""Documents that come through a pipe: `-` and named pipes, copied to a file that can be read several times."""

import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from app.documents.errors import DocumentTooLarge, NotRead

STDIN = Path("-")
NAME = "stdin"  # of the document
MOST_BYTES = 1 << 30
BLOCK = 1 << 20


def name_of(file: Path) -> str:
    """The name of a document on the command line."""
    return NAME if file == STDIN else file.name


@contextmanager
def readable(file: Path) -> Iterator[Path]:
    """The file itself, or for the time of the context a copy of what its pipe delivers.

    Raises:
        DocumentTooLarge, NotRead: of a pipe.
    """
    if file != STDIN and not _is_pipe(file):
        yield file
        return
    with TemporaryDirectory(prefix="triforce-reader-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / (name_of(file) or NAME)
        try:
            if file == STDIN:
                _copy(sys.stdin.buffer, copy)
            else:
                with file.open("rb") as stream:
                    _copy(stream, copy)
        except OSError as error:
            raise NotRead(name_of(file), error) from error
        yield copy


def _is_pipe(file: Path) -> bool:
    try:
        return stat.S_ISFIFO(file.stat().st_mode)
    except (OSError, ValueError):  # whoever opens it will say so
        return False


def _copy(stream: BinaryIO, copy: Path) -> None:
    length = 0
    with copy.open("xb") as file:
        while block := stream.read(BLOCK):
            length += len(block)
            if length > MOST_BYTES:
                raise DocumentTooLarge(copy.name, f"more than {MOST_BYTES >> 20:,} MiB")
            file.write(block)
