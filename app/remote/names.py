"""How answers of a remote server are told from ours: by the name of their method. What is said where they show."""

from core.decoding.registry import METHODS
from core.generation.capabilities import ALL, EngineCapabilities

LONGEST_PIECE = 256  # characters that one token stands for: a file of a conversation holds the number of each
REMOTE = "remote"  # the method of a server that has but one, and the device of its model
NOT_SEEN = "A remote server wrote this: how it computes cannot be seen from here."
EXACTNESS_NOT_SEEN = "exactness not seen"
EXACT_AS_TOLD = "exact, as the server says"
TOLD, NOT_TOLD = "as the server tells", "a remote server does not tell"
NO_RACE = "No races with a remote server: their turns cannot be kept fair."
PAGES_NOT_SEEN = "Where in the book a remote server looks cannot be seen from here."
TOKENS_NOT_SEEN = (
    "A remote server wrote this answer. Who proposed its tokens, who judged them and what was read "
    "for them cannot be seen from here: start the reader without --remote to look inside."
)
ITS_WORD_ONLY = "the server's word only: how it computes cannot be seen from here"


def capabilities_on(methods: tuple[str, ...] = ()) -> EngineCapabilities:
    """Those of an engine on a server that offers methods by names of its own; none: it has but one way."""
    return EngineCapabilities(
        can_race=False,
        can_compare=False,
        shows_retrieval=False,
        counts_reread=False,
        computes_here=False,
        methods=tuple(map(remotely, methods)) or (REMOTE,),
    )


def capabilities_of(method: str | None) -> EngineCapabilities:
    """Those of the engine that an answer came from, where only the method that was recorded with it is at hand."""
    return capabilities_on() if _is_remote(method) else ALL


def method_on(capabilities: EngineCapabilities, method: str) -> str:
    """The name under which answers by a method are recorded: its own here, that of a way of the server's there."""
    if capabilities.methods is None:
        return method
    wanted = remotely(theirs(method))
    return wanted if wanted in capabilities.methods else capabilities.methods[0]


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
    return f"{known.label}, remote" if _is_remote(method) else known.label


def _is_remote(method: str | None) -> bool:
    return method == REMOTE or (method or "").startswith(f"{REMOTE}-")
