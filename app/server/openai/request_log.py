"""One line on stderr about each request, without a word of its text: address, status, tokens and seconds."""

import logging
import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.openai.metrics import Metrics
from app.server.openai.shapes import Result

log = logging.getLogger(__name__)

LONGEST_PATH = 60  # characters of an address
GONE = 499  # the status of a request whose client has not waited


def log_requests() -> None:
    """Write the lines to stderr from now on."""
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False


class RequestLog:
    """ASGI middleware. Who answers leaves results in `request.state.results`, which are counted, too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.perf_counter(), GONE

        async def send_and_see(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            shown, seconds = ascii(scope["path"][:LONGEST_PATH])[1:-1], time.perf_counter() - started
            results = scope.get("state", {}).get("results", ())
            self._metrics.add(scope["path"], status, results)
            log.info("%s %s %d, %.2f s%s", scope["method"], shown, status, seconds, _in_words(results))


def _in_words(results: Sequence[Result]) -> str:
    if not results:
        return ""
    first, new = results[0].finished, sum(one.finished.stats.new_tokens for one in results)
    read = max(0, first.prompt_tokens - first.reused_tokens)
    return f": {first.prompt_tokens:,} tokens of prompt, {read:,} of them read, {new:,} written by {first.method}"
