"""Workers and served pages that end with their test."""

import argparse
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.cli.arguments import parse_arguments
from app.cli.serve import loaded
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.server.serve_page import load
from app.ui.site import Site
from core.config import EngineConfig
from tests.app.documents.conftest import in_this_process as in_this_process
from tests.app.documents.conftest import make_epub as make_epub
from tests.app.documents.conftest import make_pdf as make_pdf
from tests.app.documents.conftest import writer as writer
from tests.app.fakes import MACHINE, SECONDS, FakeEngine, Reader, free_port, worker_of


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def begin_worker() -> Iterator[Callable[..., EngineWorker]]:
    """Start a worker on what loads its model, which is not waited for."""
    workers: list[EngineWorker] = []

    def begin(load: Callable[[], Any], **options: Any) -> EngineWorker:
        workers.append(EngineWorker(load, **options))
        workers[-1].start()
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()


@pytest.fixture
def start_worker(begin_worker: Callable[..., EngineWorker]) -> Callable[..., EngineWorker]:
    def start(engine: Any, **options: Any) -> EngineWorker:
        worker = begin_worker(lambda: (engine, MACHINE), **options)
        assert worker.jobs.has_loaded(SECONDS)
        return worker

    return start


@pytest.fixture
def worker(engine: FakeEngine, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    return start_worker(engine)


@pytest.fixture
def reader(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> Reader:
    """A page whose book has been read."""
    reader = Reader(worker, engine, worker.sessions.enter(""), tmp_path)
    reader.opens()
    return reader


@pytest.fixture
def session(reader: Reader) -> Session:
    return reader.session


@pytest.fixture(scope="module")
def bundled_worker() -> Iterator[EngineWorker]:
    """A worker on the bundled pair."""
    worker = EngineWorker(lambda: load(EngineConfig(device="cpu", context=2048)))
    worker.start()
    loaded(worker)
    yield worker
    worker.close()


@pytest.fixture
def arguments(tmp_path: Path) -> argparse.Namespace:
    """What launch.py hands to the app, with a free port and a data folder of the test's own."""
    return arguments_for(tmp_path / "data")


def arguments_for(data_dir: Path) -> argparse.Namespace:
    """What launch.py hands to the app, with a free port."""
    args = parse_arguments(["--device", "cpu", "--no-browser", "--data-dir", str(data_dir)])
    args.port = free_port()
    return args


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

    @property
    def site(self) -> Site:
        """What the page is drawn from."""
        (route,) = (one for one in self.app.routes if getattr(one, "path", "") == "/page/state")
        site: Site = route.endpoint.__self__._site
        return site


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
        serve_page.prepare_process(serve_page.data_dir(arguments.data_dir), arguments.host)
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
