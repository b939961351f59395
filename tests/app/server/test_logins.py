"""Logins: guesses are slow, a right password waits seconds at most, and no other site's page uses the cookie."""

import argparse
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import Response

from app.runtime.worker import EngineWorker
from app.server.bodies import PageLimits
from app.server.request_guard import LONGEST_WAIT_SECONDS, WINDOW_SECONDS, Logins
from tests.app.fakes import GRADIO_WARNINGS
from tests.app.server.asgi import ask, client, raw

pytestmark = GRADIO_WARNINGS
RIGHT, WRONG = {"username": "reader", "password": "long enough"}, {"username": "reader", "password": "wrong"}


@pytest.fixture
def closed(
    serve: Callable[[EngineWorker], str], worker: EngineWorker, arguments: argparse.Namespace
) -> Callable[..., str]:
    """Serve a page behind a password; its address."""

    def start(host: str = "127.0.0.1") -> str:
        arguments.host, arguments.auth = host, "reader:long enough"
        return serve(worker)

    return start


def test_sixty_guesses_at_once_are_five(closed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Logins.__init__, "__defaults__", (lambda: 0.0,))  # all of them in one moment
    answers = []
    with client(base_url=closed()) as browser:
        for number in range(60):
            browser.headers["X-Forwarded-For"] = f"10.0.0.{number}"  # as anyone can write
            answers.append(browser.post("login/" if number % 2 else "login", data=WRONG))
    statuses = [answer.status_code for answer in answers]
    assert statuses[:5] == [400] * 5 and statuses.count(400) == 5 and set(statuses) == {400, 429}
    assert int(answers[-1].headers["retry-after"]) == 1 and "Wait a moment" in answers[-1].text


def test_cookies_are_for_our_own_pages(closed: Callable[..., str]) -> None:
    with client(base_url=closed()) as browser:
        cookies = browser.post("login", data=RIGHT).headers.get_list("set-cookie")
        assert len(cookies) == 2 and all("SameSite=Lax" in one and "HttpOnly" in one for one in cookies)
        assert not any("none" in one.lower() for one in cookies)
        assert browser.get("config").status_code == 200
        forwarded = browser.post("login", data=RIGHT, headers={"X-Forwarded-Proto": "https"})
        assert all("Secure" in one for one in forwarded.headers.get_list("set-cookie"))


# -------------------- waits, on a clock of the test's own


class Server:
    """Logins before an app with one password."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logins = Logins(self._app, lambda: self.now)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await Response(status_code=200 if scope["query_string"] == b"right" else 400)(scope, receive, send)

    def guess(self, query: bytes = b"", address: str = "10.0.0.1") -> int:
        return ask(self.logins, "/login", method="POST", query_string=query, client=(address, 1)).status


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
    assert server.guess(b"right") == 429, "nobody learns from a refusal whether it was right"
    assert server.guess(address="10.0.0.2") == 429, "many addresses are slowed together"
    server.now += LONGEST_WAIT_SECONDS
    assert server.guess(b"right") == 200 and server.guess(b"right") == 200, "nor does who has it"


# -------------------- without a login


def status(address: str, head: str, body: bytes = b"", declared: int = 4 << 20) -> bytes:
    """The status that the server answers before it closes, to a request that declares a body and sends some of it."""
    answer = b""
    with raw(address, head, body, Content_Length=f"{declared}") as line:
        while part := line.recv(1 << 16):
            answer += part
    return answer.split(b" ")[1]


def test_without_login_no_body_is_read_and_nothing_is_held(
    closed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, seen = closed("0.0.0.0"), list[str]()
    handle = PageLimits.__call__

    async def note(self: PageLimits, scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await handle(self, scope, receive, send)

    monkeypatch.setattr(PageLimits, "__call__", note)
    paths = ("page/act", "page/state", "gradio_api/upload", "gradio_api/run/open", "", "assets/x.js", "nowhere")
    for method in ("POST", "PUT", "OPTIONS", "GET"):
        for path in paths:
            assert status(address, f"{method} /{path}") == b"401", "refused before a byte of the body, and closed"
    unfinished = [raw(address, "POST /page/act", b"[" * 50_000, Content_Length="9999999") for _ in range(40)]
    assert all(line.recv(100).startswith(b"HTTP/1.1 401") for line in unfinished)
    for line in unfinished:
        line.close()
    forged = {"Cookie": "access-token-unsecure-x=y; access-token-x="}
    with client(base_url=address, headers=forged) as browser:
        for path in ("config", "gradio_api/info", "gradio_api/file=/etc/hosts", "gradio_api/user"):
            assert browser.get(path).status_code == 401, path
    assert seen == [], "the app saw none of them"


def test_what_a_login_needs_is_open_and_afterwards_everything(closed: Callable[..., str]) -> None:
    with client(base_url=closed()) as browser:
        page = browser.get("/")
        assert page.status_code == 200 and '"auth_required":true' in page.text.replace(" ", "")
        files = set(re.findall(r'(?:src|href)="\.?/?((?:assets|static|theme|favicon)[^"]*)"', page.text))
        assert len(files) > 1 and {browser.get(f"/{file}").status_code for file in files} <= {200}
        assert browser.post("/page/act", json={}).status_code == 401
        assert browser.post("/login", data=RIGHT).status_code == 200
        assert browser.get("/config").status_code == 200
        assert browser.post("/page/act", json={}).status_code == 400, "the page has read it"


def test_the_body_of_a_login_is_small_and_comes_soon(
    closed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.server.bodies.STALLED_SECONDS", 0.2)
    address = closed()
    assert status(address, "POST /login") == b"413"
    assert status(address, "POST /login", b"x" * 8000, 8000) == b"413"
    assert status(address, "POST /login", b"x", 100) == b"400", "ended, and forgotten"
