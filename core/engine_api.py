"""What the app needs of an engine wherever its model runs; `local` gives all that one of this machine can do."""

import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from core.config import EngineConfig, GenerationConfig
from core.errors import NotPossibleHere

if TYPE_CHECKING:  # importing these takes seconds
    from core.engine import Engine
    from core.engine_info import EngineInfo
    from core.generation.events import Event, PrefillProgress
    from core.generation.text import PromptText


class TextEngine(Protocol):
    """One loaded model and one conversation at a time. Not thread-safe: one thread owns it.

    `core.engine.Engine` describes what the methods do and raise, and has more of them. `info.elsewhere`: the model runs
    on a server, and only these are there.
    """

    @property
    def info(self) -> "EngineInfo":
        """What the engine runs. A new object whenever that has changed."""

    @property
    def config(self) -> EngineConfig:
        """The settings it was loaded with."""

    @property
    def text(self) -> "PromptText":
        """Texts to tokens and back."""

    @property
    def context(self) -> int:
        """Tokens that book, conversation and answer may have together."""

    def close(self) -> None:
        """Forget the conversation, close connections."""

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether the model has all of these tokens."""

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Number of leading tokens of a prompt that would surely not be read again."""

    def read(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> "Iterator[PrefillProgress]":
        """Read a prompt ahead of a question."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        written: Sequence[int] = (),
        boundary: int = 0,
    ) -> "Generator[Event]":
        """Read the new part of a prompt, then answer: PrefillProgress*, RoundDone*, Finished."""


def local(engine: TextEngine) -> "Engine":
    """An engine with all that a model of this machine can do.

    Raises:
        NotPossibleHere: its model runs on a server.
    """
    if engine.info.elsewhere:
        raise NotPossibleHere("That needs a model of this machine.", hint="Start without --remote.")
    return cast("Engine", engine)
