"""One OpenAI-compatible server over HTTP: its models, its count of tokens, and answers as they are written.

Its key comes from an option or the environment and is not stored; no error contains it or text of a document.
"""

import argparse
import asyncio
import ipaddress
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from core.errors import CoreError, InvalidSetting

if TYPE_CHECKING:
    from core.engine_api import TextEngine
    from core.planning.hardware import Machine

KEY_VARIABLE = "TRIFORCE_REMOTE_KEY"
CONNECT_SECONDS, SHORT_SECONDS = 10.0, 30.0  # to connect; for the answer to a short request
SILENT_SECONDS = 900.0  # without a word from the server, which may be reading a book
POLL_SECONDS = 0.01  # between two looks whether something came or the answer was stopped
MOST_REASON = 200  # characters of a server's own words
ADDRESS_HINT = "See that it runs and that --remote has its address, usually ending in /v1."
KEY_HINT = f"Give its key with --remote-key or {KEY_VARIABLE}."
PROXY_HINT = "See to HTTPS_PROXY, ALL_PROXY and NO_PROXY: a proxy's address begins with http://."
LATER_HINT = "Wait until it has less to do, then try again."
# Options of models of this machine.
LOCAL = ("method", "bits", "kv_bits", "prefill_bits", "self_draft_bits", "gpus", "gpu_memory", "token_ids", "saved")
HINTS = {400: "Choose fewer pages, or change what the server names.", 404: ADDRESS_HINT}
HINTS |= dict.fromkeys((301, 302, 307, 308), ADDRESS_HINT)
HINTS |= {401: KEY_HINT, 403: KEY_HINT, 429: LATER_HINT, 503: LATER_HINT}


class RemoteError(CoreError):
    """A server that cannot be used: what it did, and one action."""


