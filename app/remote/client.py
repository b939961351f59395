"""HTTP to one server: short requests, and streams that can be cancelled in any phase.

A stream runs in an event loop on its own thread: there a connection can be cancelled while it opens, while the server
reads a book, or in the middle of a line. Short requests are repeated where this cannot do anything twice. An answer is
requested again only while the server refuses it as busy, never once it has begun.
"""

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from app.remote.addresses import is_loopback
from app.remote.errors import BrokenOff, Garbage, Refused, RemoteError, TooSlow, Unreachable
from core.errors import InvalidSetting

MOST_LINE = 4 << 20  # bytes; one event of a stream has a few hundred
MOST_BODY = 64 << 20  # bytes of a short answer; the tokens of a long text are some 100 KB
POLL_SECONDS = 0.05
BUSY = frozenset({429, 502, 503, 504})
UNABLE = frozenset({400, 404, 405, 422, 501})  # of servers that do not stream, if they say so


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeouts, in seconds."""

    connect: float = 10.0
    short: float = 30.0  # for the response to a short request
    first: float = 900.0  # for the first event of an answer, because the server may read a whole book before
    between: float = 120.0  # between two events of an answer
    retries: tuple[float, ...] = (0.5, 2.0)  # pauses before each repetition


@dataclass(frozen=True, slots=True)
class Part:
    """One item of a stream. Exactly one of the two has content."""

    seconds: float  # time.perf_counter() at arrival
    event: Mapping[str, Any] | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the stream."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: `base` ends in /v1."""

    base: str

    @classmethod
    def of(cls, url: str) -> "Address":
        """The complete address from the value of --remote; without a scheme it is http, as such servers speak.

        Raises:
            InvalidSetting: not an address, or one with a password.
        """
        try:
            url = url.strip()
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise InvalidSetting(
                "--remote needs the address of a server.", hint="Write for example --remote http://127.0.0.1:8000/v1."
            )
        if parts.username is not None or parts.password is not None:
            raise InvalidSetting(
                "--remote holds a name or a password.", hint="Give the server's key with TRIFORCE_REMOTE_KEY instead."
            )
        place = f"[{host}]" if ":" in host else host
        path = parts.path.rstrip("/") or "/v1"
        return cls(f"{parts.scheme}://{place}{f':{port}' if port else ''}{path}")

    @property
    def root(self) -> str:
        """The address without /v1, for what OpenAI's interface does not have."""
        return self.base.removesuffix("/v1")

    @property
    def short(self) -> str:
        """Host and port."""
        return urlsplit(self.base).netloc

    @property
    def is_here(self) -> bool:
        """Whether the server is on this machine."""
        return is_loopback(urlsplit(self.base).hostname or "")

    @property
    def is_open(self) -> bool:
        """Whether the connection can be read by others on its way."""
        return self.base.startswith("http:") and not self.is_here


