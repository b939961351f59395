"""Conversations in one SQLite file: states of pages and programs are merged by its own statements.

A row of `exchanges` is a node of the tree, in the order they came: parents before their children. `removed` marks a
node that somebody removed; its content goes as soon as nothing that was not removed follows it, its id stays.
"""

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path

import psutil

from app.conversations.schema import FORMAT, VERSION, NewerVersion, answer_document, load
from app.conversations.tree import ROOT, Dialogue

NAME = "conversations.sqlite"
BUSY_SECONDS = 5.0  # that a writer waits for another program's
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NETWORKS = {
    "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "fuse.rclone", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs",
    "nfs4", "smb3", "smbfs", "virtiofs", "webdav",
}  # fmt: skip

SCHEMA = (
    """CREATE TABLE conversations (
        id TEXT PRIMARY KEY, title TEXT, titled INTEGER, created TEXT, changed TEXT, tab TEXT, head TEXT,
        book_title TEXT, book_digest TEXT, num_tokens INTEGER,
        stamp TEXT  -- another one after every write
    )""",
    """CREATE TABLE documents (
        conversation TEXT, position INTEGER, name TEXT, part TEXT, digest TEXT, choice TEXT,
        PRIMARY KEY (conversation, position)
    )""",
    """CREATE TABLE exchanges (
        number INTEGER PRIMARY KEY, conversation TEXT, id TEXT, parent TEXT, asked TEXT, answered INTEGER,
        question TEXT,  -- NULL: its content is gone
        answer TEXT,  -- JSON
        removed INTEGER NOT NULL DEFAULT 0,
        UNIQUE (conversation, id)
    )""",
    f"PRAGMA user_version = {VERSION}",
)
SAVE_CONVERSATION = """
    INSERT INTO conversations VALUES (
        :id, :title, :titled, :created, :changed, :tab, :head, :book_title, :book_digest, :num_tokens, :stamp)
    ON CONFLICT (id) DO UPDATE SET
        title = CASE WHEN (excluded.titled, excluded.title) > (titled, title) THEN excluded.title ELSE title END,
        titled = max(titled, excluded.titled), changed = max(changed, excluded.changed),
        tab = excluded.tab, head = excluded.head, book_title = excluded.book_title,
        book_digest = excluded.book_digest, num_tokens = excluded.num_tokens, stamp = excluded.stamp"""
SAVE_EXCHANGE = """
    INSERT INTO exchanges (conversation, id, parent, asked, answered, question, answer) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (conversation, id) DO UPDATE SET
        number = CASE WHEN question IS NULL THEN (SELECT max(number) + 1 FROM exchanges) ELSE number END,
        parent = excluded.parent, asked = excluded.asked, answered = excluded.answered,
        question = excluded.question, answer = excluded.answer"""
REMOVE = """
    INSERT INTO exchanges (conversation, id, removed) VALUES (?, ?, 1)
    ON CONFLICT (conversation, id) DO UPDATE SET removed = 1"""
FORGET = """
    UPDATE exchanges SET parent = NULL, asked = NULL, answered = NULL, question = NULL, answer = NULL
    WHERE conversation = :id AND question IS NOT NULL AND id NOT IN (
        WITH RECURSIVE needed (id) AS (
            SELECT id FROM exchanges WHERE conversation = :id AND NOT removed
            UNION SELECT parent FROM exchanges JOIN needed USING (id) WHERE conversation = :id)
        SELECT id FROM needed)"""
IS_EMPTY = "SELECT NOT EXISTS (SELECT 1 FROM exchanges WHERE conversation = ? AND question IS NOT NULL)"


def write(db: sqlite3.Connection, dialogue: Dialogue) -> None:
    """Merge a state into the database, in an open transaction.

    The newest answers and title win. What is new stays, with the nodes that it follows, whoever removed those.
    """
    rows = db.execute("SELECT id, question, answered FROM exchanges WHERE conversation = ?", (dialogue.id,))
    known = {row["id"]: -1 if row["question"] is None else row["answered"] for row in rows}
    newer = [node for node in dialogue.nodes if node.answered > known.get(node.id, -1)]
    book = dialogue.book
    values = {name: getattr(dialogue, name) for name in ("id", "title", "titled", "created", "changed", "tab", "head")}
    values |= {"book_title": book.title, "book_digest": book.digest, "num_tokens": book.num_tokens}
    db.execute(SAVE_CONVERSATION, values | {"stamp": secrets.token_hex(8)})
    db.execute("DELETE FROM documents WHERE conversation = ?", (dialogue.id,))
    columns = enumerate(zip_longest(book.names, book.parts, book.documents, book.choices))
    documents = [(dialogue.id, position, *values) for position, values in columns]
    db.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", documents)
    for node in newer:
        answer = None if node.exchange is None else json.dumps(answer_document(node.exchange))
        db.execute(SAVE_EXCHANGE, (dialogue.id, node.id, node.parent, node.asked, node.answered, node.question, answer))
    db.executemany(REMOVE, [(dialogue.id, node_id) for node_id in sorted(dialogue.removed)])
    _forget(db, dialogue.id)


