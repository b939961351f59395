"""Answers on the terminal: one as it is written, or several that are written together, each in its turn."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from app.cli.reading import ProgressLine
from app.cli.report import summary_line
from core.engine_api import local
from core.generation.events import Event, Finished, PrefillProgress

if TYPE_CHECKING:
    from core.engine_api import TextEngine
    from core.generation.decode_loop import Question


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
