"""A folder of conversations, and programs on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.conversations.store import Conversations


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


@pytest.fixture
def program(folder: Path) -> Iterator[Callable[[], Conversations]]:
    """Another program on the same folder."""
    stores: list[Conversations] = []

    def start() -> Conversations:
        stores.append(Conversations(folder))
        return stores[-1]

    yield start
    for store in stores:
        store.close()
