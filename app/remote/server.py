"""One OpenAI-compatible server over HTTP: its models, its count of tokens, and answers as they are written.

No error contains the key or text of a document.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import urlsplit

import httpx

from app.remote.addresses import is_loopback
from core.errors import CoreError, InvalidSetting

CONNECT_SECONDS, SHORT_SECONDS = 10.0, 30.0  # to connect; for the answer to a short request
FIRST_SECONDS, BETWEEN_SECONDS = 900.0, 120.0  # to the first piece of an answer: it may read a book; between two
POLL_SECONDS = 0.05  # between two looks whether an answer was stopped
MOST_REASON = 200  # characters of a server's own words
KEY_HINT = "Give its key with --remote-key or TRIFORCE_REMOTE_KEY."
ADDRESS_HINT = "See that --remote has its address, usually ending in /v1"
LATER_HINT = "Wait until it has less to do, then try again."
HINTS = {
    400: "If the text is too long choose fewer pages, else change what the server names.",
    401: KEY_HINT,
    403: KEY_HINT,
    404: f"{ADDRESS_HINT}, and --model a name that it knows.",
    429: LATER_HINT,
    503: LATER_HINT,
}


class RemoteError(CoreError):
    """A server that cannot be used: what it did, and one action."""


class Piece(NamedTuple):
    """What one event adds to an answer. `usage`: the server's counts, mostly empty."""

    text: str
    thought: str
    reason: str | None
    usage: Mapping[str, Any]


