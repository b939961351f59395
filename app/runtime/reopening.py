"""Where the books of a conversation are found again: samples, and texts that were kept."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from app.context.context_documents import Book
from app.context.kept_documents import KeptDocuments, KeptTextGone
from app.context.samples import sample_file
from app.context.uploads import Upload
from app.conversations.tree import BookRef
from app.documents.document import Extracting
from app.documents.ocr import Ocr
from app.runtime.extracting import extract_one
from app.runtime.sessions import Session
from core.errors import CoreError


class Source(NamedTuple):
    """One document of a conversation's book."""

    name: str
    digest: bytes  # of its text; b"": written by an earlier version, which did not record it
    choice: str  # of its parts, see `page_ranges.written`
    sample: Path | None

    def is_there(self, kept: KeptDocuments) -> bool:
        """It can be opened without its reader."""
        return self.sample is not None or (bool(self.digest) and kept.has(self.digest))


def sources(ref: BookRef) -> tuple[Source, ...]:
    """The documents of a conversation's book, in order."""
    known = len(ref.documents) == len(ref.choices) == len(ref.names)
    rows: Iterable[tuple[str, str, str]] = ((name, "", "") for name in ref.names)
    if known:
        rows = zip(ref.names, ref.documents, ref.choices, strict=True)
    return tuple(
        Source(name, bytes.fromhex(digest), choice, sample_file(name) if known or not ref.parts else None)
        for name, digest, choice in rows
    )


def missing(ref: BookRef, kept: KeptDocuments) -> tuple[str, ...]:
    """The names of the documents that only their reader can bring; none: one click opens the book."""
    return tuple(one.name for one in sources(ref) if not one.is_there(kept))


def bring(session: Session, pending: Sequence[Upload], wanted: Sequence[Source], ocr: Ocr) -> Iterator[Extracting]:
    """Bring the documents into their uploads; one that is gone fails alone, in one line."""
    for upload, source in zip(pending, wanted, strict=True):
        upload.choice = source.choice
        try:
            if source.digest and session.kept.has(source.digest):
                upload.document, upload.file = session.kept.load(source.digest, source.name)
                upload.stage = "extracted"
            elif source.sample is not None:
                yield from extract_one(upload, source.sample, session.uploads.insert, ocr)
            else:
                raise KeptTextGone(source.name)
        except CoreError as error:
            upload.fail(error)


def keep_texts(session: Session) -> None:
    """Keep the texts of the open book, so that its conversations can open it. Raises CoreError: the disk refuses."""
    for book in _own(session):
        session.kept.keep(book)


def forget_texts(session: Session) -> None:
    """Delete the kept texts of the open book; it stays open."""
    for book in session.book.library.books if session.book else ():
        session.kept.forget(book.digest)


def keeping(session: Session) -> bool | None:
    """Whether all texts of the open book are kept; None: there is nothing to keep, or no place."""
    own = _own(session)
    return all(session.kept.has(book.digest) for book in own) if own and session.kept.folder is not None else None


def _own(session: Session) -> list[Book]:
    """The open books whose text may be kept: no samples, and none while nothing is written."""
    books = session.book.library.books if session.book and not session.incognito else ()
    return [book for book in books if sample_file(book.document.name) is None]
