"""Limits on requests: only the addresses that the page uses are there, and bodies are bounded in size, time and number.

Gradio has many more addresses, which fetch, store what was shown or change the page's code, and it stores every byte
that is posted as a file.
"""

import asyncio
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.context.upload_files import drop_unopened, size_bytes
from app.server.openai import bodies as messages
from app.server.openai.errors import Overloaded, RequestError

MOST_MESSAGE = 4 << 20  # bytes; a question that fills the largest context has less than one
MOST_MESSAGES, MOST_UPLOADS = 32, 16  # that may arrive at the same time
MOST_LOGIN, MOST_LOGINS = 4 << 10, 256  # bytes of one, and how many at the same time: 1 MiB for who has no login
LONGEST_UPLOAD_SECONDS = 7200.0
MOST_POSTED = 1 << 30  # bytes of files in one request
MOST_STORED = 2 << 30  # bytes of stored files that are still to be read
MEASURE_BYTES = 16 << 20  # after each such amount the folder is measured again, because others post too
SPARE_BYTES = 64 << 20  # kept free on the disk for conversations, and for bytes that arrive between two measurements
UPLOAD = "/gradio_api/upload"
# What the page asks for, and a program that drives it with Gradio's client.
USED = re.compile(
    r"/|/(login|logout|config)/?|/(static|assets)/.*|/favicon\.ico|/theme\.css|/manifest\.json"
    r"|/gradio_api/(info|app_id|startup-events|theme\.css|upload|upload_progress|queue/(join|data)|run/\w+|cancel|reset"
    r"|heartbeat/\w+)/?"
)
NOTHING_HERE = "There is nothing here."
TOO_MANY = "Too many requests come at once. Try again in a moment."
DISK_FULL = "The disk is full. Make room, then drop the files again."
TOO_LONG, TOO_MUCH = "The request is too long.", "Too many files wait to be read. Drop fewer, or wait a moment."


class Bodies:
    """ASGI middleware.

    Args:
        uploads: where posted files are stored.
        most_posted, most_stored, most_message: bytes; see MOST_POSTED, MOST_STORED, MOST_MESSAGE.
    """

    def __init__(
        self,
        app: ASGIApp,
        uploads: Path,
        *,
        most_posted: int = MOST_POSTED,
        most_stored: int = MOST_STORED,
        most_message: int = MOST_MESSAGE,
    ) -> None:
        self._app, self._uploads = app, uploads
        self._most_posted, self._most_stored, self._num_uploads = most_posted, most_stored, 0
        self._messages = messages.Bodies(most_message, MOST_MESSAGES)
        self._logins = messages.Bodies(MOST_LOGIN, MOST_LOGINS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if not USED.fullmatch(path):
            await PlainTextResponse(NOTHING_HERE, 404)(scope, receive, send)
        elif path.rstrip("/") == UPLOAD:
            await self._store(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
        else:
            await self._hold(scope, receive, send)

    async def _store(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = _declared_bytes(scope)
        drop_unopened(self._uploads)
        if declared > self._most_posted:
            await PlainTextResponse(TOO_LONG, 413)(scope, receive, send)
        elif self._room() < max(1, declared) or self._num_uploads >= MOST_UPLOADS:
            await PlainTextResponse(TOO_MUCH, 413)(scope, receive, send)
        elif self._free() < declared:
            await PlainTextResponse(DISK_FULL, 507)(scope, receive, send)
        else:
            self._num_uploads += 1
            try:
                await self._app(scope, self._counted(receive), send)
            finally:
                self._num_uploads -= 1

    def _room(self) -> int:
        return self._most_stored - size_bytes(self._uploads)

    def _free(self) -> int:
        """Bytes of the disk that uploads may take."""
        with suppress(OSError):
            return shutil.disk_usage(self._uploads).free - SPARE_BYTES
        return self._most_stored  # the folder is missing; Gradio creates it

    def _counted(self, receive: Receive) -> Receive:
        """Stop a body that is too long or breaks off by the one error after which the parser deletes its files."""
        total, unmeasured, end = 0, 0, time.monotonic() + LONGEST_UPLOAD_SECONDS

        async def counted() -> Message:
            nonlocal total, unmeasured
            try:
                message = await asyncio.wait_for(receive(), messages.STALLED_SECONDS)
            except TimeoutError:
                message = {"type": "http.disconnect"}
            if message["type"] == "http.disconnect" or time.monotonic() > end:
                raise MultiPartException("The upload broke off.")
            total, unmeasured = total + len(message.get("body", b"")), unmeasured + len(message.get("body", b""))
            if total > self._most_posted:
                raise MultiPartException(f"{TOO_LONG} (maximum allowed size)")
            if unmeasured >= MEASURE_BYTES:
                unmeasured = 0
                if self._room() <= 0:
                    raise MultiPartException(f"{TOO_MUCH} (maximum allowed size)")
                if self._free() <= 0:
                    raise MultiPartException(f"{DISK_FULL} (maximum allowed size)")
            return message

        return counted

    async def _hold(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a whole message and pass it on if it is allowed."""
        reader = self._logins if scope["path"].rstrip("/") == "/login" else self._messages
        try:
            body = await reader.read(Request(scope, receive))
        except ClientDisconnect:
            return
        except RequestError as error:
            told = TOO_MANY if isinstance(error, Overloaded) else error.message
            await PlainTextResponse(told, error.status, {"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


def _declared_bytes(scope: Scope) -> int:
    declared = Headers(scope=scope).get("content-length", "0")
    return int(declared) if declared.isdecimal() and len(declared) < 19 else 0


def _replayed(body: bytes, receive: Receive) -> Receive:
    left = [body]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed
