"""Answers that are decoded together: rounds yield the passes they need, and passes of one model are joined.

The cheapest model's passes come first, so that one pass over the full cache verifies the guesses of all answers. No
answer's draws depend on the others.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from core.config import GenerationConfig
from core.decoding.speculative import Pass, Passes, SampledModel
from core.generation.decode_loop import Answer
from core.generation.events import Event, Finished, LaneEvent, PrefillProgress, RoundDone
from core.models.joined import Wanted, logits_together


class Question(NamedTuple):
    """A prompt, how it is answered, and what ends its answer early."""

    prompt_ids: Sequence[int]
    config: GenerationConfig
    cancel: threading.Event | None = None
    boundary: int = 0  # tokens of the book, see `core.engine.Engine.read`

    @property
    def cancelled(self) -> bool:
        """Whether the question was cancelled."""
        return self.cancel is not None and self.cancel.is_set()


class _Seat:
    """An answer in the middle of a round, or between two."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._passes: Passes[RoundDone] | None = None
        self._sampled: SampledModel
        self._since = self._own_before = 0.0

    def start(self) -> None:
        """Begin the next round, unless one has begun."""
        if self._passes is None:
            self._passes = self.answer.passes()
            self._ask(next(self._passes))

    def _ask(self, wanted: Pass) -> None:
        assert isinstance(wanted.model, SampledModel), f"{wanted.model.name} is not a model under sampling options"
        self._sampled, model = wanted.model, wanted.model.model
        self.wanted = Wanted(model, wanted.context, wanted.keep)
        self.above = len(self.answer.decoder.models) - 1 - self.answer.decoder.models.index(model)
        self._since, self._own_before = time.perf_counter(), model.meter.seconds

    def give(self, logits: Tensor) -> RoundDone | None:
        """Continue with the logits of the pass, to the next pass (None) or the end of the round."""
        assert self._passes is not None, "no round has begun"
        computing = self._sampled.model.meter.seconds - self._own_before
        self.answer.decoder.waited_seconds += time.perf_counter() - self._since - computing
        try:
            self._ask(self._passes.send(self._sampled.probs_of(logits, self.wanted.context, self.wanted.keep)))
        except StopIteration as done:
            self._passes = None
            result: RoundDone = done.value
            return result
        return None

    def close(self) -> None:
        if self._passes is not None:
            self._passes.close()


class Together:
    """The answers that are being decoded, by number, each with its caches."""

    def __init__(self) -> None:
        self._seats: dict[int, _Seat] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def join(self, number: int, answer: Answer) -> None:
        """Add an answer, from the next step on."""
        self._seats[number] = _Seat(answer)

    def leave(self, number: int) -> None:
        """End an answer in the middle of its round; committed tokens stay."""
        self._seats.pop(number).close()

    def close(self) -> None:
        """End all answers."""
        for number in list(self._seats):
            self.leave(number)

    def step(self) -> list[tuple[int, RoundDone]]:
        """One pass of one model for all answers that need it now; returns the rounds that it has completed.

        Answers with a `stop_reason` are removed.
        """
        for seat in self._seats.values():
            seat.start()
        first = max(self._seats.values(), key=lambda seat: seat.above)
        level = [
            (number, seat)
            for number, seat in self._seats.items()
            if seat.above == first.above and seat.wanted.model.module is first.wanted.model.module
        ]
        ended = []
        for (number, seat), logits in zip(level, logits_together([seat.wanted for _, seat in level]), strict=True):
            done = seat.give(logits)
            if done is not None:
                ended.append((number, done))
                if seat.answer.stop_reason is not None:
                    self.leave(number)
        return ended


class Reader(Protocol):
    """Reads prompts into separate caches; `core.generation.branches` is one."""

    def opened(self, question: Question) -> Generator[PrefillProgress, None, Answer]:
        """Read a prompt and return its answer, ready for the first round; cancelled if reading was cancelled."""


def answered_together(reader: Reader, questions: Sequence[Question], most: int) -> Generator[LaneEvent]:
    """Answer all questions, at most so many at a time; the first ones are read before any is answered.

    Events come as `core.engine_api.TextEngine.answer_together` says.
    """
    together, waiting = Together(), deque(range(len(questions)))
    answers: dict[int, Answer] = {}
    ends: dict[int, Callable[[], LaneEvent]] = {}
    try:
        while waiting or len(together):
            while waiting and len(together) < most:
                number = waiting.popleft()
                if number and questions[number].cancelled:
                    continue
                answers[number], ends[number] = yield from _opened(reader, number, questions[number])
                if answers[number].stop_reason is None:
                    together.join(number, answers[number])
                else:
                    yield ends.pop(number)()
            for number in [number for number in ends if questions[number].cancelled]:
                answers[number].stop_reason = "cancelled"
                together.leave(number)
                yield ends.pop(number)()
            for number, done in together.step() if len(together) else ():
                yield LaneEvent(number, done)
                if answers[number].stop_reason is not None:
                    yield ends.pop(number)()
                    del answers[number]  # frees its caches
    finally:
        together.close()


def _opened(
    reader: Reader, number: int, question: Question
) -> Generator[LaneEvent, None, tuple[Answer, Callable[[], LaneEvent]]]:
    """Read a prompt; returns its answer, and a function that makes the last event."""
    steps = reader.opened(question)
    started, reused = time.perf_counter(), 0
    while True:
        try:
            progress = next(steps)
        except StopIteration as done:
            answer: Answer = done.value
            break
        reused = progress.reused_tokens
        yield LaneEvent(number, progress)
    seconds = time.perf_counter() - started

    def end() -> LaneEvent:
        return LaneEvent(number, answer.finished(reused_tokens=reused, prefill_seconds=seconds))

    return answer, end


class Generate(Protocol):
    """As `core.engine_api.TextEngine.generate`."""

    def __call__(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        boundary: int = 0,
    ) -> Iterator[Event]:
        """Read a prompt, then answer."""


def one_by_one(generate: Generate, questions: Sequence[Question]) -> Generator[LaneEvent]:
    """The same events, one answer after the other."""
    for number, question in enumerate(questions):
        prompt_ids, config, cancel, boundary = question
        if number and question.cancelled:
            continue
        for event in generate(prompt_ids, config, cancel, boundary=boundary):
            yield LaneEvent(number, event)


def in_order(events: Iterable[LaneEvent], count: int) -> Iterator[tuple[int, Event]]:
    """The events of all questions with their numbers, one question after the other, as soon as they can come."""
    waiting: list[deque[Event]] = [deque() for _ in range(count)]
    now = 0
    for lane_event in events:
        waiting[lane_event.lane or 0].append(lane_event.event)
        while now < count and waiting[now]:
            event = waiting[now].popleft()
            yield now, event
            now += isinstance(event, Finished)
    for number in range(now, count):  # after one that was cancelled before its turn and has no last event
        for event in waiting[number]:
            yield number, event
