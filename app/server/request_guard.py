"""Who may use a server: programs on machines that reach it, and its own pages in a browser.

Any web page may send requests to 127.0.0.1; by DNS rebinding it may do so under its own name, and then read the
answers. Three browser headers, which no page can forge, prevent this: `Host`, the name the browser believes to speak
to; `Origin`, the page that asks; `Sec-Fetch-Site`, how the two are related. Programs send only `Host`.
"""

import ipaddress
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.logins import may_enter

ADDRESS = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
NEAR = ("same-origin", "none")  # Sec-Fetch-Site of this server's own page, and of an address that the user typed
TO_OURSELVES = {"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"}
WRONG_NAME = "The server is not known by this name. Use the address that it printed at its start."
NO_LOGIN = "Log in first, at /."
FROM_ELSEWHERE = "Pages of other sites may not use this server."


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
        may_enter: whether a request has the login that it needs.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, may_enter: Callable[[Scope], bool] = lambda _: True) -> None:
        self._app, self._hosts, self._may_enter = app, hosts, may_enter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _to_ourselves(send))
        elif scope["type"] == "http":
            refusal.headers["Connection"] = "close"  # the rest of the body is not waited for
            await refusal(scope, receive, _to_ourselves(send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # before accepting: becomes 403

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        origins = own_origins(scope, self._hosts)
        if not origins:
            return PlainTextResponse(WRONG_NAME, 421)
        if not _is_own(headers, origins) and not is_a_visit(scope, headers):
            return PlainTextResponse(FROM_ELSEWHERE, 403)
        return None if self._may_enter(scope) else PlainTextResponse(NO_LOGIN, 401)


def guarded(hosts: Hosts) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """A lifespan for an app, which puts RequestGuard around everything before the first connection is accepted.

    Middleware given as `middleware` would run inside the middleware that a framework adds itself.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assert app.middleware_stack is not None, "the lifespan came through it"
        app.middleware_stack = RequestGuard(app.middleware_stack, hosts, partial(may_enter, app))
        yield

    return lifespan


def own_origins(scope: Scope, hosts: Hosts) -> tuple[str, ...]:
    """The origins of this server's pages under the name a request uses; none if the server does not answer to it."""
    named = Headers(scope=scope).getlist("host")
    arrived_at = (scope.get("server") or ("", None))[0]
    return hosts.origins(named[0], arrived_at) if len(named) == 1 else ()


def comes_from_afar(headers: Headers) -> bool:
    """A browser says that a page of another site, or of another origin on this host, sends the request."""
    return any(site not in NEAR for site in headers.getlist("sec-fetch-site"))


def is_a_visit(scope: Scope, headers: Headers) -> bool:
    """A link from elsewhere opens the page: this changes nothing, and the other page sees nothing."""
    return (
        scope["type"] == "http"
        and (scope["method"], scope["path"]) == ("GET", "/")
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_own(headers: Headers, origins: tuple[str, ...]) -> bool:
    return all(origin in origins for origin in headers.getlist("origin")) and not comes_from_afar(headers)


def _to_ourselves(send: Send) -> Send:
    """Add headers to every answer so that no other origin may read or embed it, whatever the app sets."""

    async def send_to_ourselves(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            message["headers"] = [
                one for one in message.get("headers", ()) if not one[0].lower().startswith(b"access-control-")
            ]
            headers = MutableHeaders(scope=message)
            headers.update(TO_OURSELVES)
            headers.setdefault("X-Content-Type-Options", "nosniff")
        await send(message)

    return send_to_ourselves


def _plain(name: str) -> str:
    """One spelling for each literal address; names unchanged."""
    name = name.strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
