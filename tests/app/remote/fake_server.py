"""A server that misbehaves as it is told: one scripted reply a request, in order; the last is repeated."""

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler"], None]
CARD = {"id": "big", "object": "model", "owned_by": "vllm", "max_model_len": 4096}


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the script of its path."""

    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        server: Any = self.server
        server.seen.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
        script = server.scripts.get(self.path)
        if script is None:
            json_reply({"error": {"message": "nothing here"}}, 404)(self)
            return
        reply = script.pop(0) if len(script) > 1 else script[0]
        reply(self)

    do_GET = do_HEAD = do_POST = _do

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class FakeServer(ThreadingHTTPServer):
    """What was asked, and what will be replied."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, Any, dict[str, str]]] = []
        self.scripts: dict[str, list[Reply]] = {"/v1/models": [json_reply({"object": "list", "data": [CARD]})]}
        self.answers(GOOD)
        self.answering = threading.Event()  # a part of a stream was sent, or a pause begins
        self.gone = threading.Event()  # a client has closed its connection amid a stream

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def tells(self, path: str, *replies: Reply) -> None:
        self.scripts[path] = list(replies)

    def answers(self, *replies: Reply) -> None:
        self.tells("/v1/chat/completions", *replies)

    def counts_words(self) -> None:
        def reply(handler: Handler) -> None:
            text = handler.server.seen[-1][1]["prompt"]  # type: ignore[attr-defined]
            json_reply({"count": len(text.split()), "max_model_len": 4096, "tokens": []})(handler)

        self.tells("/tokenize", reply)

    def handle_error(self, *_: Any) -> None:
        self.gone.set()

    @property
    def chats(self) -> list[Any]:
        return [body for path, body, _ in self.seen if path.endswith("completions") and body.get("max_tokens") != 1]


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# -------------------- replies


def raw(text: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> Reply:
    def reply(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(text)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(text)

    return reply


def json_reply(value: Any, status: int = 200) -> Reply:
    return raw(json.dumps(value).encode(), status)


def stream(*parts: bytes | float, end: bool = True, forever: bool = False) -> Reply:
    """Pieces of a stream; a number is a pause in seconds. Without `end` the connection is cut."""

    def reply(handler: Handler) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for part in itertools.cycle(parts) if forever else parts:
            if isinstance(part, float):
                handler.server.answering.set()  # type: ignore[attr-defined]
                time.sleep(part)
            else:
                handler.wfile.write(part)
                handler.wfile.flush()
        if not end:
            handler.connection.shutdown(socket.SHUT_RDWR)

    return reply


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"object": "chat.completion.chunk", **fields}).encode() + b"\n\n"


def says(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": reason}])


def thinks(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}])


def used(prompt: int, new: int, cached: int | None = None) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": new, **details})


DONE = b"data: [DONE]\n\n"
GOOD = stream(says("The light "), 0.02, says("house."), says("", "stop"), used(50, 4, 48), DONE)
ENDLESS = stream(says("word "), 0.01, forever=True)  # words until the client has had enough
