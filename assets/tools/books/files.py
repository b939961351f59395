"""Writes files all together or not at all; replaces existing ones only on request."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from core.errors import CoreError


class NotWritten(CoreError):
    """A file cannot or must not be written."""


class NoFolder(NotWritten):
    """A folder was named that is not there."""

    wrong_usage = True


def check_free(paths: Iterable[Path], *, force: bool) -> None:
    """Check before any work that files can be written.

    Args:
        force: existing files may be replaced.
    Raises:
        NoFolder, NotWritten: a folder is missing, or the name is taken.
    """
    for path in paths:
        if not path.parent.is_dir():
            raise NoFolder(f"There is no folder {path.parent}.", hint="Make it first, or choose another one.")
        if path.is_dir():
            raise NotWritten(f"{path.name} is a folder.", hint="Choose another name.")
        if os.path.lexists(path) and not force:
            raise NotWritten(f"{path.name} exists already.", hint="Choose another name, or replace it with --force.")


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write all files or none.

    Raises:
        NotWritten: the system refused; no file is left.
    """
    parts = {path: path.with_name(f".{os.getpid()}-{number}.part") for number, path in enumerate(contents)}
    path = next(iter(contents))
    try:
        for path, part in parts.items():
            with part.open("wb") as stream:
                stream.write(contents[path])
                stream.flush()
                os.fsync(stream.fileno())
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        raise NotWritten(
            f"{path.name} cannot be written ({error.strerror or type(error).__name__}).",
            hint="Choose a folder that you may write to and that has room.",
        ) from error
    finally:
        for part in parts.values():
            if part.exists():
                part.unlink()
