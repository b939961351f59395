"""The list of contents of an EPUB: its navigation document, else its NCX file (EPUB 3.3, section 7; OPF 2.0.1, 2.4.1).

It only helps navigation and is no part of the text, so errors in it make it empty and never refuse a book.
"""

import posixpath
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.messages import OutlineEntry
from app.documents.package import Package, find
from app.documents.strict_xml import parse_xml, whole_text

MAX_ENTRIES = 5_000
MAX_TITLE = 300  # characters


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
            OutlineEntry(title=link.title[:MAX_TITLE], level=link.level, page=numbers[target])
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
