"""A request to an ASGI application without a server; a client of a real one, and a bare connection to it."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from tests.app.fakes import SECONDS, finish

Headers = Sequence[tuple[str, str]]


def client(**options: Any) -> httpx.Client:
    """A client that knows no proxy."""
    return httpx.Client(**{"trust_env": False, "timeout": SECONDS, **options})


def raw(address: str, head: str, body: bytes = b"", **headers: str) -> socket.socket:
    """A connection on which a request's head was sent, and what comes of its body."""
    url = httpx.URL(address)
    line = socket.create_connection((url.host, url.port or 80), SECONDS)
    sent = {"Host": url.netloc.decode(), **{name.replace("_", "-"): value for name, value in headers.items()}}
    line.sendall("\r\n".join([f"{head} HTTP/1.1", *map(": ".join, sent.items()), "", ""]).encode() + body)
    return line


class Answer:
    """What an app sent: status (0 for a websocket that was closed unopened, -1: nothing), headers, body."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = -1, dict[str, str](), b""

    async def send(self, message: Any) -> None:
        match message["type"]:
            case "http.response.start":
                assert self.status == -1, "it began twice"
                self.status = message["status"]
                self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            case "http.response.body":
                self.body += message.get("body", b"")
            case "websocket.close":
                self.status = 0


async def empty() -> dict[str, Any]:
    """The end of a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def ask(
    app: Any,
    path: str = "/",
    headers: Headers = (),
    method: str = "GET",
    receive: Callable[[], Awaitable[Any]] = empty,
    **more: Any,
) -> Answer:
    """The answer to one request. `more`: fields of its scope."""
    scope: dict[str, Any] = {"type": "http", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"root_path": "", "http_version": "1.1", "extensions": {}, "asgi": {"spec_version": "2.4"}}
    scope |= {"server": ("127.0.0.1", 7860), "client": ("127.0.0.1", 50000), "method": method, "scheme": "http"}
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in headers], **more}
    answer = Answer()
    finish(app(scope, receive, answer.send))
    return answer
