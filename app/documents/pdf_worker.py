"""The process that runs pypdf: `python -m app.documents.pdf_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, then one PageRead a page, then Done; or Failed at any point. The parent
(`parsing.py`) stops on silence, on an early end, or when this process reports a failure.
"""

import logging
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, cast

from pypdf import PageObject, PdfReader, overwrite_configuration
from pypdf.errors import PyPdfError
from pypdf.generic import Destination, DictionaryObject

from app.documents.messages import Done, Failed, Message, Opened, OutlineEntry, PageRead
from app.documents.parsing_worker import serve

# Exceptions that pypdf lets through on malformed input besides its own errors (seen in its issues and our fuzzing).
MALFORMED = (
    PyPdfError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
END_WITHIN = 65_536  # bytes at the end of a file that must contain its end marker; viewers want it in the last 1,024
MAX_PAGE = 2_000_000  # characters of a page, more than any book has
MAX_LABEL = 20  # characters
MAX_ENTRIES, MAX_ENTRY = 5_000, 300  # bookmarks; characters of one


def main(argv: list[str]) -> None:
    """Send the messages of one file."""
    complaints = Complaints()
    logger = logging.getLogger("pypdf")
    logger.propagate, logger.handlers = False, [complaints]
    overwrite_configuration(jbig2dec_binary=None)  # images are not decoded, so no other program has to run
    serve(lambda stream: read(stream, complaints), MALFORMED, argv)


class Complaints(logging.Handler):
    """Records which parts of pypdf log warnings, and nothing else: on a hostile file its log is endless."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Record the logger's name."""
        self.sources.add(record.name)


def read(stream: BinaryIO, complaints: Complaints) -> Iterator[Message]:
    """The messages of a file; pages are sent as they are read."""
    if is_cut_off(stream):
        yield Failed(kind="failed", reason="cut off")
        return
    reader = PdfReader(stream)
    if reader.is_encrypted and not reader.decrypt(""):  # many are encrypted only to forbid printing, and open with ""
        yield Failed(kind="failed", reason="password")
        return
    yield Opened(kind="opened", title=title(reader), labels=labels(reader), outline=outline(reader))
    for page in reader.pages:
        yield read_page(page, complaints)
    yield Done(kind="done")


def is_cut_off(stream: BinaryIO) -> bool:
    """Whether the end of the file is missing: no end marker, or shorter than a linearised file declares."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - END_WITHIN))
    tail = stream.read()
    stream.seek(0)
    head = stream.read(1024)
    stream.seek(0)
    if not (b"startxref" in tail or b"%%EOF" in tail):
        return True
    parameters = head.partition(b"/Linearized")[2].partition(b">>")[0]
    declared = parameters.partition(b"/L ")[2].split(maxsplit=1)
    return bool(declared) and declared[0].isdigit() and int(declared[0]) > size


def title(reader: PdfReader) -> str:
    """The title in the metadata, or ""."""
    try:
        return str((reader.metadata and reader.metadata.title) or "")
    except MALFORMED:
        return ""


def labels(reader: PdfReader) -> list[str]:
    """The document's own page names; plain numbers if it has none, or invalid ones."""
    numbers = [str(number) for number in range(1, len(reader.pages) + 1)]
    try:
        own = reader.page_labels
    except MALFORMED:
        return numbers
    return [label[:MAX_LABEL] or number for label, number in zip(own, numbers, strict=True)]


def outline(reader: PdfReader) -> list[OutlineEntry]:
    """The bookmarks that point to pages; none if they are malformed, because they are no part of the text."""
    try:
        return list(islice(entries_of(reader, reader.outline, 1), MAX_ENTRIES))
    except MALFORMED:
        return []


def entries_of(reader: PdfReader, items: Iterable[object], level: int) -> Iterator[OutlineEntry]:
    """Bookmarks with their children, in order. pypdf limits their number and depth."""
    for item in items:
        if isinstance(item, list):
            yield from entries_of(reader, item, level + 1)
        elif isinstance(item, Destination) and item.title:
            page = reader.get_destination_page_number(item)
            if page is None or page < 0:
                continue
            yield OutlineEntry(title=" ".join(str(item.title).split())[:MAX_ENTRY], level=level, page=page)


def read_page(page: PageObject, complaints: Complaints) -> PageRead:
    """The text of a page; a malformed one is marked as damaged and does not end the document.

    pypdf raises for some faults and only logs others. After a log message text is missing if the page has none at all,
    or if the message came from decompression, which continues with partial data.
    """
    complaints.sources.clear()
    try:
        whole = page.extract_text()
        text = whole[:MAX_PAGE]
        damaged = (
            len(whole) > MAX_PAGE
            or "pypdf.filters" in complaints.sources
            or bool(complaints.sources and not text.strip())
        )
    except MALFORMED:
        text, damaged = "", True
    return PageRead(kind="page", text=text, has_image=has_image(page), damaged=damaged, headings=[])


def has_image(page: PageObject) -> bool:
    """Whether a page can show an image; decodes nothing."""
    try:
        resources = cast(DictionaryObject, page["/Resources"])
        objects = cast(DictionaryObject, resources["/XObject"])
        entries = [cast(DictionaryObject, entry.get_object()) for entry in objects.values()]
        return any(entry.get("/Subtype") == "/Image" for entry in entries)
    except MALFORMED:  # KeyError is usual: no resources, or none of this kind
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
