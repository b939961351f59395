"""Pages that are pictures: recognised, kept, stopped, and what happens where the engine cannot."""

import os
import stat
from pathlib import Path

import psutil
import pytest

from app.documents import ocr
from app.documents.document import Document, Extracting
from app.documents.errors import DocumentError, OcrMissing, ScannedDocument
from app.documents.ocr import Ocr
from app.documents.parsers.recognition import MAX_PIXELS, MAX_SIDE, scale_of
from app.documents.readers import extract_document
from app.documents.recognised import RecognisedPages
from assets.tools.documents.scans import Source, measure
from core.files import file_digest
from tests.app.documents import fake_ocr
from tests.app.documents.fake_ocr import BROKEN, CRASHES, EMPTY, FAILS, MISSING, write_scan

SAMPLE = Path(__file__).parents[3] / "assets" / "books" / "harbour-8k.pdf"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ocr.use(monkeypatch)


def read(file: Path, how: Ocr | None = None) -> Document:
    *_, document = extract_document(file, ocr=how or Ocr(recognise=True))
    assert isinstance(document, Document)
    return document


def shades(document: Document) -> list[str]:
    """What was recognised on each page."""
    texts = [document.page_text(page) for page in document.pages]
    return [text.partition("shade ")[2].partition(" ")[0] for text in texts]


def test_a_scan_becomes_text_and_says_so_but_for_pages_on_which_the_engine_fails_or_crashes(tmp_path: Path) -> None:
    scan = write_scan(tmp_path / "scan.pdf", 60, FAILS, 70, CRASHES, 80, EMPTY)
    *steps, document = extract_document(scan, ocr=Ocr(recognise=True))
    assert isinstance(document, Document) and shades(document) == ["60", "", "70", "", "80", ""]
    assert document.picture_pages == (2, 4) and document.recognised_pages == (1, 3, 5, 6)
    assert "Recognised on pictures (OCR), so that letters may be wrong: pages 1, 3, 5–6." in document.warnings
    assert document.text.startswith("A page of shade 60 lay on the table and measured 1112 by 1556")
    done = [step for step in steps if isinstance(step, Extracting) and step.recognising]
    assert [step.num_done for step in done] == sorted(step.num_done for step in done)
    assert done[-1].num_done == done[-1].num_pages == 6 and done[-1].seconds_left == 0


def test_what_was_recognised_once_is_kept_even_where_the_engine_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, kept = write_scan(tmp_path / "scan.pdf", 60, 70), RecognisedPages(tmp_path / "kept")
    first = read(scan, Ocr(recognise=True, kept=kept))
    (file,) = kept.folder.iterdir()
    assert file.name == f"{file_digest(scan)}-fake-1.jsonl"
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    monkeypatch.setattr(Ocr, "_recognise", None)  # would fail
    assert read(scan, Ocr(recognise=True, kept=kept)) == first
    assert read(scan, Ocr(recognise=False, kept=kept)) == first
    monkeypatch.setenv(MISSING, "1")
    assert read(scan, Ocr(recognise=False, kept=kept)) == first
    with pytest.raises(ScannedDocument):
        read(scan, Ocr(recognise=False))


@pytest.mark.parametrize("how", [MISSING, BROKEN])
def test_without_an_engine_one_command_is_named(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(how, "1")
    with pytest.raises(OcrMissing) as caught:
        read(write_scan(tmp_path / "scan.pdf", 60, 70))
    assert " -m pip install -r requirements-ocr.txt" in caught.value.hint and "\n" not in str(caught.value)


def test_a_picture_bomb_costs_no_more_than_the_limits(tmp_path: Path) -> None:
    bomb, before = write_scan(tmp_path / "bomb.pdf", 60), psutil.Process().children()
    content = bomb.read_bytes().replace(b"/Width 400", b"/Width 60000").replace(b"/Height 560", b"/Height 60000")
    assert b"/Width 60000" in content
    bomb.write_bytes(content)
    with pytest.raises(DocumentError):  # nothing half-loaded
        read(bomb, Ocr(recognise=False))
    try:
        assert read(bomb).pages
    except DocumentError as error:
        assert "\n" not in str(error)
    assert [one for one in psutil.Process().children() if one not in before] == []


@pytest.mark.parametrize("size", [(595, 842), (14_173, 14_173), (14_400, 3), (1, 1), (200_000, 10)])
def test_pictures_of_pages_are_bounded(size: tuple[float, float]) -> None:
    scale = scale_of(*size)
    width, height = (side * scale for side in size)
    assert width * height <= MAX_PIXELS * 1.001 and max(width, height) <= MAX_SIDE * 1.001
    assert scale <= 200 / 72


def test_a_scanned_page_of_the_sample_is_read_rightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rapidocr", reason="requirements-ocr.txt is not installed")
    monkeypatch.setattr(ocr, "ENGINE", "app.documents.rapid_ocr")
    row = measure(Source(SAMPLE, 4, 4, angle=1.0), 200, tmp_path)
    assert row.num_letters > 1_000 and row.num_wrong < 0.02 * row.num_letters
