"""How the parts of an Office file refer to each other (ECMA-376, part 2)."""

import posixpath
from typing import NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Archive, BadEntry
from app.documents.strict_xml import parse_xml

DAMAGED = (BadEntry, expat.ExpatError, ValueError, LookupError)  # a part that is missing or malformed


class Relation(NamedTuple):
    """A part that another one refers to."""

    id: str
    kind: str  # the last word of the relation's type
    name: str  # in the archive


def relations(archive: Archive, part: str) -> list[Relation]:
    """The parts a part refers to that are in the archive; `part` "": those of the archive itself."""
    folder, name = posixpath.split(part)
    root = optional(archive, posixpath.join(folder, "_rels", f"{name}.rels"))
    found: list[Relation] = []
    for relation in () if root is None else root.iter("Relationship"):
        target = relation.get("Target", "")
        where = archive.find("" if target.startswith("/") else folder, target.lstrip("/"))
        if where and relation.get("TargetMode") != "External":
            found.append(Relation(relation.get("Id", ""), posixpath.basename(relation.get("Type", "")), where))
    return found


def related(archive: Archive, part: str) -> dict[str, str]:
    """The first part of each kind that a part refers to."""
    return {relation.kind: relation.name for relation in reversed(relations(archive, part))}


def optional(archive: Archive, name: str | None) -> ElementTree.Element | None:
    """The root of an optional part."""
    try:
        return parse_xml(archive.read(name)) if name else None
    except DAMAGED:
        return None
