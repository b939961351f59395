"""The error a client gets: an HTTP status and the JSON that OpenAI's clients understand.

RequestError
├── BadRequest      400 the request cannot be understood, or asks for what cannot be done
├── NotAllowed      401/403/421 no key or a wrong one; a web page of another origin; another server's name
├── NotFound        404 no such model, no such address
├── TooLarge        413 more bytes than any prompt has
├── Overloaded      503 too many requests wait already
└── Failed          500 the engine stopped with an error
"""

from typing import Any

from app.runtime.error_text import problem_and_hint
from app.runtime.worker import EngineFault
from core.errors import BadGrammar, ContextTooSmall, CoreError

GRAMMAR_FIELDS = {"input": "text.format"}  # where a request has its schema, by where it has its text


class RequestError(Exception):
    """Base of all: the response sent instead of an answer."""

    status = 400
    kind = "invalid_request_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.headers = message, param, code, headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON of OpenAI's interface for errors."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class BadRequest(RequestError):
    """The request cannot be understood, or asks for what cannot be done."""


class NotAllowed(RequestError):
    """No key or a wrong one (401); a web page of another origin (403); not our name (421)."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, code=code, headers={"WWW-Authenticate": "Bearer"} if status == 401 else None)
        self.status = status


class NotFound(RequestError):
    """No such model, no such address."""

    status = 404


class TooLarge(RequestError):
    """More bytes than any prompt has."""

    status = 413


class Overloaded(RequestError):
    """Too many requests wait already."""

    status, kind = 503, "server_error"

    def __init__(self, num_waiting: int, retry_seconds: int) -> None:
        super().__init__(
            f"{num_waiting} requests wait already: one is answered at a time. Try again in {retry_seconds} s.",
            code="overloaded",
            headers={"Retry-After": str(retry_seconds)},
        )


class Failed(RequestError):
    """The engine stopped with an error, or is being shut down."""

    status, kind = 500, "server_error"


def request_error(error: CoreError, field: str = "messages") -> RequestError:
    """The response for an error of the engine. `field`: where the request has its text."""
    if isinstance(error, ContextTooSmall):
        from core.generation.decode_loop import LONGEST_ROUND  # torch, which the page's start does not wait for

        return too_long(error.needed - LONGEST_ROUND, error.capacity - LONGEST_ROUND, field)
    if isinstance(error, EngineFault):
        return Failed(problem_and_hint(error)[0], code="engine_error")
    problem, hint = problem_and_hint(error)
    param = GRAMMAR_FIELDS.get(field, "response_format") if isinstance(error, BadGrammar) else None
    told = problem if "--" in hint else f"{problem} {hint}"  # clients have no command line
    return BadRequest(told, param=param)


def too_long(num_tokens: int, most: int, field: str = "messages") -> BadRequest:
    """The error for a prompt that leaves no room for an answer."""
    return BadRequest(
        f"This prompt has {num_tokens:,} tokens; at most {most:,} fit. Shorten the text, "
        "or start the server with a larger --context.",
        param=field,
        code="context_length_exceeded",
    )
