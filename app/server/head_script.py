"""A script that runs before Gradio's own scripts; `launch(head=...)` would add it only after those have run."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD = b"<head>"


class FirstScript:
    """ASGI middleware that puts a script at the top of every HTML page that is sent in one piece."""

    def __init__(self, app: ASGIApp, script: str) -> None:
        self._app, self._tag = app, b"<script>\n" + script.encode() + b"</script>"

    @classmethod
    def entry(cls, script: str) -> Middleware:
        """This middleware for a list of middleware."""
        return Middleware(cls, script=script)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        started: Message | None = None

        async def send_with_script(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start" and _is_page(Headers(scope=message)):
                started = message  # held back until the length is known
                return
            if started is not None and message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
                if whole:
                    body = message.get("body", b"").replace(HEAD, HEAD + self._tag, 1)
                    MutableHeaders(scope=started)["content-length"] = str(len(body))
                    message = {**message, "body": body}
                await send(started)
                started = None
            await send(message)

        await self._app(scope, receive, send_with_script if scope["type"] == "http" else send)


def _is_page(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers
