"""XML without entities and without anything from outside the file, as a tree or piece by piece, without namespaces.

Knows nothing of books. What is wrong with the XML is for the caller to judge.
"""

from typing import NoReturn, Protocol
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Refused
from app.documents.charset import declared
from app.documents.encodings import codec_of
from app.documents.plain import decode_utf8


class Handler(Protocol):
    """What is told the pieces of a file."""

    def start(self, tag: str, attributes: dict[str, str], /) -> object:
        """An element begins."""

    def end(self, tag: str, /) -> object:
        """An element ends."""

    def data(self, text: str, /) -> object:
        """Text, perhaps a part of one."""


def parse_xml(encoded: bytes) -> ElementTree.Element:
    """An element tree with local names.

    Raises: what `feed` raises.
    """
    builder = ElementTree.TreeBuilder()
    feed(encoded, builder)
    return builder.close()


def feed(encoded: bytes, handler: Handler) -> None:
    """Tell the pieces of a file, with local names. What is UTF-8 is read as such, whatever it declares.

    Raises:
        Refused: it declares entities.
        expat.ExpatError, ValueError, LookupError: it is no well-formed XML, or in an unknown encoding.
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
    elif label and not label.lower().startswith("utf-16"):  # expat itself knows these two
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
    """What expat calls for an entity declaration: nothing that is declared is ever expanded."""
    raise Refused("entities")


def local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def local_keys(attributes: dict[str, str]) -> dict[str, str]:
    """Attributes without their namespaces."""
    return {local(key): value for key, value in attributes.items()}
