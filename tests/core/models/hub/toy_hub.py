"""A hub and a package index on this machine: the few requests that a download makes, with faults on demand."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34
LFS_FROM = 4096  # bytes: larger files are kept as the hub keeps weights, named by SHA-256


@dataclass
class ToyHub:
    """One repository and how it misbehaves. Requests for files are noted in `asked` as (name, range, status)."""

    repo: str
    files: dict[str, bytes]
    token: str | None = None  # wanted of whoever asks
    gated: bool = False
    commit: str = COMMIT
    stubborn: bool = False  # tells of its commit, whichever was asked for
    cut_after: list[int] = field(default_factory=list)  # bytes sent of a weights file before the line drops, in turn
    corrupt: list[str] = field(default_factory=list)  # names sent with a byte changed, once each
    no_ranges: bool = False
    failures: list[int] = field(default_factory=list)  # statuses answered to the next requests for files
    garbage: bool = False  # what answers is no hub
    extra: dict[str, Any] = field(default_factory=dict)  # siblings that no hub should name
    endpoint: str = ""
    asked: list[tuple[str, str | None, int]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    revisions: list[str | None] = field(default_factory=list)  # that were asked for

    def siblings(self) -> list[dict[str, Any]]:
        """Names, sizes and digests, as `?blobs=true` tells them."""
        rows = []
        for name, content in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
            if len(content) >= LFS_FROM:
                digest = hashlib.sha256(content).hexdigest()
                row["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            rows.append(row)
        return [*rows, *({"rfilename": name, **told} for name, told in self.extra.items())]


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port of 127.0.0.1 for as long as the context lasts; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(hub: ToyHub) -> Iterator[ToyHub]:
    """Answer on a free port of 127.0.0.1 for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            hub.tokens.append(self.headers.get("Authorization"))
            if hub.garbage:
                return self.answer(200, b"<html>Log in to the hotel's network</html>")
            api = f"/api/models/{hub.repo}"
            if self.path.startswith("/api/models/") and not self.path.startswith(api):
                return self.refuse(404, "RepoNotFound")
            if self.path.startswith(api):  # sizes are told to everybody, as of gated models
                if hub.token and not hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
                    return self.refuse(401, "RepoNotFound")
                hub.revisions.append(self.path.partition("/revision/")[2].partition("?")[0] or None)
                sha = hub.commit if hub.stubborn else hub.revisions[-1] or hub.commit
                told = {"id": hub.repo, "modelId": hub.repo, "sha": sha, "siblings": hub.siblings()}
                return self.answer(200, json.dumps(told).encode())
            if "/resolve/" not in self.path:
                return self.answer(404, b"")
            return self.send_file(unquote(self.path.rsplit("/", 1)[1]))

        def send_file(self, name: str) -> None:
            wanted = self.headers.get("Range")
            if hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
                hub.asked.append((name, wanted, 403))
                return self.refuse(401 if self.headers.get("Authorization") is None else 403, "GatedRepo")
            if hub.failures:
                hub.asked.append((name, wanted, hub.failures[0]))
                return self.answer(hub.failures.pop(0), b"")
            if name not in hub.files:
                hub.asked.append((name, wanted, 404))
                return self.refuse(404, "EntryNotFound")
            content = hub.files[name]
            if name in hub.corrupt:
                hub.corrupt.remove(name)
                content = content[:-1] + bytes([content[-1] ^ 1])
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not hub.no_ranges else 0
            hub.asked.append((name, wanted, 206 if start else 200))
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
            cut = hub.cut_after.pop(0) if hub.cut_after and len(content) >= LFS_FROM else None
            self.answer(206 if start else 200, content[start:], headers, cut)

        def refuse(self, status: int, code: str) -> None:
            self.answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

        def answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}, cut: int | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

    with answering(Handler) as hub.endpoint:
        yield hub


# -------------------- a package index with one wheel

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
def serving_wheel(index: ToyIndex) -> Iterator[ToyIndex]:
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
