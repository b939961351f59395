"""The script that runs before Gradio's own."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from app.server.head_script import FirstScript

PAGE = "<!doctype html><html><head><title>T</title></head><body>é<head></body></html>"


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
    app = Starlette(routes=routes, middleware=[FirstScript.entry("first();")])
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


def test_it_stands_before_everything_else_in_a_page() -> None:
    headers, body = fetched("/page")
    assert body == PAGE.replace("<head>", "<head><script>\nfirst();</script>", 1)
    assert headers["content-length"] == str(len(body.encode()))


@pytest.mark.parametrize("path", ["/plain", "/packed", "/in_parts"])
def test_what_is_no_page_sent_whole_stays_as_it_is(path: str) -> None:
    assert fetched(path)[1] == PAGE
