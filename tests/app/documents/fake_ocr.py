"""An engine without models, and scans for it: what it reads on a page is the shade of its middle."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.documents import ocr, parsing
from app.documents.printed import Found

NAME = "fake"
MISSING, BROKEN, GATE = "FAKE_OCR_MISSING", "FAKE_OCR_BROKEN", "FAKE_OCR_GATE"  # variables of the environment
CRASHES, FAILS, EMPTY, WAITS = 0, 10, 20, 200  # shades; from WAITS on: while the file GATE is there


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the engine: its process finds this file by PYTHONPATH, and is told the variables above."""
    monkeypatch.setattr(ocr, "ENGINE", "fake_ocr")
    monkeypatch.setitem(sys.modules, "fake_ocr", sys.modules[__name__])
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(parsing, "ENVIRONMENT", (*parsing.ENVIRONMENT, MISSING, BROKEN, GATE))


def version() -> str | None:
    """None: it is not installed."""
    return None if MISSING in os.environ else "1"


def load(num_threads: int) -> Callable[[Any], Sequence[Found]]:
    """See `rapid_ocr.py`."""
    if BROKEN in os.environ:
        raise ImportError("a library is missing")
    return recognise


def recognise(picture: Any) -> Sequence[Found]:
    """Two lines, at the top of the page."""
    height, width = picture.shape[:2]
    shade = int(picture[height // 2, width // 2, 0])
    if shade == CRASHES:
        os.abort()
    if shade == FAILS:
        raise ValueError("no such picture")
    while shade >= WAITS and os.path.exists(os.environ.get(GATE, "")):
        time.sleep(0.01)
    if shade == EMPTY:
        return ()
    texts = f"A page of shade {shade} lay on the table", f"and measured {width} by {height} before the tide."
    return [
        Found(text, [(10, y), (10 + 8 * len(text), y), (10 + 8 * len(text), y + 12), (10, y + 12)])
        for text, y in zip(texts, (10, 26), strict=True)
    ]


def write_scan(path: Path, *shades: int, size: tuple[int, int] = (400, 560)) -> Path:
    """A PDF of grey pictures."""
    pages = [Image.new("L", size, shade) for shade in shades]
    pages[0].save(path, "PDF", resolution=72, save_all=True, append_images=pages[1:])
    return path
