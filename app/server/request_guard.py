"""Who may use a server: programs on machines that reach it, and its own pages in a browser.

Any web page may send requests to 127.0.0.1; by DNS rebinding it may do so under its own name, and then read the
answers. Three browser headers, which no page can forge, prevent this: `Host`, the name the browser believes to speak
to; `Origin`, the page that asks; `Sec-Fetch-Site`, how the two are related. Programs send only `Host`.
"""

import ipaddress
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.openai.errors import RequestError

ADDRESS = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
NEAR = {"same-origin", "none"}  # Sec-Fetch-Site of this server's own page, and of an address that the user typed
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "*, Authorization",  # OpenAI's own client sends many; * has not this one
    "Access-Control-Max-Age": "600",
}
TO_OURSELVES = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
WRONG_NAME = "The server is not known by this name. Use its address, or start it with --allow-host NAME."
FROM_ELSEWHERE = "Web pages of other origins may not use this server."


class Hosts:
    """The addresses that a server answers to.

    Args:
        host: the address the server listens at.
        names: further names under which others reach it, with a port where it differs from the server's own.

    Localhost, loopback addresses, `host` and `names` are admitted. If the server listens at every address of the
    machine, the address that a request arrived at is admitted too.
    """

    def __init__(self, host: str, port: int, names: Sequence[str] = ()) -> None:
        self._port, self._host = str(port), _plain(host.lower())
        self._everywhere = self._host in ("0.0.0.0", "::", "")
        self._names = {"localhost": ("http",), self._host: ("http",)} | {
            name.lower().rstrip("/"): ("http", "https") for name in names
        }

    def allow(self, url: str) -> None:
        """Admit another address, under its scheme and port only."""
        parts = urlsplit(url)
        self._names = self._names | {parts.netloc.lower(): (parts.scheme,)}

    def origins(self, host: str, arrived_at: str) -> tuple[str, ...]:
        """The origins of this server's pages under a `Host`; none if the server does not answer to it.

        Args:
            arrived_at: the address of this machine that the connection was made to.
        """
        found = ADDRESS.fullmatch(host.lower())
        if found is None:
            return ()
        name, port = _plain(found[1]), found[2]
        schemes = self._names.get(host.lower(), ())
        if not schemes and port in (None, self._port):
            schemes = self._names.get(name, ()) or (("http",) if self._is_ours(name, arrived_at) else ())
        return tuple(f"{scheme}://{host.lower()}" for scheme in schemes)

    def _is_ours(self, name: str, arrived_at: str) -> bool:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or (self._everywhere and name == _plain(arrived_at))


class RequestGuard:
    """Outermost ASGI middleware: the app sees no refused request, and of its body no byte is read.

    Args:
        hosts: the addresses that the server answers to.
        answer: how a refusal is told: 421 another server's name, 403 a web page of another origin.
        entry: the refusal of a request that lacks the login or key that it needs.
        origins: web pages that may use the server beside its own, for example http://localhost:3000; "*" for all.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        answer: Callable[[RequestError], Response] = RequestError.as_text,
        entry: Callable[[Scope], RequestError | None] = lambda _: None,
        origins: Sequence[str] | None = None,
    ) -> None:
        self._app, self._hosts, self._answer, self._entry = app, hosts, answer, entry
        self._origins = frozenset(one.rstrip("/") for one in origins or ())
        self._advice = "" if origins is None else " Start it with --allow-origin to let one in."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. There are no websockets."""
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})  # before accepting: becomes 403
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, app, added = Headers(scope=scope), self._app, TO_OURSELVES
        asking = headers.getlist("origin")
        named = bool(asking) and ("*" in self._origins or self._origins.issuperset(asking))
        if named:
            added = added | {"Access-Control-Allow-Origin": asking[0], "Vary": "Origin"}
        if refusal := self._refusal(scope, headers, asking, named=named):
            app = self._answer(refusal)
        elif named and scope["method"] == "OPTIONS":
            app, added = Response(status_code=204), added | PREFLIGHT
        await app(scope, receive, _with(added, send))

    def _refusal(self, scope: Scope, headers: Headers, asking: list[str], *, named: bool) -> RequestError | None:
        hosts, arrived_at = headers.getlist("host"), (scope.get("server") or ("", None))[0]
        ours = self._hosts.origins(hosts[0], arrived_at) if len(hosts) == 1 else ()
        if not ours:
            return RequestError(WRONG_NAME, 421, code="host_not_allowed")
        near = set(asking) <= set(ours) and set(headers.getlist("sec-fetch-site")) <= NEAR
        if not (named or near or is_a_visit(scope, headers)):
            return RequestError(FROM_ELSEWHERE + self._advice, 403, code="origin_not_allowed")
        return None if named and scope["method"] == "OPTIONS" else self._entry(scope)


def guarded(hosts: Hosts) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """A lifespan for an app, which puts RequestGuard around everything before the first connection is accepted.

    Middleware given as `middleware` would run inside the middleware that a framework adds itself.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assert app.middleware_stack is not None, "the lifespan came through it"
        app.middleware_stack = RequestGuard(app.middleware_stack, hosts, entry=partial(no_login, app))
        yield

    return lifespan


def is_a_visit(scope: Scope, headers: Headers) -> bool:
    """A link from elsewhere opens the page: this changes nothing, and the other page sees nothing."""
    return (
        (scope["method"], scope["path"]) == ("GET", "/")
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _with(added: Mapping[str, str], send: Send) -> Send:
    """Add headers to every answer, and take away what an app sets to let other origins read it."""

    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [one for one in message.get("headers", ()) if not one[0].lower().startswith(b"access-control-")]
            headers = MutableHeaders(raw=kept)
            headers.update(added)
            message["headers"] = headers.raw
        await send(message)

    return send_with


def _plain(name: str) -> str:
    """One spelling for each literal address; names unchanged."""
    name = name.strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


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
