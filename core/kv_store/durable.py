"""File system calls that keep a file through a power cut. Standard library only."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Sync a folder, and so a new name in it, where folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
