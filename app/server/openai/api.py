"""The server's addresses and their answers; see https://platform.openai.com/docs/api-reference/chat.

/tokenize and `max_model_len` are vLLM's additions to OpenAI's interface; common clients use them, and so does --remote.
"""

import asyncio
import contextlib
import hmac
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.runtime.events import Changed, Pause, Ready
from app.runtime.worker import EngineWorker
from app.server.bodies import STALLED_SECONDS, BodyLimit
from app.server.openai.errors import RequestError
from app.server.openai.prompts import Prompts
from app.server.openai.request import Body, ChatBody, ResponseBody, TextBody, parse, parse_json, quoted
from app.server.openai.request_log import Metrics, RequestLog
from app.server.openai.shapes import DONE, ChatShape, Document, ResponseShape, Result, TextShape, event, remark
from app.server.openai.turns import MOST_WAITING, Turns, check_known, ended_early
from app.server.request_guard import Hosts, RequestGuard
from core.config import seed_at
from core.decoding.registry import methods_for
from core.engine_api import local
from core.generation.events import Finished, PrefillProgress, RoundDone, TokenRecord

if TYPE_CHECKING:
    from core.engine_api import TextEngine

ALIVE_SECONDS = 5.0  # between comments while there is no text
LEAST_BODY, MOST_BODY = 1 << 20, 64 << 20
# English takes 4 or 5 bytes a token, 30 if every letter is escaped: a prompt too long for the context still gets read.
BYTES_PER_TOKEN = 128
ANSWERS: dict[str, tuple[type[Body], type[ChatShape]]] = {
    "/v1/chat/completions": (ChatBody, ChatShape),
    "/v1/completions": (TextBody, TextShape),
    "/v1/responses": (ResponseBody, ResponseShape),
}
OPEN = "/health"  # says only that the server is up
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Api:
    """One loaded model behind HTTP.

    Args:
        ready: the model's state from the worker.
        hosts, origins: see `RequestGuard`.
        key: clients send it as `Authorization: Bearer KEY`; None: no key needed.
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
        self._turns = Turns(worker, most_waiting=most_waiting, thinking=thinking)
        self._ready, self._created = ready, int(time.time())
        usual, metrics = ready.info.usual_method, Metrics(lambda: self._turns.num_here)
        self._methods = tuple(sorted(methods_for(has_draft=ready.info.has_draft), key=lambda name: name != usual))
        routes = [
            *(Route(path, partial(self.answer, *kinds), methods=["POST"]) for path, kinds in ANSWERS.items()),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/metrics", metrics.reply),
            Route("/health", lambda _: JSONResponse({"status": "ok"})),
        ]
        self.app = Starlette(
            routes=routes,
            middleware=[
                Middleware(RequestLog, metrics),
                Middleware(RequestGuard, hosts, RequestError.as_json, partial(no_key, key), origins),
                Middleware(BodyLimit, prompt_bytes(ready.context), most_waiting + 1, RequestError.as_json),
            ],
            exception_handlers={RequestError: _refused, HTTPException: _refused, Exception: _refused},
        )

    async def models(self, _request: Request) -> Response:
        """The list of models: the loaded one."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The loaded model, by name."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._card())

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text, as /v1/completions reads it."""
        asked, ids = parse(TextBody, await _read(request), self._methods), list[int]()
        self._check_name(asked.model)

        def work(engine: "TextEngine", _cancel: threading.Event) -> Iterator[Pause]:
            ids.extend(Prompts().of(asked, local(engine).text).ids)
            check_known(engine, ids)
            yield Pause()

        async with aclosing(self._turns.turn(work)) as events:
            async for _ in events:
                pass
        if not ids:
            raise ended_early()
        return JSONResponse({"count": len(ids), "max_model_len": self._ready.context, "tokens": ids})

    async def answer(self, body: type[Body], kind: type[ChatShape], request: Request) -> ASGIApp:
        """An answer, whole or streamed."""
        arrived, results = time.perf_counter(), list[Result]()
        request.state.results = results  # for `RequestLog`
        asked = parse(body, await _read(request), self._methods)
        self._check_name(asked.model)
        shape = kind(self._ready.info.model, include_usage=bool(asked.stream_options.get("include_usage")))
        whole = None if asked.stream else lambda: shape.whole(results)
        return sending(self._parts(request, asked, shape, arrived, results), whole)

    async def _parts(
        self, request: Request, asked: Body, shape: ChatShape, arrived: float, results: list[Result]
    ) -> AsyncGenerator[bytes]:
        """The stream of an answer, silent for ALIVE_SECONDS at most. `results` gets every answer that has ended.

        Raises:
            ClientDisconnect: seen at the next event, a tenth of a second later at most.
        """
        shown, reading, told_at, records = 0, False, time.monotonic(), list[TokenRecord]()
        noting, waited, first_after = asked.num_logprobs is not None, 0.0, None
        async with aclosing(self._turns.answer(asked)) as events:
            async for one in events:
                if await request.is_disconnected():
                    raise ClientDisconnect
                documents: Iterable[Document] = ()
                index, now = len(results), time.perf_counter() - arrived
                match one:
                    case Changed():
                        waited = now
                    case PrefillProgress() if not reading:
                        reading, documents = True, (shape.first(asked.n),)
                    case PrefillProgress() if not results:
                        told_at = time.monotonic()
                        yield remark(f"read {one.done_tokens} of {one.total_tokens} tokens")
                    case RoundDone():
                        first_after = first_after or now
                        shown += len(one.text)
                        records += one.tokens if noting else ()
                        documents = shape.part(index, one.text, one.thought, one.tokens if noting else None)
                    case Finished() if one.stop_reason != "cancelled":
                        results.append(
                            Result(one, seed_at(asked.seed, index), waited, first_after, records if noting else None)
                        )
                        rest = shape.part(index, one.text[shown:])
                        documents = chain(rest, shape.ended(index, results[index]))
                        shown, records = 0, []
                for document in documents if asked.stream else ():  # `whole` tells all at once
                    told_at = time.monotonic()
                    yield event(document)
                if time.monotonic() - told_at >= ALIVE_SECONDS:
                    told_at = time.monotonic()
                    yield remark("working" if reading else "waiting")
        if len(results) < asked.n:
            raise ended_early()
        for document in shape.last(results):
            yield event(document)
        yield DONE

    def _check_name(self, name: object) -> None:
        here = self._ready.info.model
        if name not in (None, here):
            problem = f"There is no model {quoted(name)} here; this server has {here!r}."
            raise RequestError(problem, 404, param="model", code="model_not_found")

    def _card(self) -> Document:
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


def sending(parts: AsyncGenerator[bytes], whole: Callable[[], Document] | None = None) -> ASGIApp:
    """Sends parts of an answer as they come, or the whole at their end; a client that stops receiving cancels it."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def take(part: bytes, *, more: bool = True) -> None:
            nonlocal has_begun
            async with asyncio.timeout(STALLED_SECONDS):
                if not has_begun:
                    has_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": Headers(EVENT_STREAM).raw})
                await send({"type": "http.response.body", "body": part, "more_body": more})

        async with aclosing(parts):
            with contextlib.suppress(TimeoutError, ClientDisconnect):  # an unfinished response closes the connection
                try:
                    async for part in parts:
                        if whole is None:
                            await take(part)
                except RequestError as error:
                    if not has_begun:
                        raise  # it has its own status
                    await take(event(error.body()) + DONE)
                if whole is None:
                    await take(b"", more=False)
                else:
                    await JSONResponse(whole())(scope, receive, send)

    return respond


