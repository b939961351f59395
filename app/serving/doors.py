"""Who may use the server: those with its key, if it has one, and no web page of another origin unless it was named.

A browser sends `Origin` with every request that a page of another site makes, and with those of a page that has got
hold of our address by DNS rebinding; programs send none. So on 127.0.0.1 without a key no web page can use the model.
"""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.serving.errors import NotAllowed

OPEN = ("/health",)  # tells nothing but that the server is up
ALLOWED = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}


class Doors:
    """ASGI middleware.

    Args:
        key: what clients send as `Authorization: Bearer KEY`; None: they need none.
        origins: web pages that may use the server, for example http://localhost:3000; "*" for all.
    """

    def __init__(self, app: ASGIApp, *, key: str | None = None, origins: Sequence[str] = ()) -> None:
        self._app, self._key, self._origins = app, key, frozenset(one.rstrip("/") for one in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added["X-Content-Type-Options"] = "nosniff"
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
        if origin is not None and not self._known(origin):
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
