"""A race's progress on stderr: a line a lane, rewritten on a terminal; otherwise a line at each lane's end."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from app.cli.reading import ProgressLine
from app.cli.terminal import drawing
from core.decoding.stats import DecodeStats
from core.generation.events import Finished, LaneEvent, PrefillProgress, RoundDone

NARROWEST_BAR, WIDEST_BAR = 8, 40
INTERVAL_SECONDS = 0.1  # between two drawings


class Scoreboard:
    """The lines of a race's lanes.

    Args:
        most_tokens: the length of an answer at which a lane's bar is full.
    """

    def __init__(self, stream: TextIO, names: Sequence[str], most_tokens: int) -> None:
        self._stream, self._names, self._most = drawing(stream), names, most_tokens
        self._terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._reading = ProgressLine(stream)
        self._stats = [DecodeStats() for _ in names]
        self._ended = [False] * len(names)
        self._shown_at = -float("inf")
        self._open = False

    def watch(self, events: Iterable[LaneEvent]) -> Iterator[LaneEvent]:
        """Yield the events and show them. The lines stay when the events end."""
        try:
            for event in events:
                self._take(event)
                yield event
        finally:
            self._reading.close()
            if self._open:
                self._draw()
                self._open = False

    def _take(self, event: LaneEvent) -> None:
        if isinstance(event.event, PrefillProgress):
            self._reading.show(event.event)
            return
        lane = event.lane
        assert lane is not None, "an answer of no lane"
        if isinstance(event.event, RoundDone | Finished):
            self._stats[lane] = event.event.stats
        self._ended[lane] = isinstance(event.event, Finished)
        if self._terminal:
            if time.monotonic() - self._shown_at >= INTERVAL_SECONDS or all(self._ended):
                self._reading.close()
                self._draw()
        elif self._ended[lane]:
            self._stream.write(f"{self.line(lane, 0)}\n")

    def _draw(self) -> None:
        up = f"\x1b[{len(self._names)}A" if self._open else ""
        width = shutil.get_terminal_size().columns - 1
        lines = "".join(f"\x1b[K{self.line(lane, width)}\n" for lane in range(len(self._names)))
        self._stream.write(up + lines)
        self._stream.flush()
        self._open, self._shown_at = True, time.monotonic()

    def line(self, lane: int, width: int) -> str:
        """One lane in `width` columns; without a bar if there is no room."""
        stats = self._stats[lane]
        name = self._names[lane].ljust(max(map(len, self._names)))
        speed = f"{stats.tokens_per_second or 0:8.1f} tokens/s"
        figures = f"{stats.new_tokens:6,} tokens{speed} {stats.decode_seconds:7.2f} s"
        room = min(WIDEST_BAR, width - len(name) - len(figures) - 4)
        if room < NARROWEST_BAR:
            whole = f"{name} {figures}"
            return whole[:width] if width else whole
        share = 1.0 if self._ended[lane] else min(1.0, stats.new_tokens / self._most)
        return f"{name} [{'=' * round(share * room):<{room}}] {figures}"
