"""Limits on request bodies, in size, time and number, so that slow senders fill neither memory, disk nor the queue.

Gradio stores every byte that is posted as a file, and has many more addresses than the page uses, which fetch, store
what was shown or change the page's code: only those that the page uses are there.
"""

import asyncio
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.context.upload_files import drop_unopened, size_bytes
from app.server.openai.errors import RequestError, overloaded

STALLED_SECONDS = 60.0  # without a byte received from or taken by a client
LONGEST_SECONDS, LONGEST_UPLOAD_SECONDS = 300.0, 7200.0  # for a whole body; the first: 64 MiB at 2 Mbit/s
MOST_MESSAGE = 4 << 20  # bytes; a question that fills the largest context has less than one
MOST_MESSAGES, MOST_UPLOADS = 32, 16  # that may arrive at the same time
MOST_LOGIN, MOST_LOGINS = 4 << 10, 256  # bytes of one, and how many at the same time: 1 MiB for who has no login
MOST_POSTED = 1 << 30  # bytes of files in one request
MOST_STORED = 2 << 30  # bytes of stored files that are still to be read
MEASURE_BYTES = 16 << 20  # after each such amount the folder is measured again, because others post too
SPARE_BYTES = 64 << 20  # kept free on the disk for conversations, and for bytes that arrive between two measurements
UPLOAD = "/gradio_api/upload"
# What the page asks for: ours, then of Gradio's what draws the frame and takes uploads.
USED = re.compile(
    r"/page/(state|act|file|static/[\w.-]+)|/|/(login|config)/?|/(static|assets)/.*|/favicon\.ico|/theme\.css"
    r"|/manifest\.json|/gradio_api/(info|app_id|startup-events|theme\.css|upload|upload_progress|heartbeat/\w+)/?"
)
NOTHING_HERE = "There is nothing here."
DISK_FULL = "The disk is full. Make room, then drop the files again."
TOO_LONG, TOO_MUCH = "The request is too long.", "Too many files wait to be read. Drop fewer, or wait a moment."


class BodyLimit:
    """ASGI middleware that reads a whole body before the app sees the request.

    Args:
        most_bytes: of one body.
        most_at_once: bodies that may arrive at the same time.
        answer: how an error is told: 413 before more than `most_bytes` are held, 503 if too many bodies arrive now, 400
            after STALLED_SECONDS without a byte or LONGEST_SECONDS in all.
    """

    def __init__(
        self, app: ASGIApp, most_bytes: int, most_at_once: int, answer: Callable[[RequestError], Response]
    ) -> None:
        self._app, self._most_bytes, self._most_at_once, self._answer = app, most_bytes, most_at_once, answer
        self._num_coming = 0  # only the event loop uses this

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self._app(scope, receive, send)
        try:
            left = [await self._whole(Request(scope, receive))]
        except ClientDisconnect:
            return None
        except RequestError as error:
            return await self._answer(error)(scope, receive, send)

        async def replayed() -> Message:
            return {"type": "http.request", "body": left.pop()} if left else await receive()

        await self._app(scope, replayed, send)

    async def _whole(self, request: Request) -> bytes:
        if _declared_bytes(request.scope) > self._most_bytes:
            raise self._too_large()
        if self._num_coming >= self._most_at_once:
            raise overloaded("Too many requests come at once.")
        self._num_coming += 1
        body, clock = bytearray(), asyncio.get_running_loop().time
        end = clock() + LONGEST_SECONDS
        try:
            async with asyncio.timeout_at(min(end, clock() + STALLED_SECONDS)) as patience:
                async for part in request.stream():
                    patience.reschedule(min(end, clock() + STALLED_SECONDS))
                    if len(body) + len(part) > self._most_bytes:
                        raise self._too_large()
                    body += part
        except TimeoutError as error:
            raise RequestError("The rest of the request took too long to come.") from error
        finally:
            self._num_coming -= 1
        return bytes(body)

    def _too_large(self) -> RequestError:
        most = f"{self._most_bytes / (1 << 20):.3g} MiB"
        return RequestError(f"The request has more than {most}, the most that is read.", 413, code="request_too_large")


class PageLimits:
    """ASGI middleware of the page: its addresses alone, messages by `BodyLimit`, and uploads as far as there is room.

    Args:
        uploads: where posted files are stored.
    """

    def __init__(self, app: ASGIApp, uploads: Path) -> None:
        self._app, self._uploads, self._num_uploads = app, uploads, 0
        self._messages = BodyLimit(app, MOST_MESSAGE, MOST_MESSAGES, RequestError.as_text)
        self._logins = BodyLimit(app, MOST_LOGIN, MOST_LOGINS, RequestError.as_text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["path"].rstrip("/") if scope["type"] == "http" else ""
        if scope["type"] == "http" and not USED.fullmatch(scope["path"]):
            await RequestError(NOTHING_HERE, 404).as_text()(scope, receive, send)
        elif path == UPLOAD:
            await self._store(scope, receive, send)
        else:
            await (self._logins if path == "/login" else self._messages)(scope, receive, send)

    async def _store(self, scope: Scope, receive: Receive, send: Send) -> None:
        drop_unopened(self._uploads)
        declared = _declared_bytes(scope)
        problem = TOO_LONG if declared > MOST_POSTED else self._no_place(declared)
        if not problem and self._num_uploads >= MOST_UPLOADS:
            problem = TOO_MUCH
        if problem:
            status = 507 if problem == DISK_FULL else 413
            return await RequestError(problem, status).as_text()(scope, receive, send)
        self._num_uploads += 1
        try:
            await self._app(scope, self._counted(receive), send)
        finally:
            self._num_uploads -= 1

    def _no_place(self, num_bytes: int) -> str:
        """Why so many more bytes may not be stored; "": they may."""
        if MOST_STORED - size_bytes(self._uploads) < max(1, num_bytes):
            return TOO_MUCH
        with suppress(OSError):  # the folder is missing; Gradio creates it
            return DISK_FULL if shutil.disk_usage(self._uploads).free - SPARE_BYTES < num_bytes else ""
        return ""

    def _counted(self, receive: Receive) -> Receive:
        """Stop a body that is too long or breaks off by the one error after which the parser deletes its files."""
        total, measured, end = 0, 0, time.monotonic() + LONGEST_UPLOAD_SECONDS

        async def counted() -> Message:
            nonlocal total, measured
            message: Message = {"type": "http.disconnect"}
            with suppress(TimeoutError):
                message = await asyncio.wait_for(receive(), STALLED_SECONDS)
            if message["type"] == "http.disconnect" or time.monotonic() > end:
                raise MultiPartException("The upload broke off.")
            total += len(message.get("body", b""))
            problem = TOO_LONG if total > MOST_POSTED else ""
            if not problem and total - measured >= MEASURE_BYTES:
                measured = total
                problem = self._no_place(1)
            if problem:
                raise MultiPartException(f"{problem} (maximum allowed size)")
            return message

        return counted


def _declared_bytes(scope: Scope) -> int:
    declared = Headers(scope=scope).get("content-length", "0")
    return int(declared) if declared.isdecimal() and len(declared) < 19 else 0
