"""What an EPUB says about itself: its title, and the order in which its sections are read (EPUB 3.3, sections 4 and 5).

XML is parsed without entities and without anything from outside the file; encrypted books are refused.
"""

import posixpath
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.plain import decode_utf8

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
MAX_SECTIONS = 10_000
# Scrambled fonts: nothing that is read here, and no protection of the text.
FONT_SCRAMBLING = {"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"}


@dataclass(frozen=True, slots=True)
class Section:
    """One entry of the reading order. An empty name: the list of files does not know it."""

    name: str  # in the archive
    media_type: str


@dataclass(frozen=True, slots=True)
class Package:
    """The package document, as far as reading needs it."""

    title: str
    sections: tuple[Section, ...]


def read_package(archive: Archive) -> Package:
    """Follow the container file to the package document and read it.

    Raises:
        Refused: there is none, it is malformed, or the book is encrypted.
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
    title = next((text for element in root.iter("title") if (text := whole_text(element))), "")
    return Package(title, tuple(sections))


def package_name(archive: Archive) -> str:
    """Where the container file says that the package document is."""
    if CONTAINER not in archive:
        raise Refused("no container")
    names = [element.get("full-path", "") for element in read_xml(archive, CONTAINER).iter("rootfile")]
    found = next((name for name in names if name in archive), None)
    if found is None:
        raise Refused("no container")
    return found


def encrypted_names(archive: Archive) -> set[str]:
    """The files that only the software of a shop can decrypt."""
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
    """The name in the archive that a reference means, or "": nothing there, or not in this archive at all."""
    path = href.partition("#")[0]
    names = (posixpath.normpath(posixpath.join(folder, name)) for name in (unquote(path), path) if name)
    return next((name for name in names if name in archive), "")


def whole_text(element: ElementTree.Element) -> str:
    """All text inside an element, on one line."""
    return " ".join("".join(element.itertext()).split())


def read_xml(archive: Archive, name: str) -> ElementTree.Element:
    """Parse one of the files that describe the book."""
    try:
        return parse_xml(archive.read(name))
    except (BadEntry, expat.ExpatError, ValueError, LookupError) as error:
        raise Refused("damaged") from error


def parse_xml(encoded: bytes) -> ElementTree.Element:
    """An element tree with local names. What is UTF-8 is read as such, whatever it declares.

    Raises:
        Refused: it declares entities.
        expat.ExpatError, ValueError, LookupError: it is no well-formed XML, or in an unknown encoding.
    """
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartElementHandler = lambda tag, attributes: builder.start(local(tag), local_keys(attributes))
    parser.EndElementHandler = lambda tag: builder.end(local(tag))
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse_entities
    decoded = decode_utf8(encoded)
    parser.Parse(decoded.text if decoded and not decoded.warning else encoded, True)
    return builder.close()


def refuse_entities(*_: object) -> NoReturn:
    """What expat calls for an entity declaration: nothing that is declared is ever expanded."""
    raise Refused("entities")


def local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def local_keys(attributes: dict[str, str]) -> dict[str, str]:
    """Attributes without their namespaces."""
    return {local(key): value for key, value in attributes.items()}
