"""Servers that end with their test: ours on a worker, in a thread with an event loop of its own; and a client."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from app.cli.serve import HOW, loaded
from app.runtime.worker import EngineWorker
from app.server.openai.api import Api
from app.server.request_guard import Hosts
from tests.app.fakes import SECONDS, FakeEngine, FakeText, free_port, wait_for


class ServedText(FakeText):
    """One token a character, templates of one token around every message."""

    def __init__(self, words: dict[int, str]) -> None:
        self._words = words

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(one) if one < 1000 else self._words.get(one, "?") for one in ids if one > 3)


class ServedEngine(FakeEngine):
    """A scripted engine that can be served."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.text: Any = ServedText(self.words)


@contextmanager
def served(worker: EngineWorker, **options: Any) -> Iterator[str]:
    """The address of a server on a started worker."""
    port = free_port()
    app = Api(worker, loaded(worker), **{"hosts": Hosts("127.0.0.1", port), **options}).app
    config = uvicorn.Config(app, port=port, log_level="critical", timeout_graceful_shutdown=1, **HOW)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()
