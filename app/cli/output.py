"""What every command prints: one JSON document on stdout, and on stderr the progress of something long."""

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, TextIO

from app.cli.terminal import drawing, plain
from app.documents.document import Extracting
from app.formats import duration, loading
from core.generation.events import PrefillProgress

if TYPE_CHECKING:
    from core.models.loading import LoadProgress

INTERVAL_SECONDS = 0.1  # between two drawings
LONG_TEXT = 2048  # tokens whose reading is shown


def print_json(document: object) -> None:
    """Print a JSON document on one line, the last of stdout."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


class ProgressLine:
    """The progress of something long, as one line that is rewritten on a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._stream, self._terminal = drawing(stream), stream.isatty()
        self._width, self._next = 0, 0.0

    def put(self, text: str, *, is_last: bool = False) -> None:
        """Rewrite the line, now and then; what is no terminal gets the last ones alone."""
        now = time.perf_counter()
        if self._terminal and (is_last or now >= self._next):
            text, self._next = plain(text)[: shutil.get_terminal_size().columns - 1], now + INTERVAL_SECONDS
            self._stream.write(f"\r{text:<{self._width}}")
            self._stream.flush()
            self._width = max(self._width, len(text))
        elif is_last:
            self._stream.write(f"{text}\n")

    def show(self, step: PrefillProgress) -> None:
        """The progress of reading; a short text gets no line."""
        if step.total_tokens - step.reused_tokens >= LONG_TEXT:
            left = f", {step.remaining_seconds:.0f} s left" if step.remaining_seconds is not None else ""
            is_last = step.done_tokens in (step.reused_tokens, step.total_tokens)
            self.put(f"Reading: {step.done_tokens:,} of {step.total_tokens:,} tokens{left}", is_last=is_last)

    def show_loading(self, progress: "LoadProgress") -> None:
        """How far the loading of a model is, once that can be told."""
        if progress.seconds_left is not None:
            self.put(f"Loading: {loading(progress)}")

    def show_recognition(self, step: Extracting) -> None:
        """How far text on pictures was recognised."""
        if step.recognising and step.num_pages is not None:
            left = f", {duration(step.seconds_left)} left" if step.seconds_left is not None else ""
            self.put(f"Recognising: page {min(step.num_done + 1, step.num_pages):,} of {step.num_pages:,}{left}")

    def close(self) -> None:
        """Clear the line, if there is one."""
        if self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._width = 0
