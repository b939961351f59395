"""The folder for everything that is kept."""

import os
from pathlib import Path

from app.context import upload_files
from core.errors import InvalidSetting


def data_dir(chosen: Path | str | None) -> Path:
    """The folder for everything that is kept, made if need be.

    Raises:
        InvalidSetting: it cannot be made or written to.
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
    """Where that folder is, or would be."""
    return Path(chosen).expanduser() if chosen else Path.home() / ".triforce-reader"
