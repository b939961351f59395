"""A PDF as pypdf reads it, which needs no native code: slower than PDFium, and it may join words."""

import logging
from contextlib import suppress
from typing import BinaryIO, cast

from pypdf import PageObject, PdfReader, overwrite_configuration
from pypdf.generic import DictionaryObject

from app.documents.archive import Refused
from app.documents.messages import Opened
from app.documents.metadata import authors_in


class Complaints(logging.Handler):
    """Records which parts of pypdf log warnings, and nothing else: on a hostile file its log is endless."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Record the logger's name."""
        self.sources.add(record.name)


class Pypdf:
    """A PDF opened with pypdf."""

    def __init__(self, stream: BinaryIO) -> None:
        """Open it without a password: many are encrypted only to forbid printing.

        Raises:
            Refused: it needs one.
        """
        overwrite_configuration(jbig2dec_binary=None)  # images are not decoded, so no other program need run
        logger, self._complaints = logging.getLogger("pypdf"), Complaints()
        logger.propagate, logger.handlers = False, [self._complaints]
        self._reader = PdfReader(stream)
        if self._reader.is_encrypted and not self._reader.decrypt(""):
            raise Refused("password")

    def __len__(self) -> int:
        """The number of its pages."""
        return len(self._reader.pages)

    def opened(self) -> Opened:
        """What the file says of itself."""
        return Opened(
            kind="opened",
            title=self._stated("/Title"),
            labels=[str(number) for number in range(1, len(self) + 1)],
            outline=[],
            authors=authors_in(self._stated("/Author")),
            language=self._stated("/Lang"),
        )

    def _stated(self, key: str) -> str:
        with suppress(Exception):  # whatever pypdf lets escape on malformed input
            for source in (self._reader.root_object, self._reader.metadata):
                if source and key in source:
                    return str(source[key])
        return ""

    def page(self, index: int) -> tuple[str, bool, bool]:
        """The text of a page, whether it has pictures, and whether it is whole.

        It raises for some faults and only logs others. After a log message text is missing if the page has none at
        all, or if the message came from decompression, which continues with partial data.

        Raises:
            Exception: it cannot be read.
        """
        sources = self._complaints.sources
        sources.clear()
        page = self._reader.pages[index]
        text = page.extract_text()
        is_whole = "pypdf.filters" not in sources and (not sources or bool(text.strip()))
        return text, has_image(page), is_whole


def has_image(page: PageObject) -> bool:
    """Whether a page can show an image; decodes nothing."""
    try:
        resources = cast(DictionaryObject, page["/Resources"])
        objects = cast(DictionaryObject, resources["/XObject"])
        entries = [cast(DictionaryObject, entry.get_object()) for entry in objects.values()]
        return any(entry.get("/Subtype") == "/Image" for entry in entries)
    except Exception:  # KeyError is usual: no resources, or none of this kind
        return False
