"""The engine as `core.generation` sees it."""

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from core.config import EngineConfig, GenerationConfig
from core.decoding.methods import Decoder
from core.generation.decode_loop import Answer
from core.generation.events import PrefillProgress
from core.generation.text import ChatText
from core.planning.plan import Plan


class Trunk(Protocol):
    """An engine that reads prompts and makes answers."""

    config: EngineConfig
    text: ChatText

    @property
    def plan(self) -> Plan:
        """The present plan."""

    def use_budget(self, budget: int | None) -> int:
        """Set the budget of the retrieval cache."""

    def read(
        self, prompt_ids: Sequence[int], cancel: threading.Event | None = None, *, boundary: int = 0, room: int = 0
    ) -> Iterator[PrefillProgress]:
        """Bring the full cache to a prompt."""

    def rewind(self, length: int) -> int:
        """Forget the conversation from a length on."""

    def settle(self, tokens: list[int]) -> None:
        """Set the committed tokens."""

    def answer(self, decoder: Decoder, prompt_ids: Sequence[int], config: GenerationConfig) -> Answer:
        """An answer that a decoder will write."""
