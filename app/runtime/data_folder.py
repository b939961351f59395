"""The folder for all data on disk."""

import os
import sys
from pathlib import Path

from app.private_files import make_private
from core.errors import NotPossibleHere

SHELF = "shelf"  # the folder of saved books in it
ANOTHER = "Choose another with --data-dir."
OPEN = "Warning: other users of this machine may open {}: its file system keeps no rights. " + ANOTHER


def data_dir(chosen: Path | str | None) -> Path:
    """The folder for all data on disk, created if needed, and closed to other users even if it existed.

    Raises:
        NotPossibleHere: it cannot be created, closed or written to.
    """
    try:
        folder = data_place(chosen)
        make_private(folder)
    except ValueError as error:  # a NUL in the name
        raise NotPossibleHere(f"The data folder {chosen} cannot be made ({error}).", hint=ANOTHER) from error
    if not os.access(folder, os.W_OK):
        raise NotPossibleHere(f"The data folder {folder} cannot be written to.", hint=ANOTHER)
    if os.name == "posix" and folder.stat().st_mode & 0o077:
        print(OPEN.format(folder), file=sys.stderr)
    return folder


def data_place(chosen: Path | str | None) -> Path:
    """Where that folder is, or would be created. Raises NotPossibleHere where nobody knows the home."""
    try:
        return Path(chosen).expanduser() if chosen else Path.home() / ".triforce-reader"
    except RuntimeError as error:
        told = f"The data folder {chosen or '~/.triforce-reader'} cannot be made"
        raise NotPossibleHere(f"{told} ({error}).", hint=ANOTHER) from error
