"""XML without entities and without external resources, as a tree without namespaces; and the XML files of an archive.

Knows nothing of books. The caller decides what invalid XML means.
"""

import posixpath
from html import unescape
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.charset import decode_markup
from app.documents.metadata import MAX_AUTHORS, authors_in

RELATION = "/relationships}id"
DAMAGED = (BadEntry, expat.ExpatError, ValueError, LookupError)  # a part that is missing or malformed


def parse_xml(encoded: bytes) -> ElementTree.Element:
    """An element tree with local names.

    Undeclared entities are those of HTML, as many books have them; others stay as they are written.

    Raises:
        Refused: it declares entities.
        expat.ExpatError, ValueError: malformed XML, or no text.
    """
    parser, builder = expat.ParserCreate(namespace_separator="}"), ElementTree.TreeBuilder()
    parser.buffer_text = True
    parser.StartElementHandler = lambda tag, attributes: builder.start(local(tag), local_keys(attributes))
    parser.EndElementHandler = lambda tag: builder.end(local(tag))
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse_entities
    parser.UseForeignDTD(True)  # so that one which nobody declares is no error
    parser.SkippedEntityHandler = lambda name, _: builder.data(unescape(f"&{name};"))
    text = decode_markup(encoded)
    if text is None:
        raise ValueError("not text")
    parser.Parse(text, True)
    return builder.close()


def whole_text(element: ElementTree.Element) -> str:
    """All text inside an element, on one line."""
    return " ".join("".join(element.itertext()).split())


def texts_of(root: ElementTree.Element | None, tag: str) -> list[str]:
    """The texts of all elements of a kind that have one."""
    return [text for element in (() if root is None else root.iter(tag)) if (text := whole_text(element))]


def stated(root: ElementTree.Element | None) -> tuple[str, list[str], str]:
    """Title, authors and language that the properties of a file state, as Dublin Core names them."""
    creators = texts_of(root, "initial-creator") or texts_of(root, "creator")  # OpenDocument's creator changed it last
    title, language = (next(iter(texts_of(root, tag)), "") for tag in ("title", "language"))
    return title, [name for names in creators for name in authors_in(names)][:MAX_AUTHORS], language


def refuse_entities(*_: object) -> NoReturn:
    """Called by expat for an entity declaration; no entity is ever expanded."""
    raise Refused("entities")


def local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def local_keys(attributes: dict[str, str]) -> dict[str, str]:
    """Attributes without their namespaces; "r:id" is what refers to another part of an Office file."""
    return {"r:id" if key.endswith(RELATION) else local(key): value for key, value in attributes.items()}


class Relation(NamedTuple):
    """A part of an Office file that another one refers to (ECMA-376, part 2)."""

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