class Client:
    """One server. Only this object holds the key."""

    def __init__(self, address: Address, key: str | None = None, patience: Patience | None = None) -> None:
        if key is not None and (not key.isascii() or not key.isprintable()):
            raise InvalidSetting("The server's key cannot be sent in a header.", hint="Check TRIFORCE_REMOTE_KEY.")
        self.address, self._patience = address, patience or Patience()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._short = httpx.Client(**self._options(self._patience.short))

    def close(self) -> None:
        """Close connections."""
        self._short.close()

    def get(self, url: str) -> Any:
        """The JSON at an address of the server. Raises RemoteError."""
        return self._asked("GET", url, None)

    def post(self, url: str, body: Mapping[str, Any]) -> Any:
        """The JSON response to a request, which may be sent twice. Raises RemoteError."""
        return self._asked("POST", url, body)

    def _asked(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        for pause in (*self._patience.retries, None):
            try:
                return self._once(method, url, body)
            except (Unreachable, Refused) as error:
                if pause is None or (isinstance(error, Refused) and error.status not in BUSY):
                    raise
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        try:
            with self._short.stream(method, url, json=body) as reply:
                parts, size = [], 0
                for part in reply.iter_bytes():
                    size += len(part)
                    if size > MOST_BODY:
                        raise Garbage(self.address.short, "an endless answer")
                    parts.append(part)
        except Exception as error:
            raise self._explained(error, self._patience.short) from error
        text = b"".join(parts)
        if reply.status_code != 200:
            raise Refused(self.address.short, reply.status_code, reason_in(text))
        return self._json(text)

    def stream(self, body: Mapping[str, Any], cancel: threading.Event | None = None) -> Iterator[Part]:
        """The parts of an answer as they arrive. Setting `cancel` or closing the generator closes the connection.

        Raises:
            RemoteError.
        """
        for pause in (*self._patience.retries, None):
            try:
                yield from self._streamed(body, cancel)
                return
            except (Unreachable, Refused) as error:  # raised before anything has arrived
                unable = isinstance(error, Refused) and error.status in UNABLE and "stream" in str(error)
                if unable and "stream" in body:
                    yield from self.stream(whole(body), cancel)
                    return
                if pause is None or (isinstance(error, Refused) and error.status not in BUSY):
                    raise
                if (cancel or threading.Event()).wait(pause):
                    return

    def _streamed(self, body: Mapping[str, Any], cancel: threading.Event | None) -> Iterator[Part]:
        parts: queue.SimpleQueue[Part | _End] = queue.SimpleQueue()
        reader = _Reader(self._parts(body), parts)
        reader.start()
        try:
            while not (cancel and cancel.is_set()):
                try:
                    part = parts.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(part, Part):
                    yield part
                    continue
                if part.error is not None:
                    raise part.error
                return
        finally:
            reader.stop()

    async def _parts(self, body: Mapping[str, Any]) -> AsyncIterator[Part]:
        patience = self._patience
        options = self._options(None)
        try:
            async with (
                httpx.AsyncClient(**options) as client,
                client.stream("POST", f"{self.address.base}/chat/completions", json=body) as reply,
            ):
                if reply.status_code != 200:
                    async with asyncio.timeout(patience.short):
                        text = await reply.aread()
                    raise Refused(self.address.short, reply.status_code, reason_in(text))
                kind = reply.headers.get("content-type", "")
                if "application/json" in kind:  # a server that does not stream
                    async with asyncio.timeout(patience.first):
                        yield self._whole(await self._bounded(reply))
                    return
                if "text/event-stream" not in kind:
                    raise Garbage(self.address.short, f"{kind or 'no content type'} in place of a stream")
                lines = self._lines(reply.aiter_bytes())
                wait = patience.first
                while True:
                    try:
                        async with asyncio.timeout(wait):
                            line = await anext(lines)
                    except StopAsyncIteration:
                        raise BrokenOff(self.address.short) from None
                    except TimeoutError:
                        raise TooSlow(self.address.short, wait) from None
                    part = self._part(line)
                    if part is None:
                        return
                    if part.event is not None:
                        wait = patience.between
                    if part.event is not None or part.remark:
                        yield part
        except Exception as error:
            raise self._explained(error, patience.first) from error

    async def _bounded(self, reply: httpx.Response) -> bytes:
        held = bytearray()
        async for piece in reply.aiter_bytes():
            held += piece
            if len(held) > MOST_BODY:
                raise Garbage(self.address.short, "an endless answer")
        return bytes(held)

    def _whole(self, text: bytes) -> Part:
        """A whole answer as the only event of a stream."""
        answer = self._json(text)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise Garbage(self.address.short, "JSON that is no answer in place of a stream")
        return Part(time.perf_counter(), {**answer, "choices": [{**choices[0], "delta": choices[0].get("message")}]})

    async def _lines(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        held = b""
        async for piece in pieces:
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r")
            if len(held) > MOST_LINE:
                raise Garbage(self.address.short, "an endless line")

    def _part(self, line: bytes) -> Part | None:
        """One line of a stream; None: its regular end."""
        now = time.perf_counter()
        if line.startswith(b":"):
            return Part(now, remark=line[1:].decode("utf-8", "replace").strip())
        if not line.startswith(b"data:"):
            return Part(now)  # empty, or a field without meaning here
        text = line[5:].strip()
        if text == b"[DONE]":
            return None
        event = self._json(text)
        if not isinstance(event, dict):
            raise Garbage(self.address.short, "an event that is no object")
        if event.get("error"):
            raise Refused(self.address.short, 500, reason_in(text))
        return Part(now, event)

    def _json(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Garbage(self.address.short, "no JSON") from None

    def _options(self, read_seconds: float | None) -> dict[str, Any]:
        patience = self._patience
        first = patience.first if read_seconds is None else read_seconds
        return {
            "headers": self._headers,
            "timeout": httpx.Timeout(first, connect=patience.connect),
            "trust_env": not self.address.is_here,  # no proxy to this machine
            "verify": self.address.base.startswith("https:"),  # certificates are only loaded for TLS
            "follow_redirects": False,  # the key is sent to no other address
        }

    def _explained(self, error: Exception, seconds: float) -> Exception:
        where = self.address.short
        match error:
            case RemoteError():
                return error
            case httpx.ConnectTimeout():
                return Unreachable(where, f"no connection within {self._patience.connect:g} s")
            case httpx.ConnectError() | httpx.UnsupportedProtocol() | httpx.ProxyError():
                return Unreachable(where, str(error) or type(error).__name__)
            case httpx.TimeoutException() | TimeoutError():
                return TooSlow(where, seconds)
            case httpx.RemoteProtocolError() | httpx.DecodingError():
                return Garbage(where, str(error))
            case httpx.TransportError():
                return BrokenOff(where)
            case _:
                return error


def whole(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for an answer in one piece."""
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


class _Reader:
    """Runs a stream in an event loop on its own thread and puts its parts into a queue."""

    def __init__(self, source: AsyncIterator[Part], into: "queue.SimpleQueue[Part | _End]") -> None:
        self._source, self._into = source, into
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="remote", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._task = self._loop.create_task(self._pump())
        self._thread.start()

    def stop(self) -> None:
        """Cancel the connection in any state, and wait until it is closed."""
        if self._thread.is_alive():
            assert self._task is not None
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        assert self._task is not None
        self._loop.run_until_complete(asyncio.wait([self._task]))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _pump(self) -> None:
        try:
            async for part in self._source:
                self._into.put(part)
            self._into.put(_End())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # passed to the other thread as a value
            self._into.put(_End(error))


def reason_in(text: bytes) -> str:
    """A server's own error message: in OpenAI's form, FastAPI's, or any other JSON with a message."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found if isinstance(found, str) else ""
