"""The package of an EPUB: its title, the reading order of its sections and its list of contents (EPUB 3.3, 4, 5, 7).

Encrypted books are refused. The list of contents is the navigation document, else the NCX file (OPF 2.0.1, 2.4.1); it
is no part of the text, so errors in it make it empty and never refuse a book.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.messages import MAX_ENTRIES, MAX_ENTRY, OutlineEntry
from app.documents.metadata import MAX_AUTHORS
from app.documents.strict_xml import parse_xml, whole_text

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
MAX_SECTIONS = 10_000
# Scrambled fonts: they are not read, and do not protect the text.
FONT_SCRAMBLING = {"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"}


@dataclass(frozen=True, slots=True)
class Section:
    """One entry of the reading order. Without a name it is missing in the manifest."""

    name: str  # in the archive
    media_type: str


@dataclass(frozen=True, slots=True)
class Package:
    """The parts of the package document that reading needs."""

    title: str
    sections: tuple[Section, ...]
    contents: tuple[str, ...]  # possible lists of contents, the newer format first
    authors: tuple[str, ...] = ()
    language: str = ""
    cover: str = ""  # the name of a picture in the archive


def read_package(archive: Archive) -> Package:
    """Follow the container file to the package document and read it.

    Raises:
        Refused: it is missing or malformed, or the book is encrypted.
    """
    name = package_name(archive)
    encrypted = encrypted_names(archive)
    if name in encrypted:
        raise Refused("protected")
    root = read_xml(archive, name)
    items = {item.get("id"): item for item in root.iter("item")}
    sections: list[Section] = []
    for reference in root.iter("itemref"):
        item = items.get(reference.get("idref"))
        href = "" if item is None else item.get("href", "")
        media_type = "" if item is None else item.get("media-type", "")
        sections.append(Section(find(archive, posixpath.dirname(name), href), media_type.strip().lower()))
    if len(sections) > MAX_SECTIONS:
        raise Refused("oversized")
    if any(section.name in encrypted for section in sections):
        raise Refused("protected")
    folder = posixpath.dirname(name)
    return Package(
        title=next(iter(texts_of(root, "title")), ""),
        sections=tuple(sections),
        contents=tuple(contents_names(archive, folder, root)),
        authors=tuple(texts_of(root, "creator"))[:MAX_AUTHORS],
        language=next(iter(texts_of(root, "language")), ""),
        cover=cover_name(archive, folder, root),
    )


def texts_of(root: ElementTree.Element, tag: str) -> list[str]:
    """The texts of all elements of a kind that have one."""
    return [text for element in root.iter(tag) if (text := whole_text(element))]


def cover_name(archive: Archive, folder: str, root: ElementTree.Element) -> str:
    """The name of the cover's picture (EPUB 3, else EPUB 2), or ""."""
    named = {meta.get("content") for meta in root.iter("meta") if meta.get("name") == "cover"}
    items = list(root.iter("item"))
    new = [item for item in items if "cover-image" in item.get("properties", "").split()]
    old = [item for item in items if item.get("id") in named]
    pictures = [item for item in (*new, *old) if item.get("media-type", "").startswith("image/")]
    return next((name for item in pictures if (name := find(archive, folder, item.get("href", "")))), "")


def contents_names(archive: Archive, folder: str, root: ElementTree.Element) -> list[str]:
    """The names of the navigation document (EPUB 3) and of the NCX file (EPUB 2), if they exist."""
    items = list(root.iter("item"))
    new = [item for item in items if "nav" in item.get("properties", "").split()]
    old = [item for item in items if item.get("media-type") == "application/x-dtbncx+xml"]
    names = (find(archive, folder, item.get("href", "")) for item in (*new[:1], *old[:1]))
    return [name for name in names if name]


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
        uris = [reference.get("URI", "") for reference in entry.iter("CipherReference")]
        names.update(find(archive, "", uri) for uri in uris)
    return names - {""}


def find(archive: Archive, folder: str, href: str) -> str:
    """The name in the archive that a reference means; "": it is missing, or outside this archive."""
    path = href.partition("#")[0]
    names = (posixpath.normpath(posixpath.join(folder, name)) for name in (unquote(path), path) if name)
    return next((name for name in names if name in archive), "")


def read_xml(archive: Archive, name: str) -> ElementTree.Element:
    """Parse one of the files about the book."""
    try:
        return parse_xml(archive.read(name))
    except (BadEntry, expat.ExpatError, ValueError, LookupError) as error:
        raise Refused("damaged") from error


class Link(NamedTuple):
    """An entry of the list, as written."""

    title: str
    level: int
    href: str


def read_contents(archive: Archive, package: Package) -> list[OutlineEntry]:
    """The entries that point to sections of the book, in order, from the first list that has any."""
    numbers: dict[str, int] = {}
    for number, section in enumerate(package.sections):
        numbers.setdefault(section.name, number)
    for name in package.contents:
        try:
            links = list(links_of(parse_xml(archive.read(name))))
        except (BadEntry, Refused, expat.ExpatError, ValueError, LookupError):
            continue
        targets = [find(archive, posixpath.dirname(name), link.href) for link in links]
        entries = [
            OutlineEntry(title=link.title[:MAX_ENTRY], level=link.level, page=numbers[target])
            for link, target in zip(links, targets, strict=True)
            if link.title and target in numbers
        ]
        if entries:
            return entries[:MAX_ENTRIES]
    return []


def links_of(root: ElementTree.Element) -> Iterator[Link]:
    """All entries with their depth, in either format."""
    navs = list(root.iter("nav"))
    contents = next((nav for nav in navs if "toc" in nav.get("type", "").split()), navs[0] if navs else root)
    waiting = [(contents, 0)]
    while waiting:
        element, level = waiting.pop()
        if element.tag == "a":
            yield Link(whole_text(element), level, element.get("href", ""))
            continue
        if element.tag == "navPoint":
            label, target = element.find("navLabel"), element.find("content")
            title = "" if label is None else whole_text(label)
            yield Link(title, level + 1, "" if target is None else target.get("src", ""))
        deeper = level + (element.tag in ("ol", "navPoint"))
        waiting += [(child, deeper) for child in reversed(element)]
