"""The engine's events: frozen values, in the order PrefillProgress*, RoundDone*, Finished."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from core.decoding.stats import DecodeStats, Origin

StopReason = Literal[
    "end_of_text", "stop_string", "max_new_tokens", "context_full", "repeating", "time_up", "cancelled"
]


class Likely(NamedTuple):
    """A possible token, and its log-probability before any sampling option."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One committed token with its provenance."""

    token_id: int
    text: str  # what this token adds to the answer; "" inside a multi-byte character
    origin: Origin
    round: int  # number of the pass over the full cache that committed it, from 0
    p: float  # probability of the token under the final verifier's distribution
    q: float | None  # probability under the distribution it was proposed with; None if it was not proposed
    logprob: float | None = None  # as of `Likely`; None: not asked for, or no part of the answer's text
    top: tuple[Likely, ...] = ()  # the most likely tokens at this place, the most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProgress:
    """The prompt is being read. Emitted before the first chunk and after each one, in each layer if read by layers."""

    done_tokens: int  # of `total_tokens`, including reused ones; by layers: the work done, in tokens through all layers
    total_tokens: int
    reused_tokens: int  # found in the cache, not read again
    elapsed_seconds: float
    remaining_seconds: float | None  # None before the first chunk
    ahead_tokens: int = 0  # of `done_tokens`: tokens of a block that is lost if reading stops now

    @property
    def kept_tokens(self) -> int:
        """Tokens that stay read if reading stops now."""
        return self.done_tokens - self.ahead_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDone:
    """One round of decoding: one or more committed tokens."""

    text: str  # what can be shown now; may lag behind the tokens inside a character or a possible stop string
    tokens: tuple[TokenRecord, ...]
    stats: DecodeStats
    thought: str = ""  # the same of the thought before the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The answer is complete, or was cancelled: the text so far is kept."""

    text: str  # without the thought
    token_ids: tuple[int, ...]  # of thought and answer, including the end-of-text token, if one was written
    stop_reason: StopReason
    stats: DecodeStats
    prompt_tokens: int
    reused_tokens: int
    prefill_seconds: float
    method: str
    exact: bool  # whether the text follows the target's distribution
    thought: str = ""  # what the model wrote before its answer
    in_thought: bool = False  # it ended before the answer began


Event = PrefillProgress | RoundDone | Finished


@dataclass(frozen=True, slots=True)
class LaneEvent:
    """An event in one lane of a race. Reading comes first and belongs to all lanes: lane None."""

    lane: int | None
    event: Event
