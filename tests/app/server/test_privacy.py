"""The scripts that run before Gradio's own, and the policy under which no others than those of the page run."""

import asyncio
import base64
import hashlib

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from app.server.privacy import PagePolicy

FIRST = "<script>\nfirst();</script><script src='page/static/b.js'></script>"
PAGE = (
    "<!doctype html><html><head><title>T</title></head><body>é<head>"
    "<script data-x>own('<script>');</script><script src='a.js'></script></body></html>"
)


def page(_: Request) -> Response:
    return HTMLResponse(PAGE)


def plain(_: Request) -> Response:
    return PlainTextResponse(PAGE)


def packed(_: Request) -> Response:
    return HTMLResponse(PAGE, headers={"content-encoding": "gzip"})


def in_parts(_: Request) -> Response:
    return StreamingResponse(iter([PAGE[:10], PAGE[10:]]), media_type="text/html")


def fetched(path: str) -> tuple[dict[str, str], str]:
    """Headers and body, asked for without a server."""
    routes = [Route(f"/{view.__name__}", view) for view in (page, plain, packed, in_parts)]
    app = Starlette(routes=routes, middleware=[Middleware(PagePolicy, first=FIRST)])
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "method": "GET",
        "path": path,
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    asyncio.run(app(scope, receive, send))
    assert sent[0]["type"] == "http.response.start" and len([one for one in sent if "status" in one]) == 1
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return headers, b"".join(one.get("body", b"") for one in sent[1:]).decode()


def source(script: str) -> str:
    """As a policy names an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def scripts(headers: dict[str, str]) -> list[str]:
    """What a response's policy lets run."""
    (found,) = (one for one in headers["content-security-policy"].split("; ") if one.startswith("script-src"))
    return found.split()[1:]


def test_it_stands_before_everything_else_in_a_page() -> None:
    headers, body = fetched("/page")
    assert body == PAGE.replace("<head>", f"<head>{FIRST}", 1)
    assert headers["content-length"] == str(len(body.encode()))
    own = [source(script) for script in ("\nfirst();", "own('<script>');")]
    assert scripts(headers) == ["'self'", "'unsafe-eval'", *own]


@pytest.mark.parametrize("path", ["/plain", "/packed", "/in_parts"])
def test_what_is_no_page_sent_whole_stays_as_it_is(path: str) -> None:
    headers, body = fetched(path)
    assert body == PAGE and scripts(headers) == ["'self'", "'unsafe-eval'"], "and has no inline script"
