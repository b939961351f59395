"""A book as EPUB 3 (EPUB 3.3): a title page, one XHTML file for each chapter, and a table of contents.

Times and identifiers do not depend on when or where it is written, so equal books give equal bytes.
"""

import io
import uuid
import zipfile
from collections.abc import Sequence
from html import escape

from assets.tools.books.generated import Book

MIMETYPE = "application/epub+zip"
MODIFIED = "1980-01-01T00:00:00Z"  # the earliest time of a ZIP archive
ENTRY_TIME = (1980, 1, 1, 0, 0, 0)
UNIX, MODE = 3, 0o644
CONTAINER = """<?xml version="1.0" encoding="UTF-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/></rootfiles>
</container>
"""


def to_epub(book: Book) -> bytes:
    """The book as an EPUB."""
    chapters = [chapter.text.split("\n\n") for chapter in book.chapters]  # a heading, then paragraphs
    names = [f"chapter-{number:03}.xhtml" for number in range(1, len(chapters) + 1)]
    files = {
        "META-INF/container.xml": CONTAINER,
        "EPUB/package.opf": package(book, ["title.xhtml", *names]),
        "EPUB/nav.xhtml": contents(dict(zip(names, (heading for heading, *_ in chapters), strict=True))),
        "EPUB/title.xhtml": page(book.title, [f"<h1>{escape(book.title)}</h1>"]),
    }
    for name, (heading, *paragraphs) in zip(names, chapters, strict=True):
        body = [f"<h1>{escape(heading)}</h1>", *(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)]
        files[f"EPUB/{name}"] = page(heading, body)
    return pack(files)


def package(book: Book, names: Sequence[str]) -> str:
    """The package document: metadata, all files, and the reading order `names`."""
    identifier = uuid.uuid5(uuid.NAMESPACE_OID, book.text).urn
    items = [f'<item id="s{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(names)]
    order = [f'<itemref idref="s{n}"/>' for n in range(len(names))]
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">',
            '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">',
            f'<dc:identifier id="id">{identifier}</dc:identifier>',
            f"<dc:title>{escape(book.title)}</dc:title>",
            "<dc:language>en</dc:language>",
            f'<meta property="dcterms:modified">{MODIFIED}</meta>',
            "</metadata>",
            "<manifest>",
            '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>',
            *items,
            "</manifest>",
            "<spine>",
            *order,
            "</spine>",
            "</package>\n",
        ]
    )


def contents(headings: dict[str, str]) -> str:
    """The table of contents: file names and their headings."""
    entries = [f'<li><a href="{name}">{escape(heading)}</a></li>' for name, heading in headings.items()]
    return page(
        "Contents", ['<nav epub:type="toc" id="toc">', "<h1>Contents</h1>", "<ol>", *entries, "</ol>", "</nav>"]
    )


def page(title: str, body: Sequence[str]) -> str:
    """An XHTML file."""
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            "<!DOCTYPE html>",
            '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" '
            'xml:lang="en">',
            f"<head><title>{escape(title)}</title></head>",
            "<body>",
            *body,
            "</body>",
            "</html>\n",
        ]
    )


def pack(files: dict[str, str]) -> bytes:
    """A ZIP archive with the mimetype first and uncompressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(entry("mimetype", zipfile.ZIP_STORED), MIMETYPE)
        for name, content in files.items():
            archive.writestr(entry(name, zipfile.ZIP_DEFLATED), content.encode(), compresslevel=9)
    return stream.getvalue()


def entry(name: str, method: int) -> zipfile.ZipInfo:
    """An archive entry that is equal on every system at any time."""
    info = zipfile.ZipInfo(name, ENTRY_TIME)
    info.compress_type, info.create_system, info.external_attr = method, UNIX, MODE << 16
    return info
