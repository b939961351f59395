"""What is known of requests, without a word of their texts: a line on stderr for each, and /metrics for Prometheus."""

import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.openai.shapes import Result, usage

log = logging.getLogger(__name__)

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
KNOWN = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/tokenize", "/health", "/metrics")
TOKENS = {
    "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Tokens of prompts that were not read again.",
    "generated_tokens": "Tokens written.",
    "full_passes": "Passes of the target over its full cache for them.",
}
TIMES = {
    "queue_seconds": "From the arrival of a request to its turn.",
    "first_token_seconds": "From the arrival of a request to its first token.",
    "decode_seconds": "Writing the answers of a request.",
}


class Metrics:
    """`num_here`: requests that run or wait now."""

    def __init__(self, num_here: Callable[[], int]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        own = self._registry = CollectorRegistry(auto_describe=False)
        labels = ["path", "status"]
        self._requests = Counter("triforce_requests", "Requests by address and status.", labels, registry=own)
        self._tokens = {name: Counter(f"triforce_{name}", text, registry=own) for name, text in TOKENS.items()}
        self._times = {
            name: Histogram(f"triforce_{name}", text, buckets=SECONDS, registry=own) for name, text in TIMES.items()
        }
        Gauge("triforce_requests_here", "Requests that run or wait.", registry=own).set_function(num_here)

    async def reply(self, _request: Request) -> Response:
        """All of it in Prometheus' text format."""
        return Response(generate_latest(self._registry), media_type=TYPE)

    def add(self, path: str, status: int, results: Sequence[Result]) -> None:
        """Add a request, and the figures of its answers."""
        self._requests.labels(path if path in KNOWN else "other", str(status)).inc()
        if not results:
            return
        told, stats = usage(results), [result.finished.stats for result in results]
        tokens = {
            "prompt_tokens": told["prompt_tokens"],
            "cached_tokens": told["prompt_tokens_details"]["cached_tokens"],
            "generated_tokens": told["completion_tokens"],
            "full_passes": sum(one.full_passes for one in stats),
        }
        for name, count in tokens.items():
            self._tokens[name].inc(count)
        self._times["queue_seconds"].observe(results[0].queue_seconds)
        self._times["first_token_seconds"].observe(results[0].first_token_seconds or 0.0)
        self._times["decode_seconds"].observe(sum(one.decode_seconds for one in stats))


# -------------------- a line for each

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
    told = usage(results)
    prompt, new = told["prompt_tokens"], told["completion_tokens"]
    read = prompt - told["prompt_tokens_details"]["cached_tokens"]
    return f": {prompt:,} tokens of prompt, {read:,} of them read, {new:,} written by {results[0].finished.method}"
