"""The folder for all data on disk."""

import os
from pathlib import Path

from app.context import upload_files
from core.errors import NotPossibleHere


def data_dir(chosen: Path | str | None) -> Path:
    """The folder for all data on disk, created if needed.

    Raises:
        InvalidSetting: it cannot be created or written to.
    """
    try:
        folder = data_place(chosen)
        dropped = upload_files.make_folder(folder)
    except (OSError, RuntimeError, ValueError) as error:  # no home; a NUL in the name
        told = f"The data folder {chosen or '~/.triforce-reader'} cannot be made"
        why = getattr(error, "strerror", None) or str(error)
        raise NotPossibleHere(f"{told} ({why}).", hint="Choose another with --data-dir.") from error
    if not (os.access(dropped, os.W_OK) and os.access(folder, os.W_OK)):
        raise NotPossibleHere(f"The data folder {folder} cannot be written to.", hint="Choose another with --data-dir.")
    return folder


def data_place(chosen: Path | str | None) -> Path:
    """Where that folder is, or would be created. Raises RuntimeError where nobody knows the home."""
    return Path(chosen).expanduser() if chosen else Path.home() / ".triforce-reader"
