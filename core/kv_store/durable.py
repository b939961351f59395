"""What a file system must be asked for so that a file is still there after a power cut. Standard library only."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """See that a new name is on disk, too, where a folder can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
