"""What an engine's levels guessed from, written down beside its tokens: statistics look where guessing could show.

Only what is known before a token is drawn is kept of it, so nothing that is counted by it depends on the token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from torch import Tensor

from core.decoding import methods
from core.decoding.sampling import TokenSampler
from core.decoding.verify import Guess, Verdict
from core.generation.events import TokenRecord


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """A token, and the probabilities [V] with which something was guessed at its place, as its level has said."""

    record: TokenRecord
    q: Tensor | None  # of the guess that the last verifier was given; None: there was none
    below: Tensor | None  # of the guess that the level below was given there


@dataclass(slots=True)
class Listener:
    """The last round's guesses."""

    q: list[Tensor] = field(default_factory=list)
    below: list[Tensor | None] = field(default_factory=list)
    _level1: list[Tensor | None] = field(default_factory=list)

    def hear(self, level: str, guess: Guess, verdict: Verdict) -> None:
        """A level has judged a guess. The last level's judgement ends a round."""
        rows: list[Tensor | None] = [*guess.probs, None]
        if level == "full":
            self.q, self.below, self._level1 = list(guess.probs), self._level1, []
        else:
            self._level1 += rows[: verdict.num_accepted + 1]

    def committed(self, records: tuple[TokenRecord, ...]) -> list[Committed]:
        """The tokens of the round that has just ended."""
        none: list[Tensor | None] = [None] * len(records)
        pairs = zip(records, [*self.q, *none], [*self.below[: len(self.q)], *none], strict=False)
        heard = [Committed(*three) for three in pairs]
        self.q, self.below = [], []
        return heard


@contextmanager
def listening() -> Iterator[Listener]:
    """Inside, decoders that are made tell the listener what they judge. One answer, or lane, may decode at a time."""
    listener, right = Listener(), methods.Speculative

    class Heard(right):  # type: ignore[misc, valid-type]
        def __init__(self, *parts: Any, **settings: Any) -> None:
            super().__init__(*parts, **settings)
            rule = self._rule

            def told(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
                verdict = rule(guess, p, sampler, level)
                listener.hear(level, guess, verdict)
                return verdict

            self._rule = told

    with patch.object(methods, "Speculative", Heard):
        yield listener
