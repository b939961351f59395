"""Answers on the terminal: as they are written, one after the other, and their figures as lines."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from app.cli.output import ProgressLine
from core.decoding.registry import LOSSY_METHODS
from core.decoding.stats import LevelStats
from core.engine_api import local
from core.errors import NotPossibleHere
from core.generation.events import Event, Finished, PrefillProgress

if TYPE_CHECKING:
    from core.engine_api import TextEngine
    from core.generation.decode_loop import Question


INTERRUPTED = 130  # the exit code


class Shown:
    """One answer, streamed to stdout, and its thought to stderr."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._progress = shown, ProgressLine()
        self._streamed, self._thinking = 0, False

    def show(self, event: Event) -> None:
        """Show what the event adds."""
        if isinstance(event, PrefillProgress):
            self._progress.show(event)
            return
        self._progress.close()
        if not self._shown:
            return
        if isinstance(event, Finished):
            print(event.text[self._streamed :], end="" if event.text.endswith("\n") else "\n", flush=True)
            return
        opening = "" if self._thinking or not event.thought else "(Thought) "
        print(opening, event.thought, sep="", end="", file=sys.stderr)
        print("\n\n" if self._thinking and event.text else "", end="", file=sys.stderr, flush=True)
        self._thinking = (self._thinking or bool(event.thought)) and not event.text
        print(event.text, end="", flush=True)
        self._streamed += len(event.text)


def answers(
    engine: "TextEngine", questions: "Sequence[Question]", headings: Sequence[str], *, shown: bool
) -> Iterator[Finished]:
    """Answer questions, perhaps several at a time; show them one after the other, as if they were written so.

    Only those answers come that had begun when the engine was stopped.

    Args:
        headings: what is printed before each answer.
    """
    view: Shown | None = None  # of the answer that is being written
    for number, event in _events(engine, questions):
        if view is None and shown and headings[number]:
            print(f"\n> {headings[number]}\n", flush=True)
        view = view or Shown(shown=shown)
        view.show(event)
        if isinstance(event, Finished):
            view = None
            yield event


def _events(engine: "TextEngine", questions: "Sequence[Question]") -> "Iterator[tuple[int, Event]]":
    """The events of all answers, one answer after the other, each with its number."""
    if len(questions) == 1:
        prompt_ids, config, cancel, _ = questions[0]
        return ((0, event) for event in engine.generate(prompt_ids, config, cancel))
    from core.generation.together import in_order, one_by_one

    remote = engine.info.elsewhere
    events = one_by_one(engine.generate, questions) if remote else local(engine).answer_together(questions)
    return in_order(events, len(questions))


# -------------------- Ctrl+C


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that the first Ctrl+C sets; the second raises KeyboardInterrupt.

    Where Ctrl+C is ignored (a job of `nohup`), or in another thread than the main one, nothing changes.
    """
    stop = threading.Event()

    def take(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is None or before is signal.SIG_IGN:
        yield stop
        return
    signal.signal(signal.SIGINT, take)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


# -------------------- figures


class NotWritten(NotPossibleHere):
    """A file beside the results cannot be written; stdout has the results, and with --json no second document."""

    has_results = True


def closing_lines(finished: Finished) -> str:
    """An answer's figures for people, behind a line where there is nothing to read, or not all of it."""
    if not finished.stats.new_tokens:  # of a text that was perhaps not read to its end, either
        return "Stopped."
    return f"{_no_answer(finished)}{_summary_line(finished)}"


def _no_answer(finished: Finished) -> str:
    if finished.stop_reason == "cancelled":
        return "Stopped.\n"
    if finished.stop_reason == "repeating":
        return "Ended: the model went on repeating itself. A --temperature above 0 may help.\n"
    if finished.in_thought:
        return "The thought was not finished: raise --max-new-tokens, or use --thinking off where the model has it.\n"
    return "" if finished.text.strip() else "The answer is white space alone.\n"


def _summary_line(finished: Finished) -> str:
    stats = finished.stats
    thought = f", {stats.thought_tokens} of them thought" if stats.thought_tokens else ""
    parts = [f"{stats.new_tokens} tokens{thought}", f"{stats.tokens_per_second or 0:.1f} tokens/s"]
    if stats.level2 is not None:
        level1 = f"{percent(stats.level1)} / " if stats.level1 else ""
        parts.append(f"acceptance {level1}{percent(stats.level2)}")
        parts.append(f"{stats.tokens_per_full_pass or 0:.1f} tokens per full pass")
    if stats.link_bytes_per_second is not None:
        share = f" ({100 * stats.link_share:.0f}% of a plain copy)" if stats.link_share is not None else ""
        parts.append(f"link {stats.link_bytes_per_second / 1e9:.2f} GB/s{share}")
    parts.append(f"read {finished.prompt_tokens - finished.reused_tokens:,} tokens in {finished.prefill_seconds:.1f} s")
    parts.append(f"{finished.method}, not exact" if finished.method in LOSSY_METHODS else finished.method)
    return " · ".join(parts)


def percent(level: LevelStats | None) -> str:
    """Accepted / tested as a percentage, for people."""
    return f"{100 * level.acceptance:.0f}%" if level and level.acceptance is not None else "-"
