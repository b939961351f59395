"""One answer of a server as its parts arrive: text, times, and the server's own counts."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.remote.card import is_count
from app.remote.names import REMOTE
from app.remote.text import RemoteText
from core.decoding.origin import Origin
from core.decoding.stats import DecodeStats, LevelStats
from core.generation.events import Finished, RoundDone, StopReason, TokenRecord

ENDINGS: dict[str, StopReason] = {"stop": "end_of_text", "length": "max_new_tokens"}
MOST_SECONDS = 1e6


class AnswerStream:
    """One answer as its parts arrive."""

    def __init__(self, text: RemoteText, stops: Sequence[str]) -> None:
        self._text, self._stops = text, stops
        self.started = time.perf_counter()
        self.first: float | None = None
        self._last = self.started
        self._said: list[str] = []
        self._thought: list[str] = []
        self.reason: StopReason | None = None
        self._usage: Mapping[str, Any] = {}
        self.told: Mapping[str, Any] = {}  # figures of a server of this program

    def apply(self, event: Mapping[str, Any], seconds: float) -> tuple[str, str]:
        """Apply one event; returns what it adds to thought and answer."""
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        if isinstance(event.get("triforce"), dict):
            self.told = event["triforce"]
        choices = event["choices"]
        if not choices:
            return "", ""
        if reason := choices[0].get("finish_reason"):
            self.reason = ENDINGS.get(str(reason), "end_of_text")
        delta = choices[0].get("delta") or {}
        text = delta.get("content") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""  # two names of one field
        if not isinstance(text, str) or not isinstance(thought, str):
            raise TypeError("content that is no text")
        if text or thought:
            self.first, self._last = self.first or seconds, seconds
        self._said += [text] if text else []
        self._thought += [thought] if thought else []
        return thought, text

    def round(self, thought: str, text: str) -> RoundDone:
        """The event for one part. The server's thought has no tokens here: no prompt will have them."""
        number = len(self._said) - 1
        tokens = tuple(
            TokenRecord(token, text, Origin(REMOTE, "drawn"), number, 0.0, None)
            for token in self._text.split(text, bool(text))
        )
        return RoundDone(text=text, tokens=tokens, stats=self.stats(self._parts), thought=thought)

    @property
    def _parts(self) -> int:
        return len(self._said) + len(self._thought)

    def finished(
        self, method: str, written: Sequence[int], *, num_prompt: int, num_reused: int, cancelled: bool
    ) -> Finished:
        """The final event."""
        said = "".join(self._said)
        new = self._usage.get("completion_tokens")
        num_new = int(new) if is_count(new) else self._parts
        num_thought = self._thought_tokens(num_new)
        prompt_tokens = self._usage.get("prompt_tokens")
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Finished(
            text=self._text.decode(written) + said,
            token_ids=(*written, *self._text.split(said, num_new - num_thought)),
            stop_reason="cancelled" if cancelled else self.reason or "end_of_text",
            stats=self.stats(num_new),
            prompt_tokens=int(prompt_tokens) if is_count(prompt_tokens) else num_prompt,
            reused_tokens=int(cached) if is_count(cached) else num_reused,
            prefill_seconds=(self.first or self._last) - self.started,
            method=method,
            exact=self.told.get("exact") is True,
            thought="".join(self._thought).strip(),
            in_thought=bool(self._thought and not said),
        )

    def _thought_tokens(self, num_new: int) -> int:
        """As the server counts them, else by parts of the stream."""
        details = self._usage.get("completion_tokens_details")
        told = details.get("reasoning_tokens") if isinstance(details, dict) else None
        return min(num_new, int(told) if is_count(told) and told else len(self._thought))

    def stats(self, num_new: int) -> DecodeStats:
        """Speed from the times of the stream; acceptance if the server is this program and reports it."""
        full = self.told.get("full_passes")
        counts = self.told.get("counts")
        levels = counts if isinstance(counts, dict) else {}
        return DecodeStats(
            new_tokens=num_new,
            decode_seconds=self._decode_seconds(),
            full_passes=int(full) if is_count(full) else 0,
            level1=_level(levels.get("level1")),
            level2=_level(levels.get("level2")),
            thought_tokens=self._thought_tokens(num_new),
        )

    def _decode_seconds(self) -> float:
        """The first part comes when reading ends, so the time since then is scaled up from the other parts to all.

        If all came in one part: the time that this program's server reports, else the whole time, so that no speed is
        overstated.
        """
        others = self._parts - 1
        if others > 0:
            return (self._last - (self.first or self._last)) * (others + 1) / others
        told = self.told.get("decode_seconds")
        if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < MOST_SECONDS:
            return float(told)
        return self._last - self.started


def _level(value: object) -> LevelStats | None:
    if not isinstance(value, dict):
        return None
    counts = [count for name in ("rounds", "guessed", "tested", "accepted") if is_count(count := value.get(name))]
    if len(counts) < 4:
        return None
    rounds, guessed, tested, accepted = counts
    return LevelStats(rounds=rounds, guessed=guessed, tested=tested, accepted=accepted)
