"""The record of an answer while it is written: its tokens with their provenance, and the time of each round.

The engine's thread writes, handlers read: lists only grow, values are replaced whole. Knows nothing of HTML.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from app.conversations.exchange import Exchange
from core.config import GenerationConfig
from core.decoding.registry import PLAIN, is_exact
from core.decoding.stats import DecodeStats, joined
from core.generation.events import Event, Finished, LaneEvent, PrefillProgress, RoundDone, TokenRecord

if TYPE_CHECKING:  # importing it loads torch
    from core.engine_info import EngineInfo

REPLACEMENT = "\ufffd"  # stands for an incomplete character


class Point(NamedTuple):
    """The state after a round."""

    seconds: float  # of decoding, the answer's own clock
    num_chars: int
    num_tokens: int


@dataclass(slots=True, kw_only=True)
class Asked:
    """What was read before an answer, or before all lanes of a race."""

    num_book: int = 0  # tokens of the book
    num_read_before: int = 0  # tokens of the opening that were already read at least once
    reading: PrefillProgress | None = None

    @property
    def num_reread(self) -> int | None:
        """Tokens of the book that had to be read again; None: not known yet."""
        if self.reading is None:
            return None
        return max(0, min(self.num_read_before, self.num_book) - self.reading.reused_tokens)


@dataclass(slots=True)
class Trace(Asked):
    """One answer by one method."""

    question: str
    method: str
    before: Exchange | None = None  # the answer that is continued: its words come first, its tokens are not among these
    records: list[TokenRecord] = field(default_factory=list)
    points: list[Point] = field(default_factory=lambda: [Point(0.0, 0, 0)])
    thought: str = ""
    answer: str = ""
    stats: DecodeStats = field(default_factory=DecodeStats)
    finished: Finished | None = None

    def __post_init__(self) -> None:
        if self.before is not None:
            self.thought, self.answer = self.before.finished.thought, streamed_text(self.before)

    @property
    def text(self) -> str:
        """Thought and answer."""
        return "\n\n".join(filter(None, (self.thought, self.answer)))

    @property
    def all_stats(self) -> DecodeStats:
        """Those of the answer before, too."""
        return joined(self.before.finished.stats, self.stats) if self.before is not None else self.stats

    @property
    def exact(self) -> bool:
        """The text follows the target's distribution."""
        return is_exact(self.method)

    def apply(self, event: Event) -> "Trace":
        """Record one event of the answer."""
        match event:
            case PrefillProgress():
                self.reading = event
            case RoundDone():
                self.records.extend(event.tokens)
                self.thought += event.thought
                self.answer += event.text
                self._settle(event.stats)
            case Finished():
                self.thought, self.answer, self.finished = event.thought, event.text, event
                self._settle(event.stats)
        return self

    def _settle(self, stats: DecodeStats) -> None:
        self.stats = stats
        self.points.append(Point(stats.decode_seconds, len(self.text), stats.new_tokens))

    def seconds_at(self, num_tokens: int) -> float:
        """When this many tokens were written, or all, if there are fewer."""
        at = bisect_left(self.points, num_tokens, key=lambda point: point.num_tokens)
        return self.points[min(at, len(self.points) - 1)].seconds

    def tokens_at(self, seconds: float) -> int:
        """How many tokens were written at a time."""
        return self.points[max(0, bisect_right(self.points, seconds, key=lambda point: point.seconds) - 1)].num_tokens


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the tokens of an exact lane compare with plain decoding's."""

    verdict: Literal["identical", "near_tie", "mismatch"]
    index: int | None  # of the first token that differs
    logit_gap: float | None  # the target's best token minus the lower of the two; None: one text lacks the token
    num_compared: int
    whole: bool  # both texts are complete; else only the tokens that both wrote were compared


@dataclass(frozen=True, slots=True)
class Lead:
    """How far one lane is ahead of another."""

    speedup: float | None  # ratio of the times to the last token that both have written
    tokens: int  # at the newest time that both clocks have reached
    seconds: float  # how much earlier it had written as many tokens as both have


@dataclass(slots=True)
class Race(Asked):
    """One question, answered by several methods after one reading."""

    question: str
    lanes: tuple[Trace, ...]
    configs: tuple[GenerationConfig, ...]
    seconds: float | None  # a budget for every lane's clock
    book: str
    info: "EngineInfo | None" = None  # of the model that runs it
    begun: datetime = field(default_factory=datetime.now)
    judgements: dict[str, Judgement] = field(default_factory=dict)  # by method
    ended: bool = False  # no further events come

    @property
    def greedy(self) -> bool:
        """Texts of exact methods must be equal."""
        return all(config.sampling.greedy for config in self.configs)

    @property
    def plain(self) -> Trace | None:
        """Plain decoding, if it runs."""
        return next((lane for lane in self.lanes if lane.method == PLAIN), None)

    @property
    def contender(self) -> Trace | None:
        """The lane measured against plain decoding: the first other exact lane, else the first other one."""
        others = [lane for lane in self.lanes if lane.method != PLAIN]
        return next((lane for lane in others if lane.exact), others[0] if others else None)

    def apply(self, event: LaneEvent) -> "Race":
        """Record one event."""
        if event.lane is not None:
            self.lanes[event.lane].apply(event.event)
        elif isinstance(event.event, PrefillProgress):
            self.reading = event.event
        return self


def lead(fast: Trace, plain: Trace) -> Lead:
    """How far `fast` is ahead. The figures agree: above 1x, ahead in tokens and ahead in seconds are one finding."""
    both = min(fast.stats.new_tokens, plain.stats.new_tokens)
    reached = min(fast.stats.decode_seconds, plain.stats.decode_seconds)
    ours, theirs = fast.seconds_at(both), plain.seconds_at(both)
    tokens = fast.tokens_at(reached) - plain.tokens_at(reached)
    return Lead(
        speedup=theirs / ours if both and ours and theirs else None,
        tokens=max(tokens, 0) if theirs > ours else min(tokens, 0),  # a round may end between the two moments
        seconds=theirs - ours,
    )


def streamed_text(exchange: Exchange) -> str:
    """The text of a cut answer that stays when it continues, without an incomplete character at its end."""
    return exchange.finished.text.rstrip(REPLACEMENT)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index where two token sequences differ; None where one is a prefix of the other."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
