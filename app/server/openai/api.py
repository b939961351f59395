"""The server's addresses and their answers; see https://platform.openai.com/docs/api-reference/chat.

/tokenize and `max_model_len` are vLLM's additions to OpenAI's interface; common clients use them.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.runtime.events import Pause, Ready
from app.runtime.worker import EngineWorker
from app.server.openai.api_guard import ApiGuard
from app.server.openai.bodies import STALLED_SECONDS, Bodies
from app.server.openai.errors import BadRequest, Failed, NotFound, RequestError
from app.server.openai.request import ChatRequest, parse_chat, parse_json, quoted
from app.server.openai.response import DONE, Head, chunk, completion, event, last_chunk, remark, usage_chunk
from app.server.openai.turns import MOST_WAITING, Timing, Turns, ended_early
from app.server.request_guard import Hosts
from core.decoding.registry import methods_for
from core.generation.events import Finished, PrefillProgress, RoundDone

if TYPE_CHECKING:
    from core.engine_api import TextEngine

T = TypeVar("T")
ALIVE_SECONDS = 5.0  # between comments while there is no text
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Api:
    """One loaded model behind HTTP.

    Args:
        ready: the model's state from the worker.
        hosts, key, origins: see `ApiGuard`.
        thinking: the wish of requests that have none.
    """

    def __init__(
        self,
        worker: EngineWorker,
        ready: Ready,
        *,
        hosts: Hosts,
        key: str | None = None,
        origins: Sequence[str] = (),
        most_waiting: int = MOST_WAITING,
        thinking: str | None = None,
    ) -> None:
        self._turns = Turns(worker, most_waiting=most_waiting)
        self._bodies = Bodies(ready.context, most_waiting + 1)
        self._ready, self._created, self._thinking = ready, int(time.time()), thinking
        usual = ready.info.usual_method
        self._methods = tuple(sorted(methods_for(has_draft=ready.info.has_draft), key=lambda name: name != usual))
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/health", self.health),
        ]
        self.app = Starlette(
            routes=routes,
            middleware=[Middleware(ApiGuard, hosts=hosts, key=key, origins=origins)],
            exception_handlers={
                RequestError: _refused,
                HTTPException: _misdirected,
                ClientDisconnect: _gone,
                Exception: _broken,
            },
        )

    async def health(self, _request: Request) -> Response:
        """Whether the server is up."""
        return JSONResponse({"status": "ok"})

    async def models(self, _request: Request) -> Response:
        """The list of models: the loaded one."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The loaded model, by name."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._card())

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text."""
        body = parse_json(await self._bodies.read(request))
        if "model" in body:
            self._check_name(body["model"])
        words = body.get("prompt")
        if not isinstance(words, str):
            raise BadRequest("prompt must be a text.", param="prompt")

        def encode(engine: "TextEngine") -> list[int]:
            return engine.text.encode(words.encode(errors="replace").decode())

        ids = await self._turns.do(encode)
        return JSONResponse({"count": len(ids), "max_model_len": self._ready.context, "tokens": ids})

    async def chat(self, request: Request) -> Response:
        """An answer to messages, whole or streamed."""
        timing = Timing(time.perf_counter())
        body = parse_json(await self._bodies.read(request))
        asked = parse_chat(body, default_method=self._methods[0], thinking=self._thinking)
        self._check_name(asked.model)
        head = Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), self._ready.info.model)
        if not asked.stream:
            whole = await _unless_gone(request, self._whole(asked, head, timing))
            return Response(status_code=499) if whole is None else JSONResponse(whole)
        parts = self._parts(asked, head, timing)
        first = await _unless_gone(request, anext(parts))  # an error before the first part gets its own status
        return Response(status_code=499) if first is None else EventStream(request, first, parts)

    async def _whole(self, asked: ChatRequest, head: Head, timing: Timing) -> dict[str, Any]:
        async with self._turns.answer(asked, timing) as events:
            async for one in events:
                if isinstance(one, Finished) and one.stop_reason != "cancelled":
                    return completion(head, one, timing, asked.config.seed)
        raise ended_early()

    async def _parts(self, asked: ChatRequest, head: Head, timing: Timing) -> AsyncGenerator[bytes]:
        shown, finished, reading, told_at = 0, None, False, 0.0
        async with self._turns.answer(asked, timing) as events:
            async for one in events:
                text = ""
                match one:
                    case PrefillProgress() if not reading:
                        reading, told_at = True, time.monotonic()
                        yield event(chunk(head, {"role": "assistant", "content": ""}))
                    case PrefillProgress():
                        told_at = time.monotonic()
                        yield remark(f"read {one.done_tokens} of {one.total_tokens} tokens")
                    case RoundDone():
                        if one.thought:
                            yield event(chunk(head, {"reasoning_content": one.thought}))
                        text, shown = timing.fresh(shown, one.text), shown + len(one.text)
                    case Finished():
                        finished = one
                    case Pause() if reading and time.monotonic() - told_at >= ALIVE_SECONDS:
                        told_at = time.monotonic()
                        yield remark("working")
                if text:
                    told_at = time.monotonic()
                    yield event(chunk(head, {"content": text}))
        if finished is None or finished.stop_reason == "cancelled":
            raise ended_early()
        if rest := timing.fresh(shown, finished.text[timing.num_shown_before + shown :]):
            yield event(chunk(head, {"content": rest}))
        yield event(last_chunk(head, finished, timing, asked.config.seed))
        if asked.include_usage:
            yield event(usage_chunk(head, finished))
        yield DONE

    def _check_name(self, name: object) -> None:
        if name != self._ready.info.model:
            raise NotFound(
                f"There is no model {quoted(name)} here; this server has {self._ready.info.model!r}.",
                param="model",
                code="model_not_found",
            )

    def _card(self) -> dict[str, Any]:
        info = self._ready.info
        return {
            "id": info.model,
            "object": "model",
            "created": self._created,
            "owned_by": "triforce-reader",
            "max_model_len": self._ready.context,
            "triforce": {
                "methods": self._methods,
                "dtype": info.plan.precision,
                "description": info.description,
                "limits": info.limits,
                "thinking": info.capabilities.thinking,
            },
        }


class EventStream(Response):
    """Sends parts of an answer as they come; cancels it when the client disconnects or stops receiving."""

    def __init__(self, request: Request, first: bytes, parts: AsyncGenerator[bytes]) -> None:
        super().__init__(headers=EVENT_STREAM)
        del self.headers["content-length"]
        self._request, self._first, self._parts = request, first, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all parts."""

        async def take(part: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(STALLED_SECONDS):
                await send({"type": "http.response.body", "body": part, "more_body": more})

        async def stream() -> None:
            await take(self._first)
            try:
                async for part in self._parts:
                    await take(part)
            except RequestError as error:  # too late for an HTTP status
                await take(event(error.body()) + DONE)
            await take(b"", more=False)

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._parts):
            with contextlib.suppress(TimeoutError):  # the response is unfinished, so the connection is closed
                await _unless_gone(self._request, stream())


async def _unless_gone(request: Request, work: Awaitable[T]) -> T | None:
    """The result of the work; None if the client disconnects meanwhile, which cancels the work."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(working, watching, return_exceptions=True)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse(error.body(), error.status, error.headers)


async def _misdirected(request: Request, error: Exception) -> Response:
    """An unknown address, or a method it does not have."""
    assert isinstance(error, HTTPException)
    return JSONResponse(
        NotFound(f"There is nothing at {request.method} {request.url.path}.").body(), error.status_code, error.headers
    )


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads this


async def _broken(_request: Request, _error: Exception) -> Response:
    """A bug in this program; uvicorn's log has the traceback."""
    return JSONResponse(Failed("The server stopped with an error. Its terminal says which.").body(), 500)
