"""Texts of documents that their reader wants kept: conversations open them again with one click.

A file for each text, named by its digest, readable by its owner alone; of a PDF a copy beside it, for images of its
pages. Nothing is written unasked.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, get_args

from app.context.context_documents import Book, digest_of
from app.documents.document import Chapter, Document, Format, Page
from app.private_files import size_of
from core.errors import CoreError
from core.files import replace_file, sweep_drafts

FOLDER = "kept"  # in the data folder
MOST_BYTES = 4 << 30  # of all files; those that were not opened for longest go
TUPLES = ("warnings", "picture_pages", "recognised_pages", "authors")


class KeptTextGone(CoreError):
    """A text is no longer kept, or its file is damaged."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The text of {name} is no longer kept.", hint="Drop its file again to go on.")


class Kept(NamedTuple):
    """A text, and the copy of its PDF."""

    document: Document
    file: Path | None


class KeptDocuments:
    """The folder; without one nothing is kept."""

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self._most_bytes = folder, most_bytes

    def has(self, digest: bytes) -> bool:
        """Whether a text is kept."""
        return self.folder is not None and self._text(digest).is_file()

    def keep(self, book: Book) -> None:
        """Write a book's text, and of a PDF its file; what is there stays.

        Raises:
            CoreError: the disk refuses.
        """
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if book.file is not None and book.file.is_file() and not self._copy(book.digest).is_file():
                replace_file(self._copy(book.digest), book.file)
            if not self.has(book.digest):
                replace_file(self._text(book.digest), json.dumps(asdict(book.document)).encode("ascii"))
        except OSError as error:
            raise CoreError(
                f"{book.document.name} could not be kept ({error.strerror}).", hint="Make room in the data folder."
            ) from error
        self._make_room(book.digest)

    def load(self, digest: bytes, name: str) -> Kept:
        """A text by its digest; `name` is told if it is gone.

        Raises:
            KeptTextGone.
        """
        path, copy = self._text(digest), self._copy(digest)
        try:
            document = parsed(json.loads(path.read_text(encoding="ascii")))
            if digest_of(document.text) != digest:
                raise ValueError("another text")
            os.utime(path)
        except (OSError, ValueError, TypeError, KeyError, AssertionError, RecursionError) as error:
            if not isinstance(error, OSError):
                self.forget(digest)  # so that it is kept again
            raise KeptTextGone(name) from error
        return Kept(document, copy if copy.is_file() else None)

    def forget(self, digest: bytes) -> None:
        """Delete a text and its copy."""
        if self.folder is None:
            return
        for path in (self._text(digest), self._copy(digest)):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete everything."""
        for path in list(self._files()):
            path.unlink(missing_ok=True)

    def _make_room(self, newest: bytes) -> None:
        assert self.folder is not None, "nothing is kept"
        sweep_drafts(self.folder)
        kept = {bytes.fromhex(path.stem) for path in self._files()}
        for digest in sorted(kept - {newest}, key=lambda digest: _used(self._text(digest))):
            if sum(map(size_of, self._files())) <= self._most_bytes:
                return
            self.forget(digest)

    def _files(self) -> Iterator[Path]:
        if self.folder is not None:
            yield from (path for path in self.folder.glob(f"{'[0-9a-f]' * 64}.*") if path.suffix in (".json", ".pdf"))

    def _text(self, digest: bytes) -> Path:
        assert self.folder is not None, "nothing is kept"
        return self.folder / f"{digest.hex()}.json"

    def _copy(self, digest: bytes) -> Path:
        return self._text(digest).with_suffix(".pdf")


def parsed(data: dict[str, Any]) -> Document:
    """A document from its JSON. Raises ValueError, TypeError, KeyError, AssertionError: it is none."""
    if data["format"] not in get_args(Format) or data["direction"] not in ("ltr", "rtl"):
        raise ValueError("no document")
    texts = (data["name"], data["title"], data["text"], data["language"], data["cover"])
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("no text")
    pages = tuple(Page(**page) for page in data["pages"])
    chapters = tuple(map(_chapter, data["chapters"]))
    return Document(**(data | {name: tuple(data[name]) for name in TUPLES} | {"pages": pages, "chapters": chapters}))


def _chapter(data: dict[str, Any]) -> Chapter:
    return Chapter(**(data | {"sections": tuple(map(_chapter, data.get("sections", ())))}))


def _used(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