class Piece(NamedTuple):
    """What one event adds to an answer. `usage`: the server's counts, mostly empty."""

    text: str
    thought: str
    reason: str | None
    usage: dict[str, Any]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def base_of(url: str) -> str:
    """The complete address from the value of --remote; without a scheme it is http, as such servers speak.

    Raises:
        InvalidSetting: not an address, or one with a password.
    """
    try:
        parts = urlsplit(url.strip() if "//" in url else f"http://{url.strip()}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidSetting(
            "--remote needs the address of a server, without a password.",
            hint=f"Write for example --remote http://127.0.0.1:8000/v1. {KEY_HINT}",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def count_of(fields: Any, name: str) -> int | None:
    """A count in a server's JSON; None: there is none."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if type(value) is int and 0 <= value < 2**53 else None


class Server:
    """One server. `base` ends in /v1; only this object holds the key."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """Raises InvalidSetting: not an address or key. RemoteError: no proxy or certificates that can be used."""
        if key and not (key.isascii() and key.isprintable()):
            raise InvalidSetting("The server's key cannot be sent in a header.", hint=f"Check {KEY_VARIABLE}.")
        self.base = base_of(url)
        self.name, here = urlsplit(self.base).netloc, is_loopback(urlsplit(self.base).hostname or "")
        self.is_open = self.base.startswith("http:") and not here  # others on the way can read along
        self._options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "trust_env": not here,  # no proxy to this machine
            "verify": self.base.startswith("https:"),  # certificates are only loaded for TLS
        }
        try:
            httpx.Client(**self._options).close()
        except OSError as error:
            hint = "See to SSL_CERT_FILE and SSL_CERT_DIR."
            raise RemoteError("The certificates that are set here cannot be read.", hint=hint) from error
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # SOCKS needs another package
            raise RemoteError("The proxy that is set here cannot be used.", hint=PROXY_HINT) from error

    def models(self) -> dict[str, int | None]:
        """Its models, and the tokens each reads; None: it does not say. Raises RemoteError."""
        with self._explained():
            rows = self._ask("GET", f"{self.base}/models")["data"]
            return {str(row["id"]): count_of(row, "max_model_len") for row in rows}

    def count(self, model: str, text: str) -> int | None:
        """The tokens of a text, as vLLM and SGLang tell; None: this server does not."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        with suppress(RemoteError), self._explained():
            return count_of(self._ask("POST", f"{self.base.removesuffix('/v1')}/tokenize", body), "count")
        return None

    def answer(self, body: Mapping[str, Any], cancel: threading.Event | None = None) -> Iterator[Piece]:
        """An answer's pieces. Setting `cancel` or closing the generator closes the connection, whatever it waits for.

        Raises:
            RemoteError.
        """
        loop, pieces = asyncio.new_event_loop(), deque[Piece]()
        receiving = loop.create_task(self._receive(body, pieces.append))
        try:
            with self._explained():
                while not receiving.done() and not (cancel and cancel.is_set()):
                    loop.run_until_complete(asyncio.wait([receiving], timeout=POLL_SECONDS))
                    while pieces:
                        yield pieces.popleft()
                if receiving.done():
                    receiving.result()
        finally:
            receiving.cancel()
            loop.run_until_complete(asyncio.wait([receiving]))
            _ = receiving.cancelled() or receiving.exception()  # else asyncio complains that nobody looked
            loop.close()

    async def _receive(self, body: Mapping[str, Any], receiver: Callable[[Piece], None]) -> None:
        timeout, url = httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS), f"{self.base}/chat/completions"
        async with (
            httpx.AsyncClient(timeout=timeout, **self._options) as client,
            client.stream("POST", url, json=body) as reply,
        ):
            if reply.status_code != 200:
                raise self._refused(reply.status_code, await reply.aread())
            rest, is_whole = b"", None  # None: nothing of a stream came
            async for part in reply.aiter_bytes():  # not aiter_lines, which also cuts at characters of the text
                *lines, rest = (rest + part).split(b"\n")
                for text in (line[5:].strip() for line in lines if line.startswith(b"data:")):
                    if text == b"[DONE]":
                        is_whole = True
                    elif (event := json.loads(text)).get("error"):
                        raise self._refused(500, text)
                    else:
                        receiver(piece := _piece(event))
                        is_whole = is_whole or piece.reason is not None
        if not is_whole:
            raise ValueError("no events") if is_whole is None else httpx.ReadError("")

    def _ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that answers a short request."""
        reply = httpx.request(method, url, json=body, timeout=SHORT_SECONDS, **self._options)
        if reply.status_code != 200:
            raise self._refused(reply.status_code, reply.content)
        return reply.json()

    def _refused(self, status: int, body: bytes) -> RemoteError:
        """The error with a server's own words: in OpenAI's form, FastAPI's, or any other JSON with a message."""
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            said = None
        for key in ("error", "detail", "message"):
            said = said[key] if isinstance(said, dict) and key in said else said
        reason = _line(said).rstrip(".") if isinstance(said, str) else ""
        hint = HINTS.get(status, "See what its log says, then try again.")
        return RemoteError(f"The server at {self.name} refuses ({status}){reason and f': {reason}'}.", hint=hint)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of HTTP and of JSON as a RemoteError, from None: their own words may hold text or the key."""
        try:
            yield
            return
        except CoreError:
            raise
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.InvalidURL) as error:
            problem, hint = f"cannot be reached ({_line(str(error)) or type(error).__name__})", ADDRESS_HINT
        except httpx.TimeoutException:
            problem, hint = "sends nothing", "See whether it is busy, then try again."
        except httpx.TransportError:
            problem, hint = "ended the connection during the answer", "Ask again, or read the server's log."
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError, httpx.HTTPError):
            problem, hint = "does not answer like an OpenAI-compatible one", ADDRESS_HINT
        raise RemoteError(f"The server at {self.name} {problem}.", hint=hint) from None


def connector(args: argparse.Namespace) -> "Callable[[], tuple[TextEngine, Machine]]":
    """A function that connects to --remote, to be called on the thread that will own the engine.

    Raises:
        InvalidSetting: immediately, for an invalid address or an option that the server decides.
    """
    for name in (*LOCAL, "device"):
        if getattr(args, name, None) not in (None, False, "auto"):
            option = f"--{name.replace('_', '-')}"
            raise InvalidSetting(f"{option} is for models of this machine.", hint="Leave it out with --remote.")
    from_environment = os.environ.pop(KEY_VARIABLE, None)  # so that no document parser inherits it
    key = args.remote_key if args.remote_key is not None else from_environment
    server = Server(args.remote, key)
    if server.is_open:
        print(
            f"Books{', questions and the key' if key else ' and questions'} go to {server.name} unencrypted: whoever "
            "listens on the way can read them. Use https or a tunnel.",
            file=sys.stderr,
        )

    def connect() -> "tuple[TextEngine, Machine]":
        from app.remote.engine import RemoteEngine  # which imports this
        from core.planning.hardware import this_machine

        return RemoteEngine(server, args.model, args.context), this_machine()

    return connect


def _piece(event: Mapping[str, Any]) -> Piece:
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    text, thought = delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise TypeError("content that is no text")
    return Piece(text, thought, choice.get("finish_reason") or None, event.get("usage") or {})


def _line(words: str) -> str:
    """Words on one line, without control characters, shortened."""
    return " ".join("".join(char if char.isprintable() else " " for char in words[:MOST_REASON]).split())
