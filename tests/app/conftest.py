"""Workers and served pages that end with their test."""

import argparse
import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.runtime.worker import EngineWorker
from tests.app.fakes import FakeEngine, worker_of


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., EngineWorker]]:
    workers: list[EngineWorker] = []

    def start(engine: Any, seed: int = 0) -> EngineWorker:
        workers.append(worker_of(engine, seed))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def worker(engine: FakeEngine, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    return start_worker(engine)


@pytest.fixture
def arguments(tmp_path: Path) -> argparse.Namespace:
    """What launch.py hands to the app, with a free port and a data folder of the test's own."""
    return arguments_for(tmp_path / "data")


def arguments_for(data_dir: Path) -> argparse.Namespace:
    """What launch.py hands to the app, with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return argparse.Namespace(
        model=None,
        draft="auto",
        bits=None,
        kv_bits=None,
        prefill_bits=None,
        self_draft_bits=None,
        device="cpu",
        gpus=None,
        context=None,
        gpu_memory=None,
        layerwise=True,
        attention="auto",
        graphs=True,
        cpu_attention_share=None,
        offline=False,
        seed=0,
        data_dir=data_dir,
        host="127.0.0.1",
        port=port,
        browser=False,
        share=False,
        auth=None,
        allow_host=None,
        remote=None,
        remote_key=None,
    )


@pytest.fixture
def serve(arguments: argparse.Namespace) -> Iterator[Callable[[EngineWorker], str]]:
    """Serve the page on a worker; returns its address."""
    with serving(arguments) as start:
        yield lambda worker: start(worker).address


@dataclass(frozen=True)
class Served:
    """A page that is served."""

    app: Any
    arguments: argparse.Namespace

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.arguments.port}/"


@pytest.fixture(scope="module")
def served_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A page for the tests of a module that leave it as it is."""
    worker = worker_of(FakeEngine())
    with serving(arguments_for(tmp_path_factory.mktemp("served") / "data")) as start:
        yield start(worker)
    worker.close()


@contextmanager
def serving(arguments: argparse.Namespace) -> Iterator[Callable[[EngineWorker], Served]]:
    """A way to serve the page on a worker; what was served ends with it."""
    from app.server import serve_page

    before = dict(os.environ)
    pages: list[Any] = []

    def start(worker: EngineWorker) -> Served:
        serve_page.prepare_process(serve_page.data_dir(arguments.data_dir))
        pages.append(serve_page.serve(arguments, worker, serve_page.credentials(arguments.auth), note="A note."))
        return Served(pages[-1].app, arguments)

    try:
        yield start
    finally:
        for page in pages:
            page.close(verbose=False)
        pages.clear()
        gc.collect()  # Gradio leaves event loops lying about; better collected here than in an innocent test
        os.environ.clear()
        os.environ.update(before)
