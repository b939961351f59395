"""Books read once for many engines: keys and values wait in a folder and are loaded into the next engine.

A saved book comes back bit for bit, so an engine that loads one measures what it would have measured after reading.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from core.engine import Engine
from core.errors import BookFolderFull
from core.kv_store.engine_store import BookStore, holds_all_rows
from core.kv_store.folder import BookFolder


class Readings:
    """Readings of the first engine, and of those after it that compute the same keys, values and landmarks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._family = BookFolder(folder), ""

    def read(self, engine: Engine, prompt_ids: Sequence[int]) -> None:
        """Bring an engine to all tokens of a prompt but the last. A full disk costs only time."""
        store = BookStore(engine, self._folder) if holds_all_rows(engine) else None
        if store:
            for _ in store.fetch(prompt_ids):
                pass
        for _ in engine.read(prompt_ids):
            pass
        if store is None:
            return
        self._family = self._family or store.family.digest
        read = prompt_ids[:-1]
        if store.family.digest == self._family and not store.is_saved(read):
            with suppress(BookFolderFull):
                for _ in store.keep(store.read_book(read, (), 0.0)):
                    pass
