"""A page with a book."""

from pathlib import Path

import pytest

from app.runtime.worker import EngineWorker
from tests.app.fakes import opened, write_book


@pytest.fixture
def session_id(worker: EngineWorker, tmp_path: Path) -> str:
    return opened(worker, write_book(tmp_path))
