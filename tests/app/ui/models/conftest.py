"""A catalogue of toys, on a hub of this machine, and how a page loads models."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.ui.models.rows import ModelSource
from core.config import EngineConfig
from core.models.hub import catalog, shapes
from core.models.hub import download as downloading
from core.models.hub.download import DownloadProgress
from core.planning.hardware import Machine
from tests.app.fakes import MACHINE, SECONDS, FakeEngine
from tests.app.ui.pages import EVIL
from tests.core.models.hub.test_download import REPO, WEIGHTS
from tests.core.models.hub.test_download import hub as hub
from tests.core.models.hub.test_wheel import index as index
from tests.core.models.hub.toy_hub import ToyHub

TINY = catalog.Known(
    name="tiny",
    hub=REPO,
    description=f"A toy. {EVIL}",
    license="none",
    parameters=1_500_000,
    config={"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2},
)


def source(**options: Any) -> ModelSource:
    def load(config: EngineConfig) -> Any:
        def make() -> tuple[FakeEngine, Machine]:
            engine = FakeEngine()
            engine.info.model = config.model
            return engine, MACHINE

        return make

    return ModelSource(config=lambda name: EngineConfig(model=name, **options), load=load)


@pytest.fixture
def toys(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> ToyHub:
    """A catalogue of the bundled pair and of a toy that a hub on this machine has."""
    rows = {name: row for name, row in catalog.entries().items() if row.folder} | {"tiny": TINY}
    monkeypatch.setattr(catalog, "entries", lambda: rows)
    monkeypatch.setattr(shapes, "entries", lambda: rows)
    return hub


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is clear, a download stands still after the first piece of the weights."""
    real, gate = downloading.download, threading.Event()

    def held(repository: Any, cancel: threading.Event) -> Iterator[DownloadProgress]:
        for progress in real(repository, cancel):
            yield progress
            if progress.name == WEIGHTS and progress.file_bytes < progress.file_total_bytes:
                gate.wait(10 * SECONDS)

    monkeypatch.setattr(downloading, "download", held)
    return gate
