"""The process in which a PDF is read: `python -m app.documents.pdf_worker FILE MEMORY_BYTES CPU_SECONDS`.

PDFium finds the text; pypdf opens the file, says whether it is whole and knows its title, labels and bookmarks. Where
PDFium fails, pypdf finds the text, too.

It prints one JSON object a line: Opened, then one PageRead a page, then Done; or Failed at any point. The parent
(`parsing.py`) stops on silence, on an early end, or when this process reports a failure.
"""

import logging
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import BinaryIO, cast
from xml.parsers.expat import ExpatError

from pypdf import PageObject, PdfReader, overwrite_configuration
from pypdf.errors import LimitReachedError, PyPdfError
from pypdf.generic import Destination, DictionaryObject, StreamObject

from app.documents.messages import Done, Failed, Message, Opened, OutlineEntry, PageRead
from app.documents.metadata import MAX_AUTHORS
from app.documents.parsing_worker import serve
from app.documents.pdf_reader import QuickReader
from app.documents.pdfium import Pdfium, PdfiumError
from app.documents.quality import num_letters

# What both let escape on malformed input besides their own errors (seen in its issues and in our fuzzing).
MALFORMED = (
    PyPdfError,
    PdfiumError,
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
END_WITHIN = 65_536  # bytes at the end of a file that must hold its end marker; viewers want it in the last 1,024
MAX_PAGE = 2_000_000  # characters of a page; a book has fewer
MAX_CONTENT = 75_000_000  # bytes of what draws a page, as in pypdf
UNPACK_AT_ONCE = 1 << 20  # bytes
FULL_PAGE = 1_000  # letters, far more than `quality.py` asks of a page that is no picture
MAX_XMP = 200_000  # bytes
MAX_LABEL = 20  # characters
MAX_ENTRIES, MAX_ENTRY = 5_000, 300  # bookmarks; characters of one


def main(argv: list[str], *, with_pdfium: bool = True) -> None:
    """Send the messages of one file."""
    complaints = Complaints()
    logger = logging.getLogger("pypdf")
    logger.propagate, logger.handlers = False, [complaints]
    overwrite_configuration(jbig2dec_binary=None)  # images are not decoded, so no other program need run
    serve(lambda stream: read(stream, complaints, with_pdfium=with_pdfium), MALFORMED, argv)


class Complaints(logging.Handler):
    """Records which parts of pypdf log warnings, and nothing else: on a hostile file its log is endless."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Record the logger's name."""
        self.sources.add(record.name)


def read(stream: BinaryIO, complaints: Complaints, *, with_pdfium: bool = True) -> Iterator[Message]:
    """The messages of a file, the pages as they are read."""
    if is_cut_off(stream):
        yield Failed(kind="failed", reason="cut off")
        return
    reader = QuickReader(stream)
    if reader.is_encrypted and not reader.decrypt(""):  # many are encrypted only to forbid printing, and open with ""
        yield Failed(kind="failed", reason="password")
        return
    authors, language = stated(reader)
    pdfium = open_pdfium(stream, len(reader.pages)) if with_pdfium else None
    yield Opened(
        kind="opened",
        title=title(reader),
        labels=labels(reader),
        outline=outline(reader, pdfium),
        authors=authors[:MAX_AUTHORS],
        language=language[:MAX_ENTRY],
    )
    for index, page in enumerate(reader.pages):
        yield read_page(page, index, pdfium, complaints)
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


def stated(reader: PdfReader) -> tuple[list[str], str]:
    """The authors and the language that the file states, in its information, its catalogue or else its XMP packet."""
    names, language = list[str](), ""
    try:
        names = str((reader.metadata and reader.metadata.author) or "").split(";")
        language = str(reader.root_object.get("/Lang", ""))
    except MALFORMED:
        pass
    if "".join(names).strip() and language:
        return names, language
    try:
        packet = reader.root_object.get("/Metadata")
        if packet is None or len(packet.get_object().get_data()) > MAX_XMP:
            return names, language
        xmp = reader.xmp_metadata
        if xmp is not None:
            names = names if "".join(names).strip() else [str(name) for name in xmp.dc_creator or []]
            language = language or next((str(one) for one in xmp.dc_language or []), "")
    except (*MALFORMED, ExpatError):
        pass
    return names, language


def labels(reader: PdfReader) -> list[str]:
    """The document's own page names; plain numbers if it has none, or invalid ones."""
    numbers = [str(number) for number in range(1, len(reader.pages) + 1)]
    try:
        own = reader.page_labels
    except MALFORMED:
        return numbers
    return [label[:MAX_LABEL] or number for label, number in zip(own, numbers, strict=True)]


def outline(reader: PdfReader, pdfium: Pdfium | None) -> list[OutlineEntry]:
    """The bookmarks that point to pages; none if they are malformed, because they are no part of the text."""
    if pdfium:
        with suppress(*MALFORMED):
            if (found := bookmarks(pdfium)) is not None:
                return found
    try:
        return list(islice(entries_of(reader, reader.outline, 1), MAX_ENTRIES))
    except MALFORMED:
        return []


def bookmarks(pdfium: Pdfium) -> list[OutlineEntry] | None:
    """The bookmarks by PDFium, which looks up their places alone; pypdf reads all to which a book's links lead.

    None: some lead nowhere, or to a place that PDFium does not find.
    """
    entries: list[OutlineEntry] = []
    for title, depth, page in islice(pdfium.bookmarks(), MAX_ENTRIES):
        if page is None or page < 0:
            return None
        if title:
            entries.append(OutlineEntry(title=" ".join(title.split())[:MAX_ENTRY], level=depth + 1, page=page))
    return entries


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


def open_pdfium(stream: BinaryIO, num_pages: int) -> Pdfium | None:
    """The file in PDFium; None where that fails or finds other pages than pypdf does."""
    try:
        pdfium = Pdfium(stream)
    except MALFORMED:
        return None
    return pdfium if len(pdfium) == num_pages else None


def read_page(page: PageObject, index: int, pdfium: Pdfium | None, complaints: Complaints) -> PageRead:
    """The text of a page; a malformed one is reported as such and does not end the document."""
    complaints.sources.clear()
    by_pypdf = False
    try:
        whole, damaged = text_by_pdfium(page, index, pdfium, complaints) if pdfium else (None, False)
        if whole is None:
            by_pypdf = True
            whole, missing = text_by_pypdf(page, complaints)
            damaged |= missing
        text = whole[:MAX_PAGE]
        damaged |= len(whole) > MAX_PAGE
    except MALFORMED:
        text, damaged = "", True
    asked = num_letters([text]) < FULL_PAGE  # to look for images takes as long as to read the text
    image = asked and has_image(page)
    return PageRead(kind="page", text=text, has_image=image, damaged=damaged, headings=[], by_pypdf=by_pypdf)


def text_by_pdfium(page: PageObject, index: int, pdfium: Pdfium, complaints: Complaints) -> tuple[str | None, bool]:
    """The text of a page (None: PDFium finds none, though something is drawn) and whether some is missing.

    PDFium reads what it can and says nothing of the rest. So the page is unpacked here, too, and where that does not
    come to a clean end, pypdf reads it and says whether something is missing.
    """
    drawn: list[StreamObject] = []
    try:
        drawn = contents(page)
        whole = all(map(is_whole, drawn))
    except LimitReachedError:  # a bomb
        return "", True
    except MALFORMED:
        whole = False
    try:
        damaged = not whole and text_by_pypdf(page, complaints)[1]
        damaged |= "pypdf.filters" in complaints.sources
    except MALFORMED:  # LimitReachedError is one
        damaged = True
    try:
        text = pdfium.text(index)
        return (None if drawn and not text.strip() else text), damaged
    except MALFORMED:
        return None, damaged


def contents(page: PageObject) -> list[StreamObject]:
    """The streams that draw a page."""
    entry: object = page["/Contents"].get_object() if "/Contents" in page else []
    parts = [part.get_object() for part in entry] if isinstance(entry, list) else [entry]
    return [part for part in parts if isinstance(part, StreamObject)]


def is_whole(stream: StreamObject) -> bool:
    """Whether a stream can be unpacked up to its end, and the sum behind that is right.

    Raises:
        LimitReachedError: it unpacks to more than any page takes. One of MALFORMED: it cannot be unpacked.
    """
    packing: object = stream.get("/Filter")
    if packing is None:
        return True
    if packing not in ("/FlateDecode", ["/FlateDecode"]) or "/DecodeParms" in stream:
        stream.get_data()
        return True
    packed, unpacking, length = stream._data, zlib.decompressobj(), 0
    try:
        while packed and not unpacking.eof:
            length += len(unpacking.decompress(packed, UNPACK_AT_ONCE))
            packed = unpacking.unconsumed_tail
            if length > MAX_CONTENT:
                raise LimitReachedError(f"more than {MAX_CONTENT} bytes on a page")
    except zlib.error:
        return False
    return unpacking.eof


def text_by_pypdf(page: PageObject, complaints: Complaints) -> tuple[str, bool]:
    """The text of a page, and whether some is missing.

    pypdf raises for some faults and only logs others. After a log message text is missing if the page has none at all,
    or if the message came from decompression, which continues with partial data.
    """
    text = page.extract_text()
    damaged = "pypdf.filters" in complaints.sources or bool(complaints.sources and not text.strip())
    return text, damaged


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
