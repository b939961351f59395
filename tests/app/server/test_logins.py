"""Logins: guesses are slow, a right password waits seconds at most, and no other site's page uses the cookie."""

import argparse
import re
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.runtime.worker import EngineWorker
from app.server.bodies import PageLimits
from app.server.logins import LONGEST_WAIT_SECONDS, WINDOW_SECONDS, Logins
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, finish

pytestmark = GRADIO_WARNINGS
ServeOn = Callable[[EngineWorker], str]
RIGHT, WRONG = {"username": "reader", "password": "long enough"}, {"username": "reader", "password": "wrong"}


def login(client: httpx.Client, address: str, form: dict[str, str], path: str = "login") -> httpx.Response:
    return client.post(f"{address}{path}", data=form)


def test_sixty_guesses_at_once_are_five(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Logins.__init__, "__defaults__", (lambda: 0.0,))  # all of them in one moment
    arguments.auth = "reader:long enough"
    address = serve(worker)
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        answers = []
        for number in range(60):
            client.headers["X-Forwarded-For"] = f"10.0.0.{number}"  # as anyone can write
            answers.append(login(client, address, WRONG, "login/" if number % 2 else "login"))
    statuses = [answer.status_code for answer in answers]
    assert statuses[:5] == [400] * 5 and statuses.count(400) == 5 and set(statuses) == {400, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) == 1 and "Wait a moment" in refused.text


def test_cookies_are_for_our_own_pages(serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace) -> None:
    arguments.auth = "reader:long enough"
    address = serve(worker)
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        cookies = login(client, address, RIGHT).headers.get_list("set-cookie")
        assert len(cookies) == 2 and all("SameSite=Lax" in one and "HttpOnly" in one for one in cookies)
        assert not any("none" in one.lower() for one in cookies)
        assert client.get(f"{address}config").status_code == 200
        over_tls = login(client, address, RIGHT | {"x": "1"}).status_code
        forwarded = client.post(f"{address}login", data=RIGHT, headers={"X-Forwarded-Proto": "https"})
        assert over_tls == 200 and all("Secure" in one for one in forwarded.headers.get_list("set-cookie"))


# -------------------- waits, on a clock of the test's own


class Server:
    """Logins before an app with one password."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logins = Logins(self._app, lambda: self.now)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        status = 200 if scope["query_string"] == b"right" else 400
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def guess(self, *, right: bool = False, address: str = "10.0.0.1") -> int:
        found: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])

        query = b"right" if right else b""
        scope = {"type": "http", "method": "POST", "path": "/login", "scheme": "http", "query_string": query}
        scope |= {"client": (address, 1), "headers": []}
        finish(self.logins(scope, None, send))  # type: ignore[arg-type]
        return found[0]


def test_waits_grow_and_end() -> None:
    server, waits = Server(), []
    for _ in range(12):
        waited = 0
        while server.guess() == 429:
            server.now += 1
            waited += 1
        waits.append(waited)
    assert waits[:10] == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16] and max(waits) == LONGEST_WAIT_SECONDS
    assert server.now > 60, "a dozen a minute at most"
    server.now += WINDOW_SECONDS
    assert [server.guess() for _ in range(6)] == [400] * 5 + [429], "forgotten after a minute"


def test_the_right_password_comes_through_after_a_short_wait() -> None:
    server = Server()
    assert [server.guess() for _ in range(7)] == [400] * 5 + [429] * 2
    assert server.guess(right=True) == 429, "nobody learns from a refusal whether it was right"
    server.now += LONGEST_WAIT_SECONDS
    assert server.guess(right=True) == 200 and server.guess(right=True) == 200, "nor does who has it"


def test_many_addresses_are_slowed_together() -> None:
    server = Server()
    statuses = [server.guess(address=f"10.0.{number // 250}.{number % 250}") for number in range(2000)]
    assert statuses.count(400) == 5


# -------------------- without a login


def raw(address: str, head: str, body: bytes = b"", *, declared: int = 4 << 20) -> socket.socket:
    """A connection on which a request's head was sent, and a part of the body that it declares."""
    url = httpx.URL(address)
    line = socket.create_connection((url.host, url.port or 80), SECONDS)
    line.sendall(f"{head} HTTP/1.1\r\nHost: {url.netloc.decode()}\r\nContent-Length: {declared}\r\n".encode())
    line.sendall(b"Content-Type: application/json\r\n\r\n" + body)
    return line


def everything(line: socket.socket) -> bytes:
    """All that the server sends until it closes."""
    with line:
        parts = []
        while part := line.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_without_login_no_body_is_read_and_nothing_is_held(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments.host, arguments.auth = "0.0.0.0", "reader:long enough"
    address, seen = serve(worker), list[str]()
    handle = PageLimits.__call__

    async def note(self: PageLimits, scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await handle(self, scope, receive, send)

    monkeypatch.setattr(PageLimits, "__call__", note)
    paths = ("page/act", "page/state", "gradio_api/upload", "gradio_api/run/open", "", "assets/x.js", "nowhere")
    for method in ("POST", "PUT", "OPTIONS", "GET"):
        for path in paths:
            answer = everything(raw(address, f"{method} /{path}"))
            assert b" 401 " in answer.partition(b"\r\n")[0], "refused before a byte of the body, and closed"
    unfinished = [raw(address, "POST /page/act", b"[" * 50_000) for _ in range(40)]
    assert all(line.recv(100).startswith(b"HTTP/1.1 401") for line in unfinished)
    forged = {"Cookie": "access-token-unsecure-x=y; access-token-x="}
    for path in ("config", "gradio_api/info", "gradio_api/file=/etc/hosts", "gradio_api/user"):
        assert httpx.get(address + path, headers=forged, trust_env=False, timeout=SECONDS).status_code == 401, path
    assert seen == [], "the app saw none of them"
    for line in unfinished:
        line.close()


def test_what_a_login_needs_is_open_and_afterwards_everything(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    arguments.auth = "reader:long enough"
    address = serve(worker)
    with httpx.Client(trust_env=False, timeout=SECONDS, base_url=address) as client:
        page = client.get("/")
        assert page.status_code == 200 and '"auth_required":true' in page.text.replace(" ", "")
        files = set(re.findall(r'(?:src|href)="\.?/?((?:assets|static|theme|favicon)[^"]*)"', page.text))
        assert len(files) > 1 and {client.get(f"/{file}").status_code for file in files} <= {200}
        assert client.post("/page/act", json={}).status_code == 401
        assert login(client, address, RIGHT).status_code == 200
        assert client.get("/config").status_code == 200
        assert client.post("/page/act", json={}).status_code == 400, "the page has read it"


def test_the_body_of_a_login_is_small_and_comes_soon(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.server.bodies.STALLED_SECONDS", 0.2)
    arguments.auth = "reader:long enough"
    address = serve(worker)
    assert b" 413 " in everything(raw(address, "POST /login"))[:20]
    assert b" 413 " in everything(raw(address, "POST /login", b"x" * 8000, declared=8000))[:20]
    assert b" 400 " in everything(raw(address, "POST /login", b"x", declared=100))[:20], "ended, and forgotten"
