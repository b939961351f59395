"""Who may use the server: clients with its key, if it has one; no web pages of other origins except those named.

A browser sends the name it reached the server by (Host), the page that asks (Origin) and how the two are related
(Sec-Fetch-Site); the rules for them are in `app.server.request_guard`. Programs send Host alone. So on 127.0.0.1 no
web page can use the model, even without a key.
"""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.openai.errors import NotAllowed
from app.server.request_guard import Hosts, comes_from_afar, own_origins

OPEN = ("/health",)  # says only that the server is up
ALLOWED = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}


class ApiGuard:
    """ASGI middleware.

    Args:
        key: clients send it as `Authorization: Bearer KEY`; None: no key needed.
        hosts: the names the server answers to.
        origins: web pages that may use the server, for example http://localhost:3000; "*" for all.
    """

    def __init__(self, app: ASGIApp, *, hosts: Hosts, key: str | None = None, origins: Sequence[str] = ()) -> None:
        self._app, self._hosts, self._key = app, hosts, key
        self._origins = frozenset(one.rstrip("/") for one in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # this server has no websockets
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added["X-Content-Type-Options"] = "nosniff"
                added["Cross-Origin-Resource-Policy"] = "same-origin"  # for pages that send no CORS request
                if origin is not None and self._known(origin):
                    added["Access-Control-Allow-Origin"], added["Vary"] = origin, "Origin"
            await send(message)

        refusal = self._refusal(scope, headers, origin)
        answer: ASGIApp = self._app
        if refusal is not None:
            answer = JSONResponse(refusal.body(), refusal.status, refusal.headers)
        elif scope["method"] == "OPTIONS" and origin is not None:
            answer = Response(status_code=204, headers=ALLOWED)
        await answer(scope, receive, send_with_origin)

    def _known(self, origin: str) -> bool:
        return "*" in self._origins or origin in self._origins

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None) -> NotAllowed | None:
        if not own_origins(scope, self._hosts):
            return NotAllowed(
                "The server is not known by this name. Use its address, or start it with --allow-host NAME.",
                status=421,
                code="host_not_allowed",
            )
        if not self._known(origin) if origin is not None else comes_from_afar(headers):
            return NotAllowed(
                "Web pages of other origins may not use this server. Start it with --allow-origin to let one in.",
                status=403,
                code="origin_not_allowed",
            )
        if self._key is None or scope["path"] in OPEN or (scope["method"] == "OPTIONS" and origin is not None):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key.encode()):
            return NotAllowed(
                "The API key is missing or wrong. Send the server's --api-key.", status=401, code="invalid_api_key"
            )
        return None
