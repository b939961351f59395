"""XML without entities and without external resources, as a tree or as events, without namespaces.

Knows nothing of books. The caller decides what invalid XML means.
"""

from typing import NoReturn, Protocol
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Refused
from app.documents.charset import declared
from app.documents.encodings import codec_of
from app.documents.plain import decode_utf8

RELATION = "/relationships}id"


class Handler(Protocol):
    """Receives the events of a file."""

    def start(self, tag: str, attributes: dict[str, str], /) -> object:
        """An element begins."""

    def end(self, tag: str, /) -> object:
        """An element ends."""

    def data(self, text: str, /) -> object:
        """Text, perhaps only a part."""


def parse_xml(encoded: bytes) -> ElementTree.Element:
    """An element tree with local names.

    Raises as `feed`.
    """
    builder = ElementTree.TreeBuilder()
    feed(encoded, builder)
    return builder.close()


def feed(encoded: bytes, handler: Handler) -> None:
    """Send the events of a file, with local names. Valid UTF-8 is read as such, whatever the file declares.

    Raises:
        Refused: it declares entities.
        expat.ExpatError, ValueError, LookupError: malformed XML, or an unknown encoding.
    """
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartElementHandler = lambda tag, attributes: handler.start(local(tag), local_keys(attributes))
    parser.EndElementHandler = lambda tag: handler.end(local(tag))
    parser.CharacterDataHandler = handler.data
    parser.EntityDeclHandler = refuse_entities
    decoded = decode_utf8(encoded)
    label = declared(encoded)
    if decoded and not decoded.warning:
        parser.Parse(decoded.text, True)
    elif label and not label.lower().startswith("utf-16"):  # expat knows these two
        codec = codec_of(label)
        if codec is None:
            raise LookupError(f"no encoding of documents: {label}")
        parser.Parse(encoded.decode(codec), True)
    else:
        parser.Parse(encoded, True)


def whole_text(element: ElementTree.Element) -> str:
    """All text inside an element, on one line."""
    return " ".join("".join(element.itertext()).split())


def refuse_entities(*_: object) -> NoReturn:
    """Called by expat for an entity declaration; no entity is ever expanded."""
    raise Refused("entities")


def local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def local_keys(attributes: dict[str, str]) -> dict[str, str]:
    """Attributes without their namespaces; "r:id" is what refers to another part of an Office file."""
    return {"r:id" if key.endswith(RELATION) else local(key): value for key, value in attributes.items()}
