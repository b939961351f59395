"""Books read once for many engines: keys and values wait in a folder and are loaded into the next engine.

A saved book comes back bit for bit, so an engine that loads one measures what it would have measured after reading.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from core.engine import Engine
from core.errors import BookFolderFull
from core.kv_store.engine_store import BookStore, refusal
from core.kv_store.folder import BookFolder


class Readings:
    """Readings of the engines whose landmarks are of chunks of this size; the others read for themselves.

    Args:
        folder: where they wait: as much as the cache of each book.
        chunk_size: tokens.
    """

    def __init__(self, folder: Path, chunk_size: int) -> None:
        self._folder, self._chunk_size = BookFolder(folder), chunk_size

    def read(self, engine: Engine, prompt_ids: Sequence[int]) -> None:
        """Bring an engine to all tokens of a prompt but the last. A full disk costs only time."""
        keeps = engine.config.retrieval.chunk_size == self._chunk_size and refusal(engine) is None
        store = BookStore(engine, self._folder) if keeps else None
        if store:
            for _ in store.fetch(prompt_ids):
                pass
        for _ in engine.read(prompt_ids):
            pass
        if store is None:
            return
        read = prompt_ids[:-1]
        if not store.is_saved(read):
            with suppress(BookFolderFull):
                for _ in store.keep(store.read_book(read, (), 0.0)):
                    pass
