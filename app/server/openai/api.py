"""The server's addresses and their answers; see https://platform.openai.com/docs/api-reference/chat.

/tokenize and `max_model_len` are vLLM's additions to OpenAI's interface; common clients use them.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
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
from app.server.openai.bodies import STALLED_SECONDS, Bodies, prompt_bytes
from app.server.openai.errors import BadRequest, Failed, NotFound, RequestError
from app.server.openai.metrics import METRICS_TYPE, Metrics, Observed, note
from app.server.openai.request import ChatRequest, parse_chat, parse_json, parse_text, quoted
from app.server.openai.response import DONE, ChatShape, Head, Part, Result, Shape, TextShape, event, remark
from app.server.openai.responses import ResponseShape, parse_response
from app.server.openai.turns import MOST_WAITING, Timing, Turns, ended_early
from app.server.request_guard import Hosts
from core.decoding.registry import methods_for
from core.generation.events import Finished, PrefillProgress, RoundDone, TokenRecord

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
        self._bodies = Bodies(prompt_bytes(ready.context), most_waiting + 1)
        self._metrics = Metrics(lambda: self._turns.num_here, lambda: worker.saved_books.in_memory)
        self._ready, self._created, self._thinking = ready, int(time.time()), thinking
        usual = ready.info.usual_method
        self._methods = tuple(sorted(methods_for(has_draft=ready.info.has_draft), key=lambda name: name != usual))
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.text, methods=["POST"]),
            Route("/v1/responses", self.response, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        self.app = Starlette(
            routes=routes,
            middleware=[
                Middleware(Observed, metrics=self._metrics),
                Middleware(ApiGuard, hosts=hosts, key=key, origins=origins),
            ],
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

    async def metrics(self, _request: Request) -> Response:
        """Counts and times in Prometheus' text format."""
        return Response(self._metrics.text(), media_type=METRICS_TYPE)

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
        timing, body = await self._begun(request)
        asked = parse_chat(body, default_method=self._methods[0], thinking=self._thinking)
        return await self._answered(request, asked, timing, ChatShape(self._head("chatcmpl-"), asked.include_usage))

    async def text(self, request: Request) -> Response:
        """A text that goes on, without a chat template."""
        timing, body = await self._begun(request)
        asked = parse_text(body, default_method=self._methods[0])
        return await self._answered(request, asked, timing, TextShape(self._head("cmpl-"), asked.include_usage))

    async def response(self, request: Request) -> Response:
        """As `chat`, in the words of /v1/responses."""
        timing, body = await self._begun(request)
        asked = parse_response(body, default_method=self._methods[0], thinking=self._thinking)
        return await self._answered(request, asked, timing, ResponseShape(self._head("resp_")))

    async def _begun(self, request: Request) -> tuple[Timing, dict[str, Any]]:
        timing = Timing(time.perf_counter())
        return timing, parse_json(await self._bodies.read(request))

    def _head(self, prefix: str) -> Head:
        return Head(f"{prefix}{secrets.token_hex(12)}", int(time.time()), self._ready.info.model)

    async def _answered(self, request: Request, asked: ChatRequest, timing: Timing, shape: Shape) -> Response:
        if asked.model is not None:
            self._check_name(asked.model)
        self._check_method(asked.config.method)
        results: list[Result] = []
        note(request, results, timing)
        if not asked.stream:
            whole = await _unless_gone(request, self._whole(asked, shape, timing, results))
            return Response(status_code=499) if whole is None else JSONResponse(whole)
        parts = self._parts(asked, shape, timing, results)
        first = await _unless_gone(request, anext(parts))  # an error before the first part gets its own status
        return Response(status_code=499) if first is None else EventStream(request, first, parts)

    async def _whole(self, asked: ChatRequest, shape: Shape, timing: Timing, results: list[Result]) -> dict[str, Any]:
        records: list[TokenRecord] = []
        async with self._turns.answer(asked, timing) as events:
            async for one in events:
                if isinstance(one, RoundDone):
                    records += one.tokens
                if isinstance(one, Finished) and one.stop_reason != "cancelled":
                    results.append(_result(asked, one, len(results), records))
                    records = []
                    if len(results) == asked.count:
                        return shape.whole(results, timing)
        raise ended_early()

    async def _parts(
        self, asked: ChatRequest, shape: Shape, timing: Timing, results: list[Result]
    ) -> AsyncGenerator[bytes]:
        shown, reading, told_at = 0, False, 0.0
        noting = asked.config.top_logprobs is not None
        async with self._turns.answer(asked, timing) as events:
            async for one in events:
                documents: Iterable[dict[str, Any]] = ()
                match one:
                    case PrefillProgress() if not reading:
                        reading, documents = True, (shape.first(),)
                    case PrefillProgress() if not results:
                        told_at = time.monotonic()
                        yield remark(f"read {one.done_tokens} of {one.total_tokens} tokens")
                    case RoundDone():
                        text, shown = timing.fresh(shown, one.text), shown + len(one.text)
                        part = Part(len(results), text, one.thought, one.tokens if noting else None)
                        documents = shape.part(part) if part else ()
                    case Finished() if one.stop_reason != "cancelled":
                        documents = self._ended(asked, one, shape, timing, results, shown)
                        shown = 0
                    case Pause() if reading and time.monotonic() - told_at >= ALIVE_SECONDS:
                        told_at = time.monotonic()
                        yield remark("working")
                for document in documents:
                    told_at = time.monotonic()
                    yield event(document)
        if len(results) < asked.count:
            raise ended_early()
        for document in shape.last(results):
            yield event(document)
        yield DONE

    def _ended(
        self, asked: ChatRequest, finished: Finished, shape: Shape, timing: Timing, results: list[Result], shown: int
    ) -> Iterator[dict[str, Any]]:
        index = len(results)
        results.append(_result(asked, finished, index, ()))
        if rest := timing.fresh(shown, finished.text[timing.num_shown_before + shown :]):
            yield from shape.part(Part(index, rest))
        yield from shape.ended(index, results[index], timing)

    def _check_method(self, method: str) -> None:
        if method not in self._methods:
            known = ", ".join(self._methods)
            raise BadRequest(
                f"This server has no draft model for the method {quoted(method)}; use one of {known}.",
                param="triforce.method",
            )

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
                "thinking": info.thinking,
            },
        }


def _result(asked: ChatRequest, finished: Finished, index: int, records: Sequence[TokenRecord]) -> Result:
    noted = records if asked.config.top_logprobs is not None else None
    return Result(finished, asked.config.seed + index, noted)


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
