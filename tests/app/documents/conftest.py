"""PDFs and EPUBs made by hand, so that a test says exactly what is on the paper and in the archive."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from app.documents import parsing, worker
from app.documents.parsing import ParsingLimits, ParsingProcess
from tests.hostile.corpus import epub, package, page

MakePdf = Callable[..., Path]
MakeEpub = Callable[..., Path]

TIMES = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Times-Roman", "/Encoding": "/WinAnsiEncoding"}
FONT = DictionaryObject({NameObject(name): NameObject(value) for name, value in TIMES.items()})


def write_lines(lines: Sequence[str]) -> bytes:
    """A content stream that shows each line 14 points below the last."""
    shown = [line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)") for line in lines]
    return "\n".join(["BT /F1 11 Tf 14 TL 50 800 Td", *(f"({line}) Tj T*" for line in shown), "ET"]).encode("cp1252")


def lines(code: str, *arguments: str, **limits: int) -> Iterator[bytes]:
    """What a process prints; then why it was ended, if it was."""
    process = ParsingProcess(["-c", code, *arguments], ParsingLimits(**limits))
    try:
        while (line := process.line()) != b"":
            if line:
                yield line
        if process.limit:
            yield process.limit.encode()
    finally:
        process.close()


class InThisProcess:
    """Runs a parser as the worker does, but here: no limits, and no time for a start."""

    limit = None

    def __init__(self, arguments: Sequence[str], limits: ParsingLimits) -> None:
        _, _, parser, file, _, _, *more = arguments
        self._lines = self._read(parser, file, more)

    def _read(self, parser: str, file: str, more: Sequence[str]) -> Iterator[bytes]:
        sent: list[Any] = []
        with Path(file).open("rb") as stream, pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "send", sent.append)
            worker.send_all(import_module(f"app.documents.parsers.{parser}").read(stream, *more))
        yield from (json.dumps(message).encode() + b"\n" for message in sent)

    def line(self) -> bytes:
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


@pytest.fixture
def make_epub(tmp_path: Path) -> MakeEpub:
    """Write an EPUB of sections (bodies). `files` come on top or in the place of what would be there; None: no file."""

    def make(
        *bodies: str, name: str = "book.epub", files: Mapping[str, str | bytes | None] = {}, **options: str
    ) -> Path:
        sections = {f"OPS/s{number}.xhtml": page(body) for number, body in enumerate(bodies, 1)}
        order = package([file.removeprefix("OPS/") for file in sections], **options)  # type: ignore[arg-type]
        whole = {"OPS/b.opf": order, **sections, **files}
        path = tmp_path / name
        path.write_bytes(epub({file: content for file, content in whole.items() if content is not None}))
        return path

    return make
