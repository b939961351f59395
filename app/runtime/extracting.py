"""The text of one file into its upload, in the caller's thread."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from app.context.uploads import Interrupted, Upload
from app.documents.bundle import extract_documents
from app.documents.document import Document, Extracting
from app.documents.ocr import Ocr
from app.documents.page_image import draw_cover
from app.documents.sniff import kind_of
from core.errors import CoreError


def extract_one(
    upload: Upload, file: Path, insert: Callable[[Upload, Sequence[Document]], None], ocr: Ocr
) -> Iterator[Extracting]:
    """Extract a file's text into its upload; of a ZIP file the first, and the others into new uploads behind it."""
    if not ocr.recognise:
        upload.stage = "extracting"
    found: list[Document] = []
    with ThreadPoolExecutor(1) as beside, closing(extract_documents(file, ocr=ocr)) as steps:
        cover = beside.submit(cover_of, file, upload.name)  # it takes as long as a short text
        for step in steps:
            if upload.stop.is_set() and not ocr.recognise:
                raise Interrupted(upload.name)
            if isinstance(step, Document):
                found.append(step)
            else:
                if step.recognising is ocr.recognise:
                    upload.num_done, upload.num_pages = step.num_done, step.num_pages
                    upload.seconds_left = step.seconds_left
                yield step
    insert(upload, found[1:])
    if found[0].format == "pdf" and is_pdf(file):
        upload.file = file
        found[0] = replace(found[0], cover=cover.result())
    upload.name, upload.document, upload.stage = found[0].name, found[0], "extracted"


def cover_of(file: Path, name: str) -> str:
    """The first page of a PDF as a small picture; "" without one. Its problems are told by who reads the text."""
    with suppress(CoreError, OSError):
        return draw_cover(file, name) if is_pdf(file) else ""
    return ""


def is_pdf(file: Path) -> bool:
    """Whether a file is a PDF itself, not a folder or a ZIP file of one."""
    return not file.is_dir() and kind_of(file, file.name) == "pdf"
