"""EPUB books: a page for each section of the reading order (EPUB 3.3, 4, 5, 7).

Encrypted books are refused. The list of contents is the navigation document, else the NCX file (OPF 2.0.1, 2.4.1); it
is no part of the text, so errors in it make it empty and never refuse a book.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple
from xml.etree.ElementTree import Element

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.charset import decode_markup
from app.documents.messages import MAX_ENTRIES, MAX_ENTRY, Message, Opened, OutlineEntry, PageRead, page_read
from app.documents.metadata import cover_url
from app.documents.parsers.html import read_markup
from app.documents.strict_xml import DAMAGED, parse_xml, stated, whole_text

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
MAX_SECTIONS = 10_000
# Scrambled fonts: they are not read, and do not protect the text.
FONT_SCRAMBLING = {"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"}
MARKUP = {
    *("application/xhtml+xml", "text/html", "text/x-oeb1-document", "application/x-dtbook+xml"),
    *("application/xml", "text/xml"),
}


class Section(NamedTuple):
    """One entry of the reading order. Without a name it is missing in the manifest."""

    name: str  # in the archive
    media_type: str


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file; sections are sent as they are read.

    Raises:
        Refused: the package document is missing or malformed, or the book is encrypted.
    """
    archive = Archive(stream)
    name, encrypted = package_name(archive), encrypted_names(archive)
    if name in encrypted:
        raise Refused("protected")
    root, folder = read_xml(archive, name), posixpath.dirname(name)
    sections = reading_order(archive, folder, root)
    if any(section.name in encrypted for section in sections):
        raise Refused("protected")
    title, authors, language = stated(root)
    yield Opened(
        kind="opened",
        title=title,
        labels=[str(number) for number in range(1, len(sections) + 1)],
        outline=read_contents(archive, contents_names(archive, folder, root), sections),
        authors=authors,
        language=language,
        cover=read_cover(archive, folder, root),
    )
    for section in sections:
        yield read_section(archive, section)


def reading_order(archive: Archive, folder: str, root: Element) -> list[Section]:
    """The sections that a package document in that folder names."""
    items = {item.get("id"): item for item in root.iter("item")}
    found = [items.get(reference.get("idref")) for reference in root.iter("itemref")]
    if len(found) > MAX_SECTIONS:
        raise Refused("oversized")
    return [
        Section("", "")
        if item is None
        else Section(archive.find(folder, item.get("href", "")), item.get("media-type", "").lower())
        for item in found
    ]


def read_section(archive: Archive, section: Section) -> PageRead:
    """The text of one section; a missing or malformed one is marked as damaged and does not end the book.

    Raises:
        Refused: the section unpacks to too much, is encrypted, or declares entities.
    """
    kind = section.media_type.partition(";")[0].strip()
    if kind.startswith("image/"):
        return page_read(has_image=True)
    try:
        markup = decode_markup(archive.read(section.name)) if kind in MARKUP else None
        if markup is not None:
            section_text = read_markup(markup)
            return page_read(*section_text.lines.marked(), has_image=section_text.has_image)
    except (BadEntry, AssertionError):
        pass
    return page_read(damaged=True)


def names_of(archive: Archive, folder: str, items: Iterable[Element]) -> list[str]:
    """The names of the files that entries of a manifest stand for, if they exist."""
    return [name for item in items if (name := archive.find(folder, item.get("href", "")))]


def read_cover(archive: Archive, folder: str, root: Element) -> str:
    """A thumbnail of the cover (EPUB 3, else EPUB 2), or ""; nothing about it ends the book."""
    named = {meta.get("content") for meta in root.iter("meta") if meta.get("name") == "cover"}
    pictures = [item for item in root.iter("item") if item.get("media-type", "").startswith("image/")]
    new = [item for item in pictures if "cover-image" in item.get("properties", "").split()]
    old = [item for item in pictures if item.get("id") in named]
    try:
        return next((cover_url(archive.read(name)) for name in names_of(archive, folder, (*new, *old))), "")
    except Refused:
        return ""


def contents_names(archive: Archive, folder: str, root: Element) -> list[str]:
    """The names of the navigation document (EPUB 3) and of the NCX file (EPUB 2), if they exist."""
    new = [item for item in root.iter("item") if "nav" in item.get("properties", "").split()]
    old = [item for item in root.iter("item") if item.get("media-type") == "application/x-dtbncx+xml"]
    return names_of(archive, folder, (*new[:1], *old[:1]))


def read_contents(archive: Archive, contents: Sequence[str], sections: Sequence[Section]) -> list[OutlineEntry]:
    """The entries that point to sections of the book, in order, from the first list that has any."""
    numbers: dict[str, int] = {}
    for number, section in enumerate(sections):
        numbers.setdefault(section.name, number)
    for name in contents:
        try:
            links = list(links_of(parse_xml(archive.read(name))))
        except (*DAMAGED, Refused):
            continue
        entries = [
            OutlineEntry(title=title[:MAX_ENTRY], level=level, page=numbers[target])
            for title, level, href in links
            if title and (target := archive.find(posixpath.dirname(name), href)) in numbers
        ]
        if entries:
            return entries[:MAX_ENTRIES]
    return []


def links_of(root: Element) -> Iterator[tuple[str, int, str]]:
    """The title, the depth and the reference of all entries, in either format."""
    navs = list(root.iter("nav"))
    contents = next((nav for nav in navs if "toc" in nav.get("type", "").split()), navs[0] if navs else root)
    waiting = [(contents, 0)]
    while waiting:
        element, level = waiting.pop()
        if element.tag == "a":
            yield whole_text(element), level, element.get("href", "")
            continue
        if element.tag == "navPoint":
            label, target = element.find("navLabel"), element.find("content")
            title = "" if label is None else whole_text(label)
            yield title, level + 1, "" if target is None else target.get("src", "")
        deeper = level + (element.tag in ("ol", "navPoint"))
        waiting += [(child, deeper) for child in reversed(element)]


def package_name(archive: Archive) -> str:
    """The name of the package document, from the container file."""
    if CONTAINER not in archive:
        raise Refused("no container")
    names = [element.get("full-path", "") for element in read_xml(archive, CONTAINER).iter("rootfile")]
    found = next((name for name in names if name in archive), None)
    if found is None:
        raise Refused("no container")
    return found


def encrypted_names(archive: Archive) -> set[str]:
    """Files that only a shop's software can decrypt."""
    if ENCRYPTION not in archive:
        return set()
    names: set[str] = set()
    for entry in read_xml(archive, ENCRYPTION).iter("EncryptedData"):
        if {method.get("Algorithm") for method in entry.iter("EncryptionMethod")} <= FONT_SCRAMBLING:
            continue
        names.update(archive.find("", reference.get("URI", "")) for reference in entry.iter("CipherReference"))
    return names - {""}


def read_xml(archive: Archive, name: str) -> Element:
    """Parse one of the files about the book."""
    try:
        return parse_xml(archive.read(name))
    except DAMAGED as error:
        raise Refused("damaged") from error
