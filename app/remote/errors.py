"""Errors of a remote server: one problem, one action. No error contains the key or text of a book.

RemoteError
├── Unreachable     no server answers at the address
├── TooSlow         nothing has arrived for too long
├── Refused         the server refused, with its reason if it gave one
├── Garbage         the response is not that of an OpenAI-compatible server
├── BrokenOff       the connection ended during an answer
└── NotRemotely     only an engine of this process can do this
"""

from core.errors import CoreError

MOST_SAID = 200  # characters of a server's own message


class RemoteError(CoreError):
    """Base of all."""


class Unreachable(RemoteError):
    """No server answers at the address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"The server at {address} cannot be reached ({said(reason)}).",
            hint="See that it runs and that --remote has its address, then try again.",
        )


class TooSlow(RemoteError):
    """Nothing has arrived for too long."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(
            f"The server at {address} has sent nothing for {seconds:,.0f} s.",
            hint="See whether it is busy or stuck, then try again.",
        )


class Refused(RemoteError):
    """The server refused the request."""

    def __init__(self, address: str, status: int, reason: str) -> None:
        hint = {
            401: "Give its key with --remote-key or TRIFORCE_REMOTE_KEY.",
            403: "Give its key with --remote-key or TRIFORCE_REMOTE_KEY.",
            404: "See that --remote has its address, usually ending in /v1, and --model a name that it knows.",
            400: "If the text is too long choose fewer pages, else change what the server names.",
            429: "Wait until it has less to do, then try again.",
            503: "Wait until it has less to do, then try again.",
        }.get(status, "See what its log says, then try again.")
        words = f": {said(reason).rstrip('.')}" if reason.strip() else ""
        super().__init__(f"The server at {address} refuses ({status}){words}.", hint=hint)
        self.status = status


class Garbage(RemoteError):
    """The response is not that of an OpenAI-compatible server."""

    def __init__(self, address: str, what: str) -> None:
        super().__init__(
            f"The server at {address} does not answer like an OpenAI-compatible one ({said(what)}).",
            hint="See that --remote has its address, usually ending in /v1.",
        )


class BrokenOff(RemoteError):
    """The connection ended during an answer."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"The server at {address} ended the connection during the answer.",
            hint="Ask again; if it happens again, read the server's log.",
        )


class NotRemotely(RemoteError):
    """Only an engine of this process can do this."""


def said(words: str) -> str:
    """A server's message on one line, without control characters, shortened."""
    line = " ".join("".join(char if char.isprintable() else " " for char in words[: 4 * MOST_SAID]).split())
    return line if len(line) <= MOST_SAID else f"{line[: MOST_SAID - 1]}…"
