"""Method names distinguish answers of a remote server from local ones; their labels and capabilities."""

from core.decoding.registry import METHODS
from core.generation.capabilities import ALL, EngineCapabilities

LONGEST_PIECE = 256  # characters that one token stands for; a conversation file stores each token as a number
REMOTE = "remote"  # the method of a server with only one, and the device of its model
NOT_SEEN = "A remote server wrote this: how it computes cannot be seen from here."
EXACTNESS_NOT_SEEN = "exactness not seen"
EXACT_AS_TOLD = "exact, as the server says"
SWITCHED = ("on", "off")  # what a server's thinking can be told
TOLD, NOT_TOLD = "as the server tells", "a remote server does not tell"
NO_RACE = "No races with a remote server: their turns cannot be kept fair."
PAGES_NOT_SEEN = "Where in the book a remote server looks cannot be seen from here."
TOKENS_NOT_SEEN = (
    "A remote server wrote this answer. Who proposed its tokens, who verified them and what was read "
    "for them cannot be seen from here: start the reader without --remote to look inside."
)
ITS_WORD_ONLY = "the server's word only: how it computes cannot be seen from here"


def capabilities_on(methods: tuple[str, ...] = (), thinking: tuple[str, ...] = ()) -> EngineCapabilities:
    """The capabilities of a server's engine with its named methods; without names it has one method."""
    return EngineCapabilities(
        can_race=False,
        can_compare=False,
        shows_retrieval=False,
        counts_reread=False,
        computes_here=False,
        methods=tuple(map(remotely, methods)) or (REMOTE,),
        thinking=thinking,
    )


def capabilities_of(method: str | None) -> EngineCapabilities:
    """The capabilities of the engine that wrote an answer, from its recorded method alone."""
    return capabilities_on() if _is_remote(method) else ALL


def method_on(capabilities: EngineCapabilities, method: str) -> str:
    """The recorded name of a method: locally its own, on a server that of the server's method."""
    if capabilities.methods is None:
        return method
    wanted = remotely(theirs(method))
    return wanted if wanted in capabilities.methods else capabilities.methods[0]


def remotely(method: str) -> str:
    """The local name of a method on a server of this program."""
    return f"{REMOTE}-{method}"


def theirs(method: str) -> str:
    """The server's own name of a method."""
    return method.removeprefix(f"{REMOTE}-")


def method_label(method: str) -> str:
    """The label of a method, of this program or of a server; its own name if it is unknown here."""
    if method == REMOTE:
        return "Remote server"
    known = METHODS.get(theirs(method))
    if known is None:
        return method
    return f"{known.label}, remote" if _is_remote(method) else known.label


def _is_remote(method: str | None) -> bool:
    return method == REMOTE or (method or "").startswith(f"{REMOTE}-")
