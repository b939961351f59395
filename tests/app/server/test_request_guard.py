"""No page of another site, and no name that is not ours, reaches anything of the running app."""

import argparse
import re
import socket
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest

from app.runtime.worker import EngineWorker
from app.server import request_guard, serve_page
from app.server.request_guard import Hosts, RequestGuard
from tests.app.conftest import Served
from tests.app.fakes import FOREIGN, GRADIO_WARNINGS, SECONDS, finish

pytestmark = GRADIO_WARNINGS
ServeOn = Callable[[EngineWorker], str]
Headers = list[tuple[str, str]]
FEWEST_ROUTES = 60  # Gradio's; fewer are found when the way to list them has changed


def foreign(port: int) -> dict[str, Headers]:
    """Requests as browsers send them for pages that are not ours."""
    own = ("host", f"127.0.0.1:{port}")
    return {
        "another name": [("host", f"rebound.example:{port}")],
        "another name and its own origin": [
            ("host", f"rebound.example:{port}"), ("origin", f"http://rebound.example:{port}"),
            ("sec-fetch-site", "same-origin"),
        ],
        "another port": [("host", f"127.0.0.1:{port + 1}")],
        "another machine": [("host", f"203.0.113.7:{port}")],
        "no name": [],
        "two names": [own, ("host", f"127.0.0.1:{port}")],
        "a name with a path": [("host", f"127.0.0.1:{port}/rebound.example")],
        "another origin": [own, ("origin", "https://evil.example")],
        "another port's origin": [own, ("origin", f"http://127.0.0.1:{port + 1}")],
        "another scheme's origin": [own, ("origin", f"https://127.0.0.1:{port}")],
        "our other name's origin": [own, ("origin", f"http://localhost:{port}")],
        "a null origin": [own, ("origin", "null")],
        "two origins": [own, ("origin", f"http://127.0.0.1:{port}"), ("origin", "https://evil.example")],
        "another site": [own, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        "a neighbour": [own, ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
        "a frame": [
            own, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe"),
        ],
    }  # fmt: skip


class Answer:
    """What an app sent: status (0 for a websocket that was closed unopened), headers, body."""

    def __init__(self, app: Any, scope: dict[str, Any]) -> None:
        self.status, self.headers, self.body = -1, dict[str, str](), b""
        finish(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            case "http.response.body":
                self.body += message.get("body", b"")
            case "websocket.close":
                self.status = 0


def ask(app: Any, path: str, headers: Headers, method: str = "GET", kind: str = "http") -> Answer:
    scope: dict[str, Any] = {"type": kind, "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"root_path": "", "http_version": "1.1", "extensions": {}}
    scope |= {"server": ("127.0.0.1", 7860), "client": ("127.0.0.1", 50000)}
    scope |= {"method": method, "scheme": "http"} if kind == "http" else {"scheme": "ws"}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    return Answer(app, scope)


@pytest.fixture
def app(served_page: Served) -> Any:
    """The running application."""
    return served_page.app


@pytest.fixture
def port(served_page: Served) -> int:
    """Where it listens."""
    return int(served_page.arguments.port)


def routes_of(app: Any) -> list[tuple[str, str]]:
    """Every address of an app and each of its methods."""

    def walk(routes: Iterable[Any]) -> Iterable[Any]:
        for route in routes:
            if hasattr(route, "original_router"):
                yield from walk(route.original_router.routes)
            else:
                yield route

    found = []
    for route in walk(app.routes):
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        found += [(path, method) for method in (*(route.methods or ("GET",)), "OPTIONS")]
    return sorted(set(found))


def test_every_address_of_the_app_is_closed_to_others(app: Any, port: int) -> None:
    routes = routes_of(app)
    assert len(routes) > FEWEST_ROUTES and ("/gradio_api/queue/join", "POST") in routes
    for name, headers in foreign(port).items():
        for path, method in routes:
            answer = ask(app, path, headers, method)
            assert answer.status in (403, 421), f"{method} {path} is open to {name}"
            assert b"evil" not in answer.body and b"rebound" not in answer.body and len(answer.body) < 100
            assert not any(one.startswith("access-control-") for one in answer.headers)
        for path in {path for path, _ in routes}:
            assert ask(app, path, headers, kind="websocket").status == 0, f"a websocket at {path} is open to {name}"


def test_our_own_page_and_programs_come_in(app: Any, port: int) -> None:
    own, origin = ("host", f"127.0.0.1:{port}"), ("origin", f"http://127.0.0.1:{port}")
    for headers in (
        [own],
        [own, origin],
        [own, origin, ("sec-fetch-site", "same-origin")],
        [own, ("sec-fetch-site", "none")],
        [("host", f"localhost:{port}"), ("origin", f"http://localhost:{port}")],
        [("host", "LOCALHOST")],
        [("host", f"[::1]:{port}")],
    ):
        answer = ask(app, "/config", headers)
        assert answer.status == 200, headers
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert not any(name.startswith("access-control-") for name in answer.headers)
    visit = [own, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
    assert ask(app, "/", visit).status == 200, "a link on another page may lead here"
    assert ask(app, "/config", visit).status == 403 and ask(app, "/", visit, "POST").status == 403
    assert ask(app, "/", [*visit, ("origin", "null")]).status == 403


def test_five_foreign_requests_are_refused(served_page: Served, port: int) -> None:
    address = served_page.address
    for headers in FOREIGN:
        answer = httpx.get(f"{address}config", headers=headers, trust_env=False, timeout=SECONDS)
        assert answer.status_code == (421 if "Host" in headers else 403) and answer.text.count("\n") == 0
    assert httpx.get(f"{address}config", trust_env=False, timeout=SECONDS).status_code == 200
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(
            b"GET /config HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert line.recv(100).split()[1] in (b"403", b"421"), "a real handshake"


def test_the_doors_stand_before_everything_that_the_framework_adds(app: Any) -> None:
    assert isinstance(app.middleware_stack, RequestGuard)


def test_a_server_without_its_doors_does_not_stay(
    serve: ServeOn, worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_page, "guarded", lambda hosts: None)
    with pytest.raises(RuntimeError, match="guard"):
        serve(worker)


def test_a_server_for_the_network(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments.host, arguments.auth, arguments.allow_host = "0.0.0.0", "reader:long enough", ["reader.lan"]
    serve(worker)
    assert "plain http" in capsys.readouterr().err
    with httpx.Client(trust_env=False, timeout=SECONDS, base_url=f"http://127.0.0.1:{arguments.port}") as client:
        assert client.get("/").status_code == 200
        assert client.get("/config").status_code == 401
        for host, status in (("reader.lan", 200), ("192.0.2.1", 421), ("rebound.example", 421)):
            assert client.get("/", headers={"Host": f"{host}:{arguments.port}"}).status_code == status


# -------------------- names


OURS = (  # where it listens, the Host, where the connection arrived
    ("127.0.0.1", "127.0.0.1:7860", "127.0.0.1"), ("127.0.0.1", "127.9.9.9:7860", "127.0.0.1"),
    ("127.0.0.1", "[0:0:0:0:0:0:0:1]:7860", "127.0.0.1"), ("192.168.1.5", "192.168.1.5:7860", "192.168.1.5"),
    ("reader.lan", "Reader.LAN:7860", "192.168.1.5"), ("0.0.0.0", "192.168.1.5:7860", "192.168.1.5"),
    ("::", "[fe80::1]:7860", "fe80::1%eth0"), ("::", "192.168.1.5:7860", "::ffff:192.168.1.5"),
)  # fmt: skip
OTHERS = (
    ("127.0.0.1", "localhost.evil.example:7860", "127.0.0.1"),
    ("127.0.0.1", "127.0.0.1.evil.example:7860", "127.0.0.1"),
    ("127.0.0.1", "user@127.0.0.1:7860", "127.0.0.1"), ("127.0.0.1", "127.0.0.1:7860,evil.example", "127.0.0.1"),
    ("127.0.0.1", "192.168.1.5:7860", "127.0.0.1"), ("127.0.0.1", "0.0.0.0:7860", "127.0.0.1"),
    ("192.168.1.5", "192.168.1.6:7860", "192.168.1.5"), ("0.0.0.0", "192.168.1.6:7860", "192.168.1.5"),
    ("0.0.0.0", "reader.lan:7860", "192.168.1.5"), ("127.0.0.1", "", "127.0.0.1"), ("0.0.0.0", "", ""),
)  # fmt: skip


@pytest.mark.parametrize("bound, host, arrived_at", [*OURS, *OTHERS])
def test_which_names_are_ours(bound: str, host: str, arrived_at: str) -> None:
    assert bool(Hosts(bound, 7860).origins(host, arrived_at)) is ((bound, host, arrived_at) in OURS)


def test_names_that_the_user_gives() -> None:
    hosts = Hosts("0.0.0.0", 7860, ["Reader.lan", "books.example:8443"])
    assert hosts.origins("reader.lan:7860", "") == ("http://reader.lan:7860", "https://reader.lan:7860")
    assert hosts.origins("reader.lan", "") and not hosts.origins("reader.lan:1", "")
    assert hosts.origins("books.example:8443", "") and not hosts.origins("books.example", "")
    assert not hosts.origins("other.lan:7860", "")


def test_the_shared_address_is_admitted_once_it_is_known() -> None:
    hosts = Hosts("127.0.0.1", 7860)
    assert not hosts.origins("abc.gradio.live", "127.0.0.1")
    hosts.allow("https://abc.gradio.live")
    assert hosts.origins("abc.gradio.live", "127.0.0.1") == ("https://abc.gradio.live",)
    assert not hosts.origins("abd.gradio.live", "127.0.0.1")


def test_a_page_of_the_shared_address(app: Any) -> None:
    hosts = Hosts("127.0.0.1", 7860)
    hosts.allow("https://abc.gradio.live")
    shared = RequestGuard(app, hosts)
    own = [("host", "abc.gradio.live"), ("origin", "https://abc.gradio.live")]
    told = ask(shared, "/nowhere", [("host", "elsewhere")]).headers
    assert request_guard.TO_OURSELVES.items() <= {name.title(): value for name, value in told.items()}.items()
    assert ask(RequestGuard(nothing, hosts), "/config", own).status == 204
    assert ask(RequestGuard(nothing, hosts), "/config", [own[0], ("origin", "http://abc.gradio.live")]).status == 403


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An app that lets any page read its answers."""
    headers = [(b"access-control-allow-origin", b"*"), (b"Access-Control-Allow-Credentials", b"true")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def test_nobody_is_told_that_other_pages_may_read() -> None:
    answer = ask(RequestGuard(nothing, Hosts("127.0.0.1", 7860)), "/", [("host", "127.0.0.1:7860")])
    assert answer.status == 204 and not any("access-control" in name for name in answer.headers)