def base_of(url: str) -> str:
    """The complete address from the value of --remote; without a scheme it is http, as such servers speak.

    Raises:
        InvalidSetting: not an address, or one with a password.
    """
    try:
        parts = urlsplit(url.strip() if "//" in url else f"http://{url.strip()}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.query or parts.fragment:
        raise InvalidSetting(
            "--remote needs the address of a server.", hint="Write for example --remote http://127.0.0.1:8000/v1."
        )
    if "@" in parts.netloc:
        raise InvalidSetting(
            "--remote holds a name or a password.", hint="Give the server's key with TRIFORCE_REMOTE_KEY instead."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


class Server:
    """One server. `base` ends in /v1; only this object holds the key."""

    def __init__(self, base: str, key: str | None = None) -> None:
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidSetting("The server's key cannot be sent in a header.", hint="Check TRIFORCE_REMOTE_KEY.")
        self.base, self.name = base, urlsplit(base).netloc
        here = is_loopback(urlsplit(base).hostname or "")
        self.is_open = base.startswith("http:") and not here  # others on the way can read along
        self._options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "trust_env": not here,  # no proxy to this machine
            "verify": base.startswith("https:"),  # certificates are only loaded for TLS
        }

    def models(self) -> dict[str, int | None]:
        """Its models, and the tokens each reads; None: it does not say. Raises RemoteError."""
        found = self._ask(f"{self.base}/models")
        try:
            lengths = {str(row["id"]): row.get("max_model_len") for row in found["data"]}
        except (AttributeError, LookupError, TypeError) as error:
            raise self._explained(error) from None
        return {name: length if is_count(length) else None for name, length in lengths.items()}

    def count(self, model: str, text: str) -> int | None:
        """The tokens of a text, as vLLM and SGLang tell; None: this server does not."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            found = self._ask(f"{self.base.removesuffix('/v1')}/tokenize", body)
        except RemoteError:
            return None
        length = found.get("count") if isinstance(found, dict) else None
        return length if is_count(length) else None

    def answer(self, body: Mapping[str, Any], cancel: threading.Event | None = None) -> Iterator[Piece]:
        """An answer's pieces. Setting `cancel` or closing the generator closes the connection, whatever it waits for.

        Raises:
            RemoteError.
        """
        loop, pieces, seconds = asyncio.new_event_loop(), self._pieces(body), FIRST_SECONDS
        try:
            while piece := loop.run_until_complete(_next(pieces, cancel, seconds)):
                yield piece
                seconds = BETWEEN_SECONDS
        except Exception as error:
            raise self._explained(error, seconds) from None
        finally:
            loop.run_until_complete(pieces.aclose())
            loop.close()

    async def _pieces(self, body: Mapping[str, Any]) -> AsyncGenerator[Piece]:
        limits, url, empty = httpx.Timeout(None, connect=CONNECT_SECONDS), f"{self.base}/chat/completions", True
        async with (
            httpx.AsyncClient(timeout=limits, **self._options) as client,
            client.stream("POST", url, json=body) as reply,
        ):
            if reply.status_code != 200:
                raise self._refused(reply.status_code, await reply.aread())
            held = b""
            async for part in reply.aiter_bytes():  # not aiter_lines, which also cuts at characters of the text
                *lines, held = (held + part).split(b"\n")
                for text in (line[5:].strip() for line in lines if line.startswith(b"data:")):
                    if text == b"[DONE]":
                        return
                    event = json.loads(text)
                    if event.get("error"):
                        raise self._refused(500, text)
                    yield _piece(event)
                    empty = False
        if empty:
            raise ValueError("no events")

    def _ask(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that answers a short request. Raises RemoteError."""
        try:
            method = "GET" if body is None else "POST"
            reply = httpx.request(method, url, json=body, timeout=SHORT_SECONDS, **self._options)
            if reply.status_code != 200:
                raise self._refused(reply.status_code, reply.content)
            return reply.json()
        except Exception as error:
            raise self._explained(error, SHORT_SECONDS) from None

    def _refused(self, status: int, body: bytes) -> RemoteError:
        reason = _line(_reason(body)).rstrip(".")
        hint = HINTS.get(status, "See what its log says, then try again.")
        return RemoteError(f"The server at {self.name} refuses ({status}){reason and f': {reason}'}.", hint=hint)

    def _explained(self, error: Exception, seconds: float = 0.0) -> Exception:
        """The error for the user; one that is no server's doing stays. Raise it from None, or it is its own cause."""
        match error:
            case CoreError():
                return error
            case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError() | httpx.InvalidURL():
                problem = f"cannot be reached ({_line(str(error)) or type(error).__name__})"
                hint = "See that it runs and that --remote has its address, then try again."
            case httpx.TimeoutException() | TimeoutError():
                problem, hint = f"has sent nothing for {seconds:,.0f} s", "See whether it is busy, then try again."
            case httpx.TransportError():
                problem = "ended the connection during the answer"
                hint = "Ask again; if it happens again, read the server's log."
            case ValueError() | RecursionError() | LookupError() | TypeError() | AttributeError() | httpx.HTTPError():
                problem, hint = "does not answer like an OpenAI-compatible one", f"{ADDRESS_HINT}."
            case _:
                return error
        return RemoteError(f"The server at {self.name} {problem}.", hint=hint)

    def broken_off(self) -> Exception:
        """The error for an answer without an end."""
        return self._explained(httpx.ReadError(""))


def is_count(value: object) -> TypeGuard[int]:
    """Whether a field of a server's JSON is a count."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


async def _next(pieces: AsyncGenerator[Piece], cancel: threading.Event | None, seconds: float) -> Piece | None:
    """The next piece; None: the end, or `cancel` was set. Raises TimeoutError."""
    step, deadline = asyncio.ensure_future(anext(pieces, None)), time.monotonic() + seconds
    while not step.done() and not (cancel and cancel.is_set()) and time.monotonic() < deadline:
        await asyncio.wait([step], timeout=POLL_SECONDS)
    if step.done():
        return step.result()
    step.cancel()
    await asyncio.wait([step])
    if cancel and cancel.is_set():
        return None
    raise TimeoutError


def _piece(event: Mapping[str, Any]) -> Piece:
    choice = (event["choices"] or [{}])[0]
    delta, usage = choice.get("delta") or {}, event.get("usage")
    text, thought = delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise TypeError("content that is no text")
    return Piece(text, thought, choice.get("finish_reason"), usage if isinstance(usage, dict) else {})


def _reason(body: bytes) -> str:
    """A server's own words: in OpenAI's form, FastAPI's, or any other JSON with a message."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found if isinstance(found, str) else ""


def _line(words: str) -> str:
    """Words on one line, without control characters, shortened."""
    return " ".join("".join(char if char.isprintable() else " " for char in words[:MOST_REASON]).split())
