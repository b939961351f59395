"""What the app needs of an engine: `TextEngine` wherever the model runs, `LocalEngine` for one of this machine."""

import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from core.config import EngineConfig, GenerationConfig
from core.errors import NotPossibleHere

if TYPE_CHECKING:  # importing these takes seconds
    from torch import Tensor

    from core.engine_info import EngineInfo, Equality
    from core.generation.decode_loop import Question
    from core.generation.events import Event, LaneEvent, PrefillProgress
    from core.generation.text import LocalText, PromptText
    from core.planning.choices import Choice


class TextEngine(Protocol):
    """One loaded model and one conversation at a time. Not thread-safe: one thread owns it.

    `core.engine.Engine` describes what the methods do and raise. `info.elsewhere`: the model runs on a server, and none
    of `LocalEngine` is there.
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


class LocalEngine(TextEngine, Protocol):
    """An engine whose model runs on this machine."""

    @property
    def text(self) -> "LocalText":
        """Texts to tokens and back, with the model's chat template."""

    def use_budget(self, budget: int | None) -> int:
        """Set the retrieval budget from the next answer on, None: as loaded. Returns the one in use; 0: not known."""

    def retrieves(self, method: str) -> bool:
        """Whether `chunk_weights` describes a method's answers."""

    def chunk_weights(self) -> "Tensor":
        """How much each chunk counted when the retrieval cache was filled, [C] float32; empty: not known."""

    @property
    def holds_all_chunks(self) -> bool:
        """Whether the retrieval cache has room for every chunk."""

    def weights_after(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> "Tensor | None":
        """The `chunk_weights` that the answer to a prompt would have; None: cancelled, or not known."""

    def race(
        self,
        prompt_ids: Sequence[int],
        configs: Sequence[GenerationConfig],
        cancel: threading.Event | None = None,
        *,
        seconds: float | None = None,
        boundary: int = 0,
    ) -> "Generator[LaneEvent]":
        """Several methods answer one prompt in fair turns."""

    def together(self, questions: "Sequence[Question]") -> "Choice[int]":
        """How many of the questions `answer_together` answers at a time, and why not more."""

    def answer_together(self, questions: "Sequence[Question]") -> "Generator[LaneEvent]":
        """Answer questions about one text; lanes are their numbers, each with the events of `generate`.

        A question that is cancelled before it has begun has no events, unless it is the first.
        """

    def compare(self, prompt_ids: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> "Equality":
        """Where two greedy texts differ, and whether rounding explains it."""


def local(engine: TextEngine) -> LocalEngine:
    """An engine with all that a model of this machine can do.

    Raises:
        NotPossibleHere: its model runs on a server.
    """
    if engine.info.elsewhere:
        raise NotPossibleHere("That needs a model of this machine.", hint="Start without --remote.")
    return cast(LocalEngine, engine)
