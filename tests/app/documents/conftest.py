"""PDFs and EPUBs made by hand, so that a test says exactly what is on the paper and in the archive."""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from app.documents import parsing, worker

MakePdf = Callable[..., Path]
MakeEpub = Callable[..., Path]

FONT = DictionaryObject(
    {
        NameObject("/Type"): NameObject("/Font"),
        NameObject("/Subtype"): NameObject("/Type1"),
        NameObject("/BaseFont"): NameObject("/Times-Roman"),
        NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
    }
)


def write_lines(lines: Sequence[str]) -> bytes:
    """A content stream that shows each line 14 points below the last."""
    shown = [line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)") for line in lines]
    return "\n".join(["BT /F1 11 Tf 14 TL 50 800 Td", *(f"({line}) Tj T*" for line in shown), "ET"]).encode("cp1252")


class InThisProcess:
    """Runs a parser as the worker does, but here: no limits, and no time for a start."""

    limit = None

    def __init__(self, arguments: Sequence[str], *limits: int) -> None:
        _, _, parser, file, _, _, *more = arguments
        self._lines = self._read(parser, file, more)

    def _read(self, parser: str, file: str, more: Sequence[str]) -> Iterator[bytes]:
        sent: list[Any] = []
        with Path(file).open("rb") as stream, pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "send", sent.append)
            worker.send_all(import_module(f"app.documents.parsers.{parser}").read(stream, *more))
        yield from (json.dumps(message).encode() + b"\n" for message in sent)

    def line(self, seconds: float) -> bytes:
        return next(self._lines, b"")

    def wait(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is left."""


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is in a text: parsers run here. `test_process` and `test_sandbox` have those of their own."""
    monkeypatch.setattr(parsing, "ParsingProcess", InThisProcess)


@pytest.fixture
def writer() -> PdfWriter:
    return PdfWriter()


@pytest.fixture
def make_pdf(tmp_path: Path, writer: PdfWriter) -> MakePdf:
    """Write a PDF whose pages are lists of lines; `raw` contents go into the page as they are."""

    def make(*pages: Sequence[str] | bytes, name: str = "book.pdf") -> Path:
        for content in pages:
            page = writer.add_blank_page(595, 842)
            stream = DecodedStreamObject()
            stream.set_data(content if isinstance(content, bytes) else write_lines(content))
            page[NameObject("/Contents")] = writer._add_object(stream)
            fonts = DictionaryObject({NameObject("/F1"): FONT})
            page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        path = tmp_path / name
        writer.write(path)
        return path

    return make


CONTAINER = (
    '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)


def package(names: Sequence[str], title: str = "The Pilot", head: str = "", more: str = "") -> str:
    """A package document whose reading order is `names`; `more`: further items."""
    kind = "application/xhtml+xml"
    items = [f'<item id="i{n}" href="{name}" media-type="{kind}"/>' for n, name in enumerate(names)]
    order = [f'<itemref idref="i{n}"/>' for n in range(len(names))]
    return (
        f'<?xml version="1.0"?>{head}<package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
        f"<manifest>{''.join(items)}{more}</manifest><spine>{''.join(order)}</spine></package>"
    )


def section(body: str) -> str:
    """An XHTML file."""
    head = "<head><title>A head</title><style>p { color: red }</style></head>"
    return f'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml">{head}<body>{body}</body></html>'


@pytest.fixture
def make_epub(tmp_path: Path) -> MakeEpub:
    """Write an EPUB of sections (bodies). `files` come on top or in the place of what would be there; None: no file."""

    def make(
        *bodies: str, name: str = "book.epub", files: Mapping[str, str | bytes | None] = {}, **options: object
    ) -> Path:
        names = [f"s{number}.xhtml" for number in range(1, len(bodies) + 1)]
        contents: dict[str, str | bytes | None] = {"META-INF/container.xml": CONTAINER}
        contents["OPS/book.opf"] = package(names, **options)  # type: ignore[arg-type]
        contents |= {f"OPS/{file}": section(body) for file, body in zip(names, bodies, strict=True)}
        contents |= files
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
            for file, content in contents.items():
                if content is not None:
                    archive.writestr(file, content)
        return path

    return make