def delete(db: sqlite3.Connection, dialogue_id: str) -> None:
    """Delete a conversation, in an open transaction."""
    db.execute("UPDATE exchanges SET removed = 1 WHERE conversation = ?", (dialogue_id,))
    _forget(db, dialogue_id)


def _forget(db: sqlite3.Connection, dialogue_id: str) -> None:
    db.execute(FORGET, {"id": dialogue_id})
    if db.execute(IS_EMPTY, (dialogue_id,)).fetchone()[0]:
        db.execute("DELETE FROM conversations WHERE id = ?", (dialogue_id,))
        db.execute("DELETE FROM documents WHERE conversation = ?", (dialogue_id,))


def read(db: sqlite3.Connection, dialogue_id: str) -> Dialogue | None:
    """A conversation, in an open transaction. Raises Damaged."""
    row = db.execute("SELECT * FROM conversations WHERE id = ?", (dialogue_id,)).fetchone()
    if row is None:
        return None
    documents = db.execute(
        "SELECT * FROM documents WHERE conversation = ? ORDER BY position", (dialogue_id,)
    ).fetchall()
    rows = db.execute("SELECT * FROM exchanges WHERE conversation = ? ORDER BY number", (dialogue_id,)).fetchall()
    names = {"name": "names", "part": "parts", "digest": "documents", "choice": "choices"}
    book = {to: [one[name] for one in documents if one[name] is not None] for name, to in names.items()}
    book |= {"title": row["book_title"], "digest": row["book_digest"], "num_tokens": row["num_tokens"]}
    own = {"format": FORMAT, "version": VERSION, "book": book, "removed": [one["id"] for one in rows if one["removed"]]}
    nodes = ",".join(
        f'{json.dumps(dict(one, answer=None))[:-1]}, "answer": {one["answer"] or "null"}}}'
        for one in rows
        if one["question"] is not None
    )
    dialogue = load(f'{json.dumps(dict(row) | own)[:-1]}, "nodes": [{nodes}]}}', dialogue_id)
    shown = dialogue.head == row["head"]  # else somebody removed it
    return dialogue if shown else dialogue.show(dialogue.newest_below(ROOT))


@contextmanager
def in_memory() -> Iterator[sqlite3.Connection]:
    """An empty database with a transaction."""
    with closing(opened(":memory:")) as db:
        db.execute("BEGIN")
        yield db


def opened(path: Path | str, *, read_only: bool = False, journal: str = "WAL") -> sqlite3.Connection:
    """Open a database, with its tables. Raises sqlite3.Error, NewerVersion."""
    name = f"{Path(path).absolute().as_uri()}?mode=ro" if read_only else path
    db = sqlite3.connect(name, BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=read_only)
    db.row_factory, db.text_factory = sqlite3.Row, lambda text: text.decode("utf-8", "replace")
    try:
        if not read_only:
            _prepare(db, journal)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, journal: str) -> None:
    version = "PRAGMA user_version"
    if (found := db.execute(version).fetchone()[0]) > VERSION:
        raise NewerVersion(f"{NAME} was written by a newer version of the reader")
    with suppress(sqlite3.OperationalError):  # another program opens it, or the disk cannot: as it is, then
        db.execute(f"PRAGMA journal_mode = {journal}")
    db.execute("PRAGMA secure_delete = ON")
    db.execute("PRAGMA synchronous = FULL")
    if found == 0:
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA if db.execute(version).fetchone()[0] == 0 else ():
                db.execute(statement)


def is_whole(db: sqlite3.Connection) -> bool:
    """Whether a file is whole, where needed with its indices made anew, which loses no row. Raises sqlite3.Error."""
    with suppress(sqlite3.IntegrityError), db:  # two rows of one key: the table itself is wrong
        db.execute("BEGIN IMMEDIATE")
        for repair in ("", "REINDEX"):
            db.execute(repair)
            if db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok":
                return True
        db.rollback()
    return False


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file is broken."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE


def on_network(path: Path) -> bool:
    """Whether a file is on a network file system, where programs on two machines cannot share a write-ahead log."""
    if os.name == "nt":
        return str(path.absolute()).startswith("\\\\")
    above = set(map(str, path.resolve().parents))
    mounts = psutil.disk_partitions(all=True)
    inside = [(len(mount.mountpoint), mount.fstype) for mount in mounts if mount.mountpoint in above]
    return max(inside, default=(0, ""))[1] in NETWORKS