async def _read(request: Request) -> dict[str, Any]:
    return parse_json(b"".join([part async for part in request.stream()]))  # `request.body()` would keep it


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to a request that ended in an error."""
    if isinstance(error, HTTPException):  # an unknown address, or a method that it does not have
        problem = f"There is nothing at {request.method} {request.url.path}."
        error = RequestError(problem, error.status_code, headers=error.headers)
    elif not isinstance(error, RequestError):  # a bug of ours; uvicorn's log has the traceback
        error = RequestError("The server stopped with an error. Its terminal says which.", 500)
    return error.as_json()


def no_key(key: str | None, scope: Scope) -> RequestError | None:
    """The refusal of a request without the key."""
    scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
    right = scheme.lower() == "bearer" and key is not None and hmac.compare_digest(given.strip().encode(), key.encode())
    if key is None or right or scope["path"] == OPEN:
        return None
    problem, headers = "The API key is missing or wrong. Send the server's --api-key.", {"WWW-Authenticate": "Bearer"}
    return RequestError(problem, 401, code="invalid_api_key", headers=headers)


def prompt_bytes(context: int) -> int:
    """The most bytes of a request whose prompt can fit a context of so many tokens."""
    return min(MOST_BODY, max(LEAST_BODY, BYTES_PER_TOKEN * context))
