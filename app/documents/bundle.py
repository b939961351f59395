"""Several documents at once: the files of a folder or of a ZIP file, each as if opened alone, in natural order."""

import os
import re
import tempfile
from base64 import b64decode
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import psutil

from app.documents.document import Document, Extracting
from app.documents.errors import (
    AccessDenied,
    DamagedDocument,
    DocumentError,
    DocumentNotFound,
    DocumentTooLarge,
    EmptyDocument,
    NotRead,
    OcrBroken,
    OcrMissing,
)
from app.documents.parsing import LIMITS, ParsingLimits, explain_failure, worker_messages
from app.documents.readers import display_name, extract_document
from app.documents.sniff import kind_of

if TYPE_CHECKING:
    from app.documents.ocr import Ocr

MOST_IN_FOLDER = 1_000  # files
MOST_NAMED = 5  # files in a warning
LONGEST_NAME = 120  # characters
UNPACKED = "unpacked-"  # prefix of folders in the system's folder for temporary files; the program's number follows


class Entry(NamedTuple):
    """A file of several: its path in the folder or the ZIP, and where its content is; or why it has none."""

    name: str
    content: Path | DocumentError


def extract_documents(
    path: str | Path, limits: ParsingLimits = LIMITS, ocr: "Ocr | None" = None
) -> Generator[Extracting | Document]:
    """Read a file, a ZIP file or a folder step by step: progress events, then the Documents, one at least.

    What a folder or a ZIP file holds besides documents is named in a warning of the first.

    Args:
        ocr: see `extract_document`.
    Raises:
        DocumentError: with the problem and one action; see `app.documents.errors`.
    """
    file = Path(path)
    name = display_name(file)
    try:
        if file.is_dir():
            yield from extract_all(name, folder_entries(file, name), limits, ocr)
        elif kind_of(file, name) == "zip":
            sweep_unpacked()
            limits = limits.of(file)
            with TemporaryDirectory(prefix=f"{UNPACKED}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
                entries = yield from unpack(file.absolute(), name, Path(folder), limits)
                yield from extract_all(name, entries, limits, ocr)
        else:
            yield from extract_document(file, ocr=ocr)
    except OSError as error:
        raise NotRead(name, error) from error


def read_documents(path: str | Path) -> list[Document]:
    """Read a file, a ZIP file or a folder in one call. Raises as `extract_documents`."""
    return [event for event in extract_documents(path) if isinstance(event, Document)]


def extract_all(
    name: str, entries: Sequence[Entry], limits: ParsingLimits, ocr: "Ocr | None" = None
) -> Iterator[Extracting | Document]:
    """Read each entry; the documents come when all are read.

    Raises:
        DocumentError: there is no document among them, or they are too long together, or no engine that is asked for.
    """
    documents: list[Document] = []
    errors: list[DocumentError] = []
    for entry in entries:
        try:
            if isinstance(entry.content, DocumentError):
                raise entry.content
            with closing(extract_document(entry.content, entry.name, ocr)) as events:
                for event in events:
                    if isinstance(event, Document):
                        documents.append(event)
                    else:
                        yield event
        except (OcrMissing, OcrBroken):
            raise
        except DocumentError as error:
            errors.append(error)
        if sum(len(document.text) for document in documents) > limits.chars:
            raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
    if not documents and len(errors) == 1:
        raise errors[0]
    if not documents:
        raise EmptyDocument(name, "holds no document that can be read", hint="Open the files that you mean.")
    left_out = (not_opened(name, errors),) if errors else ()
    yield replace(documents[0], warnings=left_out + documents[0].warnings)
    yield from documents[1:]


def not_opened(name: str, errors: Sequence[DocumentError]) -> str:
    """The warning about files that were not opened, with what is wrong with the first."""
    told = [error.problem for error in errors[:MOST_NAMED]]
    more = [f"And {len(errors) - MOST_NAMED:,} more."] if len(errors) > MOST_NAMED else []
    return " ".join([f"Not all of {name} was opened.", *told, *more])


def folder_entries(folder: Path, name: str) -> list[Entry]:
    """All files in a folder and its folders, except hidden ones. A closed folder in it is an entry with its error.

    Raises:
        AccessDenied: the folder cannot be listed.
        DocumentTooLarge: there are more than MOST_IN_FOLDER.
        DocumentNotFound: there are none.
    """
    found: dict[str, Path | DocumentError] = {}

    def add(file: Path, error: DocumentError | None = None) -> None:
        inside = file.relative_to(folder).as_posix()
        if not is_hidden(inside):
            found[inside] = error or file

    def refuse(error: OSError) -> None:
        closed, reason = Path(error.filename or folder), error.strerror or type(error).__name__
        if closed == folder:
            raise AccessDenied(name, reason) from error
        add(closed, AccessDenied(shown(closed.relative_to(folder).as_posix()), reason))

    for place, _, files in os.walk(folder, onerror=refuse):
        for file in files:
            add(Path(place, file))
        if len(found) > MOST_IN_FOLDER:
            raise DocumentTooLarge(name, f"more than {MOST_IN_FOLDER:,} files")
    if not found:
        raise DocumentNotFound(name, f"{name} is a folder without files", hint="Name a file, or a folder with files.")
    return [Entry(shown(inside), found[inside]) for inside in sorted(found, key=natural)]


def unpack(file: Path, name: str, folder: Path, limits: ParsingLimits) -> Generator[Extracting, None, list[Entry]]:
    """Write the files of a ZIP file into a folder, under numbers for names.

    Raises:
        DocumentError: it is damaged or empty, it unpacks to too much, or all its files are encrypted or too large.
    """
    refused: list[DocumentError] = []  # for the first of its files that are
    entries: list[Entry] = []
    for message in worker_messages("zip", file, name, limits):
        if message and message["kind"] == "file":
            inside, reason = shown(message["name"]), message.get("refused")
            if reason == "damaged":
                entries.append(Entry(inside, DamagedDocument(inside, "is damaged")))
            elif reason:
                entries.append(Entry(inside, explain_failure(reason, "zip", inside, limits)))
                refused += [explain_failure(reason, "zip", name, limits)] if reason != "no text" else []
            else:
                ending = re.sub(r"[^a-z0-9.]", "", PurePosixPath(inside).suffix.lower())[:10]
                unpacked = folder / f"{len(entries)}{ending}"
                unpacked.write_bytes(b64decode(message["content"]))
                entries.append(Entry(inside, unpacked))
        yield Extracting(num_done=0, num_pages=None)
    if refused and not any(isinstance(entry.content, Path) for entry in entries):
        raise refused[0]
    if not entries:
        raise EmptyDocument(name, "holds no files")
    return entries


def sweep_unpacked() -> None:
    """Delete what programs that were killed while they read a ZIP file left of it."""
    with suppress(OSError):
        for entry in list(os.scandir(tempfile.gettempdir())):
            owner = re.fullmatch(rf"{UNPACKED}(\d{{1,9}})-.*", entry.name)
            with suppress(OSError):
                if owner and entry.is_dir(follow_symlinks=False) and not psutil.pid_exists(int(owner[1])):
                    rmtree(entry.path, ignore_errors=True)


def shown(inside: str) -> str:
    """A path in a folder or a ZIP file, safe to show: on one line, and never out of it."""
    parts = [part for part in inside.replace("\\", "/").split("/") if part.strip() not in ("", ".", "..")]
    name = "/".join(parts)[-LONGEST_NAME:]
    return "".join(char if char.isprintable() else "�" for char in name).strip() or "unnamed"


DIGITS = re.compile(r"(\d{1,18})", re.ASCII)
NOBODYS = frozenset(["__MACOSX", "Thumbs.db", "desktop.ini"])  # what systems put beside files


def natural(name: str) -> list[list[tuple[int, str]]]:
    """Sort key of a path: part 2 before part 10, capital and small letters alike, a folder's files together."""
    return [
        [(int(piece), "") if number % 2 else (-1, piece) for number, piece in enumerate(DIGITS.split(part))]
        for part in name.casefold().split("/")
    ]


def is_hidden(name: str) -> bool:
    """Whether a path, or a folder in it, is hidden or a system's own."""
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part.startswith(".") or part in NOBODYS for part in parts)
