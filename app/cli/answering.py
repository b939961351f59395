"""Answers on the terminal: as they are written, alone or several in their turns, and their figures as lines."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from app.cli.reading import ProgressLine
from core.decoding.registry import LOSSY_METHODS
from core.decoding.stats import LevelStats
from core.engine_api import local
from core.errors import NotPossibleHere
from core.generation.events import Event, Finished, PrefillProgress

if TYPE_CHECKING:
    from core.config import GenerationConfig
    from core.engine_api import TextEngine
    from core.generation.decode_loop import Question
    from core.generation.session import Conversation


INTERRUPTED = 130  # the exit code


class Shown:
    """One answer, streamed to stdout, and its thought to stderr."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._progress = shown, ProgressLine(sys.stderr)
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


def no_answer(finished: Finished) -> str:
    """A line for people where there is nothing to read, or not all of it."""
    if finished.stop_reason == "cancelled":
        return "Stopped.\n"
    if finished.stop_reason == "repeating":
        return "Ended: the model went on repeating itself. A --temperature above 0 may help.\n"
    if finished.in_thought:
        return "The thought was not finished: raise --max-new-tokens, or use --thinking off where the model has it.\n"
    return "" if finished.text.strip() else "The answer is white space alone.\n"


def answer(
    engine: "TextEngine",
    conversation: "Conversation",
    question: str,
    config: "GenerationConfig",
    *,
    shown: bool,
    stop: threading.Event | None = None,
) -> Finished:
    """The answer to a further question; if it is to be shown, streamed to stdout, and its thought to stderr.

    Args:
        stop: ends it when it is set.
    """
    prompt = conversation.ask(question).prompt_ids(engine.text, config.thinking)
    view = Shown(shown=shown)
    for event in engine.generate(prompt, config, stop):
        view.show(event)
    assert isinstance(event, Finished)
    return event


def answer_in_order(
    engine: "TextEngine",
    questions: "Sequence[Question]",
    headings: Sequence[str],
    added: Callable[[int, Finished], Finished],
    *,
    shown: bool,
) -> list[Finished]:
    """Answer questions, perhaps several at a time; show them one after the other, as if they were written so.

    Args:
        headings: what is printed before each answer.
        added: may change the figures of a numbered answer.
    Returns:
        The answers to the first questions: to all that had begun when the engine was stopped.
    """
    answers: list[Finished] = []
    view: Shown | None = None  # of the first answer that is not in `answers`
    for number, event in _events(engine, questions):
        if view is None and shown and headings[number]:
            print(f"\n> {headings[number]}\n", flush=True)
        view = view or Shown(shown=shown)
        view.show(event)
        if isinstance(event, Finished):
            answers.append(added(number, event))
            view = None
            if shown:
                print(f"\n{no_answer(event)}{summary_line(answers[-1])}", file=sys.stderr, flush=True)
    return answers


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


def summary_line(finished: Finished) -> str:
    """One answer's figures for people."""
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


def race_lines(methods: Mapping[str, Finished], speedup: float | None, verdict: str) -> list[str]:
    """A race for people: one line a method, then the result."""
    lines = [
        f"{name:<16}{f.stats.ms_per_token or 0:8.1f} ms/token {f.stats.tokens_per_second or 0:8.1f} tokens/s"
        + (f"   acceptance {percent(f.stats.level1)} / {percent(f.stats.level2)}" if f.stats.level2 else "")
        + ("" if f.exact else "   not exact")
        for name, f in methods.items()
    ]
    if speedup is not None:
        lines.append(f"Speedup {speedup:.2f}x, texts: {verdict.replace('_', ' ')}")
    return lines


def percent(level: LevelStats | None) -> str:
    """Accepted / tested as a percentage, for people."""
    return f"{100 * level.acceptance:.0f}%" if level and level.acceptance is not None else "-"
