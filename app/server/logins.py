"""Logins to a page with a password: few guesses a minute, and a cookie that browsers send only for our own pages.

Gradio accepts any number of guesses, and its cookie is also sent with requests from other sites' pages.
"""

import math
import re
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.openai.errors import RequestError

FREE_GUESSES = 5  # wrong passwords in a row without a wait, whoever sends them: addresses can be forged
WINDOW_SECONDS = 60.0  # without a guess, after which wrong ones are forgotten
DOUBLINGS = 4  # of a wait of a second
LONGEST_WAIT_SECONDS = 2.0**DOUBLINGS
BEFORE_LOGIN = re.compile(r"/|/(static|assets)/.*|(/gradio_api)?/theme\.css|/gradio_api/startup-events|/favicon\.ico")
SAME_SITE = re.compile(rb"; *samesite=\w+", re.IGNORECASE)


def no_login(app: Any, scope: Scope) -> RequestError | None:
    """The refusal of a request to Gradio's app that needs a login, is none, and has not the cookie of one."""
    if app.auth is None or scope["path"] in ("/login", "/login/"):
        return None
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not has_body and scope["method"] in ("GET", "HEAD") and BEFORE_LOGIN.fullmatch(scope["path"]):
        return None
    cookies = cookie_parser("; ".join(headers.getlist("cookie")))
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    return None if any(cookies.get(name) in app.tokens for name in names) else RequestError("Log in first, at /.", 401)


class Logins:
    """ASGI middleware for an app with a password: after each further wrong one, everyone waits twice as long."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._wrong, self._last, self._next = 0, 0.0, 0.0  # guesses in a row, and times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        guesses = scope["method"] == "POST" and scope["path"].rstrip("/") == "/login"
        if guesses and (wait := self._wait()):
            refusal = RequestError("Too many wrong passwords. Wait a moment.", 429, headers={"Retry-After": f"{wait}"})
            return await refusal.as_text()(scope, receive, send)
        closed = b"; SameSite=Lax; Secure" if scope["scheme"] == "https" else b"; SameSite=Lax"

        async def send_closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                if guesses and message["status"] < 400:
                    self._wrong, self._next = self._wrong - 1, 0.0
                message["headers"] = [
                    (name, SAME_SITE.sub(b"", value) + closed if name == b"set-cookie" else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        await self._app(scope, receive, send_closed)

    def _wait(self) -> int:
        """Seconds until another guess is accepted; 0: this one is, and counts as wrong until it is proven right."""
        now = self._clock()
        if now < self._next:
            return math.ceil(self._next - now)
        self._wrong = self._wrong + 1 if now - self._last < WINDOW_SECONDS else 1
        self._last = now
        if self._wrong >= FREE_GUESSES:
            self._next = now + 2.0 ** min(self._wrong - FREE_GUESSES, DOUBLINGS)
        return 0
