"""One question and its answer, as recorded."""

import re
from dataclasses import dataclass

from core.config import SamplingParams
from core.generation.events import Finished

ID = re.compile("[0-9a-f]{32}")  # 128 random bits, which nobody can guess


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer, complete or stopped; `finished` sums up all stretches it was written in."""

    question: str
    finished: Finished
    first_token_seconds: float | None = None  # from its turn to its first token
    num_reread: int = 0  # tokens of the book that had to be read again
    methods: tuple[str, ...] = ()  # in the order they were used, each once
    sampling: SamplingParams | None = None  # of the newest stretch
    seed: int | None = None  # of the newest stretch
    model: str = ""
    weights: str = ""  # the number format the model ran in
    thinking: str | None = None  # what its prompt asked for, see `GenerationConfig`
    digest: str = ""  # of the text it is about: the library may change during a conversation
