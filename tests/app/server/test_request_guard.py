"""No page of another site, and no name that is not ours, reaches anything of the app; and no foreign script runs."""

import argparse
import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from app.runtime.worker import EngineWorker
from app.server import request_guard, serve_page
from app.server.privacy import PagePolicy
from app.server.request_guard import Hosts, RequestGuard
from tests.app.conftest import Served
from tests.app.fakes import GRADIO_WARNINGS
from tests.app.server.asgi import Answer, Headers, ask, client

pytestmark = GRADIO_WARNINGS
ServeOn = Callable[[EngineWorker], str]
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


def test_every_address_of_the_app_is_closed_to_others(served_page: Served) -> None:
    app = served_page.app
    routes = routes_of(app)
    assert isinstance(app.middleware_stack, RequestGuard), "before everything that the framework adds"
    assert len(routes) > FEWEST_ROUTES and ("/gradio_api/queue/join", "POST") in routes
    for name, headers in foreign(served_page.arguments.port).items():
        for path, method in routes:
            answer = ask(app, path, headers, method)
            assert answer.status in (403, 421), f"{method} {path} is open to {name}"
            assert b"evil" not in answer.body and b"rebound" not in answer.body and len(answer.body) < 100
            assert not any(one.startswith("access-control-") for one in answer.headers)
        for path in {path for path, _ in routes}:
            assert ask(app, path, headers, type="websocket").status == 0, f"a websocket at {path} is open to {name}"


def test_our_own_page_and_programs_come_in(served_page: Served) -> None:
    app, port = served_page.app, served_page.arguments.port
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
    with client(base_url=f"http://127.0.0.1:{arguments.port}") as browser:
        assert browser.get("/").status_code == 200 and browser.get("/config").status_code == 401
        for host, status in (("reader.lan", 200), ("192.0.2.1", 421), ("rebound.example", 421)):
            assert browser.get("/", headers={"Host": f"{host}:{arguments.port}"}).status_code == status


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


def test_which_names_are_ours_of_themselves_and_as_the_user_gives_them() -> None:
    for bound, host, arrived_at in (*OURS, *OTHERS):
        is_ours = (bound, host, arrived_at) in OURS
        assert bool(Hosts(bound, 7860).origins(host, arrived_at)) is is_ours, f"{host} of {bound}"
    hosts = Hosts("0.0.0.0", 7860, ["Reader.lan", "books.example:8443"])
    assert hosts.origins("reader.lan:7860", "") == ("http://reader.lan:7860", "https://reader.lan:7860")
    assert hosts.origins("reader.lan", "") and not hosts.origins("reader.lan:1", "")
    assert hosts.origins("books.example:8443", "") and not hosts.origins("books.example", "")
    assert not hosts.origins("other.lan:7860", "")


def test_a_page_of_the_shared_address_comes_in_once_it_is_known() -> None:
    hosts, shared = Hosts("127.0.0.1", 7860), "abc.gradio.live"
    guard = RequestGuard(Response(status_code=204), hosts)
    own = [("host", shared), ("origin", f"https://{shared}")]
    assert ask(guard, "/config", own).status == 421
    hosts.allow(f"https://{shared}")
    assert hosts.origins(shared, "127.0.0.1") == (f"https://{shared}",)
    assert ask(guard, "/config", own).status == 204
    assert ask(guard, "/config", [own[0], ("origin", f"http://{shared}")]).status == 403
    refused = ask(guard, "/config", [("host", "abd.gradio.live")])
    assert refused.status == 421
    assert {
        name.lower(): value for name, value in request_guard.TO_OURSELVES.items()
    }.items() <= refused.headers.items()


def test_nobody_is_told_that_other_pages_may_read() -> None:
    open_to_all = {"access-control-allow-origin": "*", "Access-Control-Allow-Credentials": "true"}
    guard = RequestGuard(Response(status_code=204, headers=open_to_all), Hosts("127.0.0.1", 7860))
    answer = ask(guard, "/", [("host", "127.0.0.1:7860")])
    assert answer.status == 204 and not any("access-control" in name for name in answer.headers)


# -------------------- the policy of the page


FIRST = "<script>\nfirst();</script><script src='page/static/b.js'></script>"
PAGE = (
    "<!doctype html><html><head><title>T</title></head><body>é<head>"
    "<script data-x>own('<script>');</script><script src='a.js'></script></body></html>"
)
EVAL = ["'self'", "'unsafe-eval'"]


def scripts(answer: Answer) -> list[str]:
    """What a response's policy lets run."""
    rules = answer.headers["content-security-policy"].split("; ")
    (found,) = (rule.split()[1:] for rule in rules if rule.startswith("script-src"))
    return found


def test_it_stands_before_everything_else_in_a_page() -> None:
    answer = ask(PagePolicy(HTMLResponse(PAGE), first=FIRST))
    assert answer.body.decode() == PAGE.replace("<head>", f"<head>{FIRST}", 1)
    assert answer.headers["content-length"] == str(len(answer.body))
    digests = [hashlib.sha256(script).digest() for script in (b"\nfirst();", b"own('<script>');")]
    assert scripts(answer) == [*EVAL, *(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)]


@pytest.mark.parametrize(
    "response",
    [
        PlainTextResponse(PAGE),
        HTMLResponse(PAGE, headers={"content-encoding": "gzip"}),
        StreamingResponse(iter([PAGE[:10], PAGE[10:]]), media_type="text/html"),
    ],
)
def test_what_is_no_page_sent_whole_stays_as_it_is(response: Response) -> None:
    answer = ask(PagePolicy(response, first=FIRST))
    assert answer.body.decode() == PAGE and scripts(answer) == EVAL, "and has no inline script"
