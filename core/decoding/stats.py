"""Where tokens come from and counts of decoding, as frozen values: those of a level grow round by round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, Literal

OriginKind = Literal["proposed", "corrected", "bonus", "drawn"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a committed token comes from.

    `level` names the model that wrote it ("draft", "retrieval", "full", ...). `kind` says how: "proposed" by a proposer
    and accepted by every verifier above, "corrected" from the residual after a rejection, "bonus" after a full accept,
    "drawn" by a model that decodes alone.
    """

    level: str
    kind: OriginKind


@dataclass(frozen=True, slots=True)
class LevelStats:
    """One level of speculation so far. `tested` leaves out guesses behind the first rejection."""

    rounds: int = 0
    guessed: int = 0
    tested: int = 0
    accepted: int = 0
    tested_at: tuple[int, ...] = ()  # by position in the guess
    accepted_at: tuple[int, ...] = ()
    committed_per_round: Mapping[int, int] = field(default_factory=dict)  # tokens of a round -> number of rounds

    @property
    def acceptance(self) -> float | None:
        """Accepted / tested, None before the first test."""
        return self.accepted / self.tested if self.tested else None

    @property
    def gamma_mean(self) -> float | None:
        """Mean number of guesses a round."""
        return self.guessed / self.rounds if self.rounds else None

    def after(self, num_guesses: int, num_accepted: int) -> "LevelStats":
        """With one more verdict: the accepted prefix and, if anything was rejected, the one test that failed."""
        tested = min(num_accepted + 1, num_guesses)
        tests, passed = (tuple(int(at < upto) for at in range(num_guesses)) for upto in (tested, num_accepted))
        one = LevelStats(1, num_guesses, tested, num_accepted, tests, passed, {num_accepted + 1: 1})
        whole: LevelStats = _sum(self, one)
        return replace(whole, committed_per_round=dict(sorted(whole.committed_per_round.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStats:
    """One answer so far. Times are seconds of the engine's work, without waiting for readers of the events."""

    new_tokens: int = 0
    decode_seconds: float = 0.0
    full_passes: int = 0
    level1: LevelStats | None = None
    level2: LevelStats | None = None
    seconds_by_part: Mapping[str, float] = field(default_factory=dict)  # draft, retrieval, full, other
    kv_bytes_read: int = 0
    kv_bytes_read_plain: int = 0  # bytes plain decoding would have read for the same tokens
    reselections: int = 0
    link_bytes: int = 0  # of kv_bytes_read, from host memory to the device
    link_seconds: float = 0.0  # time of the passes that used the link, computing included
    link_calibration: float | None = None  # bytes per second of a plain copy; None where nothing crosses a link
    thought_tokens: int = 0  # of `new_tokens`, its marks included
    thought_seconds: float = 0.0  # of `decode_seconds`
    recording_seconds: float = 0.0  # of recording passes between rounds, not in `decode_seconds`

    @property
    def answer_tokens(self) -> int:
        """Tokens behind the thought."""
        return self.new_tokens - self.thought_tokens

    @property
    def link_bytes_per_second(self) -> float | None:
        """Link bandwidth that verification reaches; None where nothing crosses the link."""
        return self.link_bytes / self.link_seconds if self.link_bytes and self.link_seconds > 0 else None

    @property
    def link_share(self) -> float | None:
        """The same as a fraction of a plain copy's rate."""
        rate = self.link_bytes_per_second
        return rate / self.link_calibration if rate is not None and self.link_calibration else None

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed, prefill apart."""
        return self.new_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds of decoding per committed token."""
        return 1e3 * self.decode_seconds / self.new_tokens if self.new_tokens else None

    @property
    def tokens_per_full_pass(self) -> float | None:
        """The number that explains the speedup; plain decoding has 1."""
        return self.new_tokens / self.full_passes if self.full_passes else None


def joined(one: DecodeStats, other: DecodeStats) -> DecodeStats:
    """The statistics of an answer that was written in two stretches."""
    both: DecodeStats = _sum(one, other)
    return replace(both, link_calibration=other.link_calibration or one.link_calibration)


def _sum(a: Any, b: Any) -> Any:
    """Two counts, or what holds counts, added number by number; None counts nothing."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Mapping):
        return {key: _sum(a.get(key), b.get(key)) for key in {**a, **b}}
    if isinstance(a, tuple):
        return tuple(map(sum, zip_longest(a, b, fillvalue=0)))
    if isinstance(a, DecodeStats | LevelStats):
        return replace(a, **{part.name: _sum(getattr(a, part.name), getattr(b, part.name)) for part in fields(a)})
    return a + b
