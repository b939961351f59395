"""How answers of a remote server are told from ours: by the name of their method."""

from core.decoding.registry import METHODS

LONGEST_PIECE = 256  # characters that one token stands for: a file of a conversation holds the number of each
REMOTE = "remote"  # the method of a server that has but one, and the device of its model
NOT_SEEN = "A remote server wrote this: how it computes cannot be seen from here."


def is_remote(method: str | None) -> bool:
    """Whether a method, or a device, is a remote one."""
    return method == REMOTE or (method or "").startswith(f"{REMOTE}-")


def remotely(method: str) -> str:
    """The name here of a method that a server of ours offers."""
    return f"{REMOTE}-{method}"


def theirs(method: str) -> str:
    """The server's own name of a method."""
    return method.removeprefix(f"{REMOTE}-")


def method_label(method: str) -> str:
    """What readers call a method, of this program or of a server; its own name where nobody here knows it."""
    if method == REMOTE:
        return "Remote server"
    known = METHODS.get(theirs(method))
    if known is None:
        return method
    return f"{known.label}, remote" if is_remote(method) else known.label
