"""Documents into their uploads: out of files, or found again, of samples and of texts that were kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from app.context.context_documents import Book
from app.context.kept_documents import KeptDocuments, KeptTextGone
from app.context.samples import sample_file
from app.context.uploads import Interrupted, Upload
from app.conversations.tree import BookRef
from app.documents.bundle import extract_documents
from app.documents.document import Document, Extracting
from app.documents.ocr import Ocr
from app.documents.page_image import draw_cover
from app.documents.sniff import kind_of
from app.runtime.sessions import Session
from core.errors import CoreError


def extract_one(
    upload: Upload, file: Path, insert: Callable[[Upload, Sequence[Document]], None], ocr: Ocr
) -> Iterator[Extracting]:
    """Extract a file's text into its upload; of a ZIP file the first, and the others into new uploads behind it."""
    if not ocr.recognise:
        upload.stage = "extracting"
    found: list[Document] = []
    with ThreadPoolExecutor(1) as beside, closing(extract_documents(file, ocr=ocr)) as steps:
        cover = beside.submit(cover_of, file, upload.name)  # it takes as long as a short text
        for step in steps:
            if upload.stop.is_set() and not ocr.recognise:
                raise Interrupted(upload.name)
            if isinstance(step, Document):
                found.append(step)
            else:
                if step.recognising is ocr.recognise:
                    upload.num_done, upload.num_pages = step.num_done, step.num_pages
                    upload.seconds_left = step.seconds_left
                yield step
    insert(upload, found[1:])
    if found[0].format == "pdf" and is_pdf(file):
        upload.file = file
        found[0] = replace(found[0], cover=cover.result())
    upload.name, upload.document, upload.stage = found[0].name, found[0], "extracted"


def cover_of(file: Path, name: str) -> str:
    """The first page of a PDF as a small picture; "" without one. Its problems are told by who reads the text."""
    with suppress(CoreError, OSError):
        return draw_cover(file, name) if is_pdf(file) else ""
    return ""


def is_pdf(file: Path) -> bool:
    """Whether a file is a PDF itself, not a folder or a ZIP file of one."""
    return not file.is_dir() and kind_of(file, file.name) == "pdf"


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
