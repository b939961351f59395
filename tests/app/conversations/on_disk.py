"""The database of conversations as the operating system, or another program, has it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from app.conversations.database import NAME
from app.conversations.store import Conversations
from app.conversations.tree import Dialogue
from tests.app.fakes import SECONDS

LIMIT = "max_page_count = 1000000"


def refuse(store: Conversations, pragma: str = "max_page_count = 1") -> None:
    """Let the disk be full for this program, or any other state of SQLite's."""
    connect = type(store._disk)._connection.__get__(store._disk)

    @contextmanager
    def connection() -> Iterator[sqlite3.Connection]:
        with connect() as db:
            db.execute(f"PRAGMA {pragma}")
            yield db

    store._disk._connection = connection  # type: ignore[method-assign]


def text_of(folder: Path) -> set[str]:
    """All questions and titles in the database."""
    with closing(sqlite3.connect(folder / NAME)) as db:
        rows = db.execute("SELECT question FROM exchanges UNION SELECT title FROM conversations").fetchall()
    return {row[0] for row in rows} - {None}


def saved(store: Conversations, dialogue: Dialogue) -> Dialogue:
    """The conversation, once it is written."""
    store.save(dialogue)
    assert store.flush(SECONDS)
    return dialogue
