"""What a browser may do with the page: run the scripts that came with it, and load only from the server it came from.

Escaping is the first line of defence against hostile books, this is the second: a script that passes the first does
not run, and a picture or form cannot reach another machine.
"""

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Gradio's page needs `Function` for the scripts of its events, and inline styles.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-eval'{hashes}",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "media-src 'self' blob:",
        "worker-src 'self' blob:",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "frame-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)
OTHERS = {"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
HEAD, INLINE = b"<head>", re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


class PagePolicy:
    """ASGI middleware: every response gets the headers, every HTML page that is sent in one piece our scripts.

    Args:
        first: tags for the head, whose scripts run before Gradio's own; `launch(head=...)` would add them only after.
    """

    def __init__(self, app: ASGIApp, first: str) -> None:
        self._app, self._first = app, first.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        started: Message | None = None

        async def send_with_policy(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({"Content-Security-Policy": POLICY.format(hashes=""), **OTHERS})
                if headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers:
                    started = message  # held back until length and scripts are known
                    return
            if started is not None and message["type"] == "http.response.body":
                if not message.get("more_body", False):
                    body = message.get("body", b"").replace(HEAD, HEAD + self._first, 1)
                    policy = POLICY.format(hashes=hashes(body))
                    headers = MutableHeaders(scope=started)
                    headers.update({"Content-Length": str(len(body)), "Content-Security-Policy": policy})
                    message = {**message, "body": body}
                await send(started)
                started = None
            await send(message)

        await self._app(scope, receive, send_with_policy if scope["type"] == "http" else send)


def hashes(html: bytes) -> str:
    """The sources of a policy under which the inline scripts of a text run, each behind a space."""
    sums = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in INLINE.findall(html))
    return "".join(f" 'sha256-{one}'" for one in dict.fromkeys(sums))
