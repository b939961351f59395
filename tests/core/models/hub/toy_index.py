"""A package index on this machine with one wheel, which can stop in the middle of sending it."""

import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from tests.core.models.hub.toy_hub import answering

WHEEL = "toy_model-1.0-py3-none-any.whl"


def wheel_with(name: str, content: bytes) -> bytes:
    """A wheel that pip takes for toy-model 1.0, with a file in it."""
    info, held = "toy_model-1.0.dist-info", io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"toy_model/{name}", content)
        packed.writestr("toy_model/__init__.py", "")
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return held.getvalue()


@dataclass
class ToyIndex:
    """What is served, and how it misbehaves."""

    wheel: bytes
    stops: threading.Event | None = None  # half of the wheel is sent, the rest when this is set
    url: str = ""
    fetched: int = 0  # times that the wheel was asked for


@contextmanager
def serving(index: ToyIndex) -> Iterator[ToyIndex]:
    """Answer on a free port of 127.0.0.1 for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            if self.path == "/simple/toy-model/":
                return self.answer(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
            if self.path != f"/{WHEEL}":
                return self.send_error(404)
            index.fetched += 1
            self.answer(index.wheel, "application/octet-stream")

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if kind == "text/html" or index.stops is None:
                self.wfile.write(body)
                return
            self.wfile.write(body[: len(body) // 2])
            index.stops.wait()

    with answering(Handler) as address:
        index.url = f"{address}/simple"
        yield index
        if index.stops is not None:
            index.stops.set()
