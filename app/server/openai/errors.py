"""The error a client gets: an HTTP status and the JSON that OpenAI's clients understand."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse

from app.runtime.error_text import EngineFault, problem_and_hint
from core.errors import BadGrammar, ContextTooSmall, CoreError

RETRY_SECONDS = 5


class RequestError(Exception):
    """The response sent instead of an answer: 400, the request cannot be understood or asks for what cannot be done.

    It ends the connection, because the rest of a refused body is not waited for.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.headers = {**(headers or {}), "Connection": "close"}

    def body(self) -> dict[str, Any]:
        """The JSON of OpenAI's interface for errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def as_json(self) -> JSONResponse:
        """For programs."""
        return JSONResponse(self.body(), self.status, self.headers)

    def as_text(self) -> PlainTextResponse:
        """For people."""
        return PlainTextResponse(self.message, self.status, self.headers)


def overloaded(problem: str) -> RequestError:
    """The error for one request too many (503)."""
    action = f"Try again in {RETRY_SECONDS} s."
    return RequestError(f"{problem} {action}", 503, code="overloaded", headers={"Retry-After": str(RETRY_SECONDS)})


def request_error(error: CoreError, field: str = "messages") -> RequestError:
    """The response for an error of the engine. `field`: where the request has its text."""
    if isinstance(error, ContextTooSmall):
        from core.generation.decode_loop import LONGEST_ROUND  # torch, which the page's start does not wait for

        return RequestError(
            f"This prompt has {error.needed - LONGEST_ROUND:,} tokens; at most {error.capacity - LONGEST_ROUND:,} fit. "
            "Shorten the text, or start the server with a larger --context.",
            param=field,
            code="context_length_exceeded",
        )
    problem, hint = problem_and_hint(error)
    if isinstance(error, EngineFault):
        return RequestError(problem, 500, code="engine_error")
    schema = "text.format" if field == "input" else "response_format"
    param = schema if isinstance(error, BadGrammar) else None
    return RequestError(problem if "--" in hint else f"{problem} {hint}", param=param)  # clients have no command line
