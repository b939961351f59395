"""What can go wrong with a remote server: one problem, one action. No key and no text of a book is in any of them.

RemoteError
├── Unreachable     nobody answers there
├── TooSlow         nothing has come for too long
├── Refused         the server said no, and perhaps why
├── Garbage         what came is not what an OpenAI-compatible server sends
├── BrokenOff       the connection ended amid an answer
└── NotRemotely     what only an engine of this process can do
"""

from core.errors import CoreError

MOST_SAID = 200  # characters of a server's own words


class RemoteError(CoreError):
    """Base of all."""


class Unreachable(RemoteError):
    """Nobody answers there."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"The server at {address} cannot be reached ({said(reason)}).",
            hint="See that it runs and that --remote has its address, then try again.",
        )


class TooSlow(RemoteError):
    """Nothing has come for too long."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(
            f"The server at {address} has sent nothing for {seconds:,.0f} s.",
            hint="See whether it is busy or stuck, then try again.",
        )


class Refused(RemoteError):
    """The server said no."""

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
    """What came is not what an OpenAI-compatible server sends."""

    def __init__(self, address: str, what: str) -> None:
        super().__init__(
            f"The server at {address} does not answer like an OpenAI-compatible one ({said(what)}).",
            hint="See that --remote has its address, usually ending in /v1.",
        )


class BrokenOff(RemoteError):
    """The connection ended amid an answer."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"The server at {address} broke off amid the answer.",
            hint="Ask again; if it comes back, see what the server's log says.",
        )


class NotRemotely(RemoteError):
    """What only an engine of this process can do."""


def said(words: str) -> str:
    """A server's words on one line, without control characters, cut."""
    line = " ".join("".join(char if char.isprintable() else " " for char in words[: 4 * MOST_SAID]).split())
    return line if len(line) <= MOST_SAID else f"{line[: MOST_SAID - 1]}…"
