"""`python launch.py saved`: the books that need not be read again, and the limit of their size. Loads no model."""

import argparse
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from app.cli.output import print_json
from app.context.kept_documents import FOLDER as KEPT
from app.context.kept_documents import KeptDocuments
from app.documents.recognised import FOLDER as RECOGNISED
from app.documents.recognised import RecognisedPages
from app.formats import duration, plural
from app.runtime.data_folder import SHELF, data_dir
from core.errors import InvalidSetting
from core.kv_store.folder import BookFolder, SavedBook, amount

GIB = 1 << 30
TOLD = ("names", "model", "num_tokens", "read_seconds", "identity")  # of a book's label


def run(args: argparse.Namespace) -> int:
    """List, remove, clear, or set the limit. Returns 0.

    Raises:
        UnknownBook: there is none of that name. InvalidSetting: the name or number is missing or wrong. BookFolderFull:
            the limit cannot be written.
    """
    data = data_dir(args.data_dir)
    folder = BookFolder(data / SHELF)
    removed = act(folder, args.action, args.name)
    if args.action == "clear":
        RecognisedPages(data / RECOGNISED).forget()
        KeptDocuments(data / KEPT).clear()
    books, cap = folder.books(), folder.settings.cap_bytes
    total = sum(book.size_bytes for book in books)
    if args.json:
        told = {"folder": str(folder.path), "cap_bytes": cap, "keeping": folder.settings.keeping, "size_bytes": total}
        rows = {"books": [row(book) for book in books], "removed": [row(book) for book in removed]}
        print_json(told | rows | {"notices": folder.notices})
        return 0
    for book in removed:
        print(f"Removed {book.name} ({amount(book.size_bytes)}).")
    if args.action in ("list", "cap"):
        size = amount(total) if books else "nothing"
        print(f"{plural(len(books), 'book')}, {size} of {amount(cap)}, in {folder.path}")
        for book in books:
            print(line(book))
    for notice in folder.notices:
        print(notice, file=sys.stderr)
    return 0


def act(folder: BookFolder, action: str, name: str | None) -> list[SavedBook]:
    """Run the action; returns the removed books. Raises as `run`."""
    match action:
        case "list" | "clear" if name is not None:
            raise InvalidSetting(f"'saved {action}' takes no name.", hint=f"Leave out {name!r}.")
        case "clear":
            return folder.clear()
        case "remove" if name is None:
            raise InvalidSetting("Which book should be removed?", hint="Name one of: python launch.py saved list")
        case "remove":
            book = folder.named(str(name))
            return [book] if folder.remove(book) else []
        case "cap":
            before = folder.books()
            folder.choose(replace(folder.settings, cap_bytes=cap_of(name)))
            left = {book.id for book in folder.books()}
            return [book for book in before if book.id not in left]
    return []


def cap_of(text: str | None) -> int:
    """A typed number of GiB, in bytes. Raises InvalidSetting: not a number of at least 0."""
    try:
        number = float(text or "")
    except ValueError:
        number = -1.0
    if not 0 <= number < 1 << 20:
        raise InvalidSetting(
            f"{text or 'Nothing'} is no size for the saved books.", hint="Give GiB, for example: saved cap 40"
        )
    return int(number * GIB)


def row(book: SavedBook) -> dict[str, Any]:
    """The JSON of one book."""
    label = asdict(book.label)
    head = {"id": book.id, "size_bytes": book.size_bytes, "used": round(book.used, 3)}
    return head | {name: label[name] for name in TOLD}


def line(book: SavedBook) -> str:
    """One book for people."""
    age = duration(max(0.0, time.time() - book.used))
    return (
        f"  {book.id[:8]}  {amount(book.size_bytes):>9}  {book.label.num_tokens:>8,} tokens  used {age} ago  "
        f"{book.label.model}, {book.label.identity.get('dtype', '?')}  {book.name}"
    )
