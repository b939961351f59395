"""`python launch.py saved`: the books that need not be read again, and the limit of their size. Loads no model."""

import argparse
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from app.cli.reading import print_json
from app.context.kept_documents import FOLDER as KEPT
from app.context.kept_documents import KeptDocuments
from app.documents.recognised import FOLDER as RECOGNISED
from app.documents.recognised import RecognisedPages
from app.formats import duration, plural
from app.runtime.data_folder import SHELF, data_dir
from core.errors import InvalidSetting
from core.kv_store.folder import BookFolder, SavedBook, amount

GIB = 1 << 30


def run(args: argparse.Namespace) -> int:
    """List, remove, clear, or set the limit. Returns 0.

    Raises:
        UnknownBook: there is none of that name. InvalidSetting: the name or number is missing or wrong. BookFolderFull:
            the limit cannot be written.
    """
    folder = BookFolder(data_dir(args.data_dir) / SHELF)
    removed = act(folder, args.action, args.name)
    if args.action == "clear":
        RecognisedPages(data_dir(args.data_dir) / RECOGNISED).forget()
        KeptDocuments(data_dir(args.data_dir) / KEPT).clear()
    books = folder.books()
    if args.json:
        print_json(document(folder, books, removed))
        return 0
    for book in removed:
        print(f"Removed {book.name} ({amount(book.size_bytes)}).")
    if args.action in ("list", "cap"):
        print("\n".join(lines(folder, books)))
    for notice in folder.notices:
        print(notice, file=sys.stderr)
    return 0


def act(folder: BookFolder, action: str, name: str | None) -> list[SavedBook]:
    """Run the action; returns the removed books. Raises as `run`."""
    if action in ("list", "clear") and name is not None:
        raise InvalidSetting(f"'saved {action}' takes no name.", hint=f"Leave out {name!r}.")
    if action == "clear":
        return folder.clear()
    if action == "remove":
        if name is None:
            raise InvalidSetting("Which book should be removed?", hint="Name one of: python launch.py saved list")
        book = folder.named(name)
        return [book] if folder.remove(book) else []
    if action == "cap":
        before = folder.books()
        folder.choose(replace(folder.settings, cap_bytes=cap_of(name)))
        left = {book.id for book in folder.books()}
        return [book for book in before if book.id not in left]
    return []


def cap_of(text: str | None) -> int:
    """A typed number of GiB, in bytes.

    Raises:
        InvalidSetting: not a number of at least 0.
    """
    try:
        number = float(text or "")
    except ValueError:
        number = -1.0
    if not 0 <= number < 1 << 20:
        raise InvalidSetting(
            f"{text or 'Nothing'} is no size for the saved books.", hint="Give GiB, for example: saved cap 40"
        )
    return int(number * GIB)


def document(folder: BookFolder, books: list[SavedBook], removed: list[SavedBook]) -> dict[str, Any]:
    """The JSON of all books."""
    settings = folder.settings
    return {
        "folder": str(folder.path),
        "cap_bytes": settings.cap_bytes,
        "keeping": settings.keeping,
        "size_bytes": sum(book.size_bytes for book in books),
        "books": [row(book) for book in books],
        "removed": [row(book) for book in removed],
        "notices": folder.notices,
    }


def row(book: SavedBook) -> dict[str, Any]:
    """The JSON of one book."""
    label = asdict(book.label)
    told = {name: label[name] for name in ("names", "model", "num_tokens", "read_seconds", "identity")}
    return {"id": book.id, "size_bytes": book.size_bytes, "used": round(book.used, 3), **told}


def lines(folder: BookFolder, books: list[SavedBook]) -> list[str]:
    """All books for people."""
    total = amount(sum(book.size_bytes for book in books)) if books else "nothing"
    head = f"{plural(len(books), 'book')}, {total} of {amount(folder.settings.cap_bytes)}, in {folder.path}"
    return [head, *(line(book) for book in books)]


def line(book: SavedBook) -> str:
    """One book for people."""
    age = duration(max(0.0, time.time() - book.used))
    return (
        f"  {book.id[:8]}  {amount(book.size_bytes):>9}  {book.label.num_tokens:>8,} tokens  used {age} ago  "
        f"{book.label.model}, {book.label.identity.get('dtype', '?')}  {book.name}"
    )
