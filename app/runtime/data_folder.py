"""The folder for all data on disk."""

import os
from pathlib import Path

from app.context import upload_files
from core.errors import InvalidSetting


def data_dir(chosen: Path | str | None) -> Path:
    """The folder for all data on disk, created if needed.

    Raises:
        InvalidSetting: it cannot be created or written to.
    """
    folder = data_place(chosen)
    try:
        dropped = upload_files.make_folder(folder)
    except OSError as error:
        raise InvalidSetting(
            f"The data folder {folder} cannot be made ({error.strerror}).", hint="Choose another with --data-dir."
        ) from error
    if not os.access(dropped, os.W_OK):
        raise InvalidSetting(f"The data folder {folder} cannot be written to.", hint="Choose another with --data-dir.")
    return folder


def data_place(chosen: Path | str | None) -> Path:
    """Where that folder is, or would be created."""
    return Path(chosen).expanduser() if chosen else Path.home() / ".triforce-reader"
