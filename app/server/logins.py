"""Logins to a page with a password: few guesses a minute, and a cookie that browsers send only for our own pages.

Gradio accepts any number of guesses, and its cookie is also sent with requests from other sites' pages.
"""

import math
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE_GUESSES = 5  # wrong passwords in a row without a wait, whoever sends them: addresses can be forged
WINDOW_SECONDS = 60.0  # after which a wrong password is forgotten
LONGEST_WAIT_SECONDS = 16.0

BEFORE_LOGIN = re.compile(r"/|/(static|assets)/.*|(/gradio_api)?/theme\.css|/gradio_api/startup-events|/favicon\.ico")


def may_enter(app: Any, scope: Scope) -> bool:
    """Whether a request to Gradio's app needs no login, is one, or has the cookie of one."""
    if app.auth is None or scope["path"] in ("/login", "/login/"):
        return True
    headers = Headers(scope=scope)
    cookies = cookie_parser("; ".join(headers.getlist("cookie")))
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    is_open = not has_body and scope.get("method") in ("GET", "HEAD") and BEFORE_LOGIN.fullmatch(scope["path"])
    return bool(is_open) or any(cookies.get(name) in app.tokens for name in names)


class Logins:
    """ASGI middleware for an app with a password."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock, self._guesses = app, clock, Guesses(FREE_GUESSES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _close_cookies(send, is_safe=scope["scheme"] == "https")
        if scope["method"] != "POST" or scope["path"].rstrip("/") != "/login":
            await self._app(scope, receive, send)
            return
        now = self._clock()
        if wait := self._guesses.wait(now):
            refusal = {"detail": "Too many wrong passwords. Wait a moment."}
            await JSONResponse(refusal, 429, {"Retry-After": str(math.ceil(wait))})(scope, receive, send)
            return
        self._guesses.count(now)  # as wrong until proven right, because many may come at once

        async def send_and_see(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._guesses.take_back()
            await send(message)

        await self._app(scope, receive, send_and_see)


class Guesses:
    """Wrong passwords of the last minute, and the wait before the next guess: it doubles after each.

    Args:
        free: guesses without a wait.
    """

    def __init__(self, free: int) -> None:
        self._free, self._times, self._next = free, deque[float](), 0.0

    def wait(self, now: float) -> float:
        """Seconds until another guess is accepted; 0: at once."""
        return max(0.0, self._next - now)

    def count(self, now: float) -> None:
        """Count a guess."""
        while self._times and now - self._times[0] > WINDOW_SECONDS:
            self._times.popleft()
        self._times.append(now)
        beyond = len(self._times) - self._free
        if beyond >= 0:
            self._next = now + min(LONGEST_WAIT_SECONDS, 2.0**beyond)

    def take_back(self) -> None:
        """Uncount the last guess, because it was right."""
        if self._times:
            self._times.pop()
        self._next = 0.0


def _close_cookies(send: Send, *, is_safe: bool) -> Send:
    """Restrict cookies to requests of our own pages, and to https where it is used."""

    async def send_closed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            cookies = headers.getlist("set-cookie")
            del headers["set-cookie"]
            for cookie in cookies:
                headers.append("set-cookie", lax(cookie, is_safe=is_safe))
        await send(message)

    return send_closed


def lax(cookie: str, *, is_safe: bool) -> str:
    """A Set-Cookie header with SameSite=Lax, and with Secure if the connection is."""
    parts = [part.strip() for part in cookie.split(";")]
    kept = [part for part in parts if not part.lower().startswith("samesite")]
    if is_safe and "secure" not in (part.lower() for part in kept):
        kept.append("Secure")
    return "; ".join([*kept, "SameSite=Lax"])
