"""The process that parses EPUB books: `python -m app.documents.epub_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, then one PageRead for each section of the reading order, then Done; or Failed
at any point. The parent (`parsing.py`) stops on silence, on an early end, or when this process reports a failure.
"""

import sys
from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.charset import decode_markup
from app.documents.contents import read_contents
from app.documents.messages import Done, Failed, Message, Opened, PageRead
from app.documents.metadata import cover_url
from app.documents.package import Section, read_package
from app.documents.parsing_worker import serve
from app.documents.xhtml import EntitiesDeclared, read_markup

MARKUP = {"application/xhtml+xml", "text/html", "application/x-dtbook+xml"}
# Exceptions that zipfile, expat and html.parser may let through on malformed input.
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file; sections are sent as they are read."""
    try:
        archive = Archive(stream)
        package = read_package(archive)
        numbers = [str(number) for number in range(1, len(package.sections) + 1)]
        yield Opened(
            kind="opened",
            title=package.title,
            labels=numbers,
            outline=read_contents(archive, package),
            authors=list(package.authors),
            language=package.language,
            cover=read_cover(archive, package.cover),
        )
        for section in package.sections:
            yield read_section(archive, section)
        yield Done(kind="done")
    except Refused as refused:
        yield Failed(kind="failed", reason=refused.reason)


def read_cover(archive: Archive, name: str) -> str:
    """A thumbnail of the cover, or ""; nothing about it ends the book."""
    try:
        return cover_url(archive.read(name)) if name else ""
    except (BadEntry, Refused):
        return ""


def read_section(archive: Archive, section: Section) -> PageRead:
    """The text of one section; a missing or malformed one is marked as damaged and does not end the book.

    Raises:
        Refused: the section unpacks to too much, is encrypted, or declares entities.
    """
    if section.media_type.startswith("image/"):
        return PageRead(kind="page", text="", has_image=True, damaged=False, headings=[])
    try:
        markup = decode_markup(archive.read(section.name)) if section.media_type in MARKUP else None
        if markup is None:
            return PageRead(kind="page", text="", has_image=False, damaged=True, headings=[])
        read = read_markup(markup)
    except EntitiesDeclared as error:
        raise Refused("entities") from error
    except (BadEntry, AssertionError):
        return PageRead(kind="page", text="", has_image=False, damaged=True, headings=[])
    return PageRead(kind="page", text=read.text, has_image=read.has_image, damaged=False, headings=read.headings)


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
