"""EPUB books: a page for each section of the reading order."""

from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.charset import decode_markup
from app.documents.messages import Done, Message, Opened, PageRead
from app.documents.metadata import cover_url
from app.documents.package import Section, read_contents, read_package
from app.documents.xhtml import read_markup

MARKUP = {"application/xhtml+xml", "text/html", "application/x-dtbook+xml"}


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file; sections are sent as they are read."""
    archive = Archive(stream)
    package = read_package(archive)
    yield Opened(
        kind="opened",
        title=package.title,
        labels=[str(number) for number in range(1, len(package.sections) + 1)],
        outline=read_contents(archive, package),
        authors=list(package.authors),
        language=package.language,
        cover=read_cover(archive, package.cover),
    )
    for section in package.sections:
        yield read_section(archive, section)
    yield Done(kind="done")


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
        if markup is not None:
            found = read_markup(markup)
            return PageRead(
                kind="page", text=found.text, has_image=found.has_image, damaged=False, headings=found.headings
            )
    except (BadEntry, AssertionError):
        pass
    return PageRead(kind="page", text="", has_image=False, damaged=True, headings=[])
