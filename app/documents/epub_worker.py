"""The process in which EPUB books are taken apart: `python -m app.documents.epub_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, then one PageRead for each section of the reading order, then Done, or a
Failed at any point. The parent (`parsing.py`) gives up on silence, on an early end, and on what this one says.
"""

import re
import sys
from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.messages import Done, Failed, Message, Opened, PageRead
from app.documents.package import Section, read_package
from app.documents.parsing_worker import serve
from app.documents.plain import decode
from app.documents.xhtml import EntitiesDeclared, read_markup

MARKUP = {"application/xhtml+xml", "text/html", "application/x-dtbook+xml"}
DECLARED_ENCODING = re.compile(rb"""\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
# What zipfile, expat and html.parser may still let escape on malformed input.
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file, the sections as they are read."""
    try:
        archive = Archive(stream)
        package = read_package(archive)
        numbers = [str(number) for number in range(1, len(package.sections) + 1)]
        yield Opened(kind="opened", title=package.title, labels=numbers)
        for section in package.sections:
            yield read_section(archive, section)
        yield Done(kind="done")
    except Refused as refused:
        yield Failed(kind="failed", reason=refused.reason)


def read_section(archive: Archive, section: Section) -> PageRead:
    """The text of one section; a missing or malformed one is reported as such and does not end the book.

    Raises:
        Refused: the section is a bomb, encrypted, or declares entities.
    """
    if section.media_type.startswith("image/"):
        return PageRead(kind="page", text="", has_image=True, damaged=False)
    try:
        markup = decode_markup(archive.read(section.name)) if section.media_type in MARKUP else None
        if markup is None:
            return PageRead(kind="page", text="", has_image=False, damaged=True)
        text, has_image = read_markup(markup)
    except EntitiesDeclared as error:
        raise Refused("entities") from error
    except (BadEntry, AssertionError):
        return PageRead(kind="page", text="", has_image=False, damaged=True)
    return PageRead(kind="page", text=text, has_image=has_image, damaged=False)


def decode_markup(encoded: bytes) -> str | None:
    """Text from bytes. UTF-8, which books must be in, is believed before a declaration; None: no text at all."""
    try:
        return encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    declared = DECLARED_ENCODING.match(encoded)
    try:
        if declared:
            return encoded.decode(declared[1].decode("ascii"))
    except (LookupError, ValueError):
        pass  # unknown, no text encoding, or not the one it is in
    decoded = decode(encoded)
    return decoded.text if decoded else None


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
