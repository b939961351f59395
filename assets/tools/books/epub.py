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
ENTRY_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of a ZIP archive
UNIX, MODE = 3, 0o644
CONTAINER = """<?xml version="1.0" encoding="UTF-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/></rootfiles>
</container>
"""
PACKAGE = """<?xml version="1.0" encoding="UTF-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:identifier id="id">{identifier}</dc:identifier>
<dc:title>{title}</dc:title>
<dc:language>en</dc:language>
<meta property="dcterms:modified">1980-01-01T00:00:00Z</meta>
</metadata>
<manifest>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
{items}
</manifest>
<spine>
{order}
</spine>
</package>
"""
PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">
<head><title>{title}</title></head>
<body>
{body}
</body>
</html>
"""


def to_epub(book: Book) -> bytes:
    """The book as an EPUB."""
    chapters = {f"chapter-{at:03}.xhtml": one.text.split("\n\n") for at, one in enumerate(book.chapters, start=1)}
    names = ["title.xhtml", *chapters]
    items = [f'<item id="s{at}" href="{name}" media-type="application/xhtml+xml"/>' for at, name in enumerate(names)]
    order = [f'<itemref idref="s{at}"/>' for at in range(len(names))]
    entries = [f'<li><a href="{name}">{escape(heading)}</a></li>' for name, (heading, *_) in chapters.items()]
    contents = ['<nav epub:type="toc" id="toc">', "<h1>Contents</h1>", "<ol>", *entries, "</ol>", "</nav>"]
    files = {
        "META-INF/container.xml": CONTAINER,
        "EPUB/package.opf": PACKAGE.format(
            identifier=uuid.uuid5(uuid.NAMESPACE_OID, book.text).urn,
            title=escape(book.title),
            items="\n".join(items),
            order="\n".join(order),
        ),
        "EPUB/nav.xhtml": page("Contents", contents),
        "EPUB/title.xhtml": page(book.title, [f"<h1>{escape(book.title)}</h1>"]),
    }
    for name, (heading, *paragraphs) in chapters.items():
        body = [f"<h1>{escape(heading)}</h1>", *(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)]
        files[f"EPUB/{name}"] = page(heading, body)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:  # the mimetype first and uncompressed
        archive.writestr(entry("mimetype", zipfile.ZIP_STORED), MIMETYPE)
        for name, content in files.items():
            archive.writestr(entry(name, zipfile.ZIP_DEFLATED), content.encode(), compresslevel=9)
    return stream.getvalue()


def page(title: str, body: Sequence[str]) -> str:
    """An XHTML file."""
    return PAGE.format(title=escape(title), body="\n".join(body))


def entry(name: str, method: int) -> zipfile.ZipInfo:
    """An archive entry that is equal on every system at any time."""
    info = zipfile.ZipInfo(name, ENTRY_TIME)
    info.compress_type, info.create_system, info.external_attr = method, UNIX, MODE << 16
    return info
