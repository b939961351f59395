"""Workers and served pages that end with their test."""

import argparse
import gc
import os
import socket
from collections.abc import Callable, Iterator
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
        data_dir=tmp_path / "data",
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
    from app.server import serve_page

    before = dict(os.environ)
    pages: list[Any] = []

    def start(worker: EngineWorker) -> str:
        serve_page.prepare_process(serve_page.data_dir(arguments.data_dir))
        pages.append(serve_page.serve(arguments, worker, serve_page.credentials(arguments.auth), note="A note."))
        return f"http://127.0.0.1:{arguments.port}/"

    yield start
    for page in pages:
        page.close(verbose=False)
    pages.clear()
    gc.collect()  # Gradio leaves event loops lying about; better collected here than in an innocent test
    os.environ.clear()
    os.environ.update(before)
