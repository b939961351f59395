"""Answers that are decoded together: rounds yield the passes they need, and passes of one model are joined.

The cheapest model's passes come first, so that one pass over the full cache verifies the guesses of all answers. No
answer's draws depend on the others.
"""

import gc
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from torch import Tensor

from core.caches.branch import BranchCache
from core.caches.tokens import common_prefix
from core.decoding.registry import FASTEST, is_exact
from core.decoding.speculative import Pass, Passes, SampledModel
from core.generation.decode_loop import LONGEST_ROUND, Answer, Question
from core.generation.events import Event, Finished, LaneEvent, PrefillProgress, RoundDone
from core.generation.levels import Levels, LoadedModels
from core.models.joined import Wanted, logits_together, most_joined
from core.planning.choices import Choice
from core.planning.plan import Plan
from core.planning.sizes import RETRIEVAL, STREAMING

MOST_TOGETHER = 8  # answers: each makes the others wait for its draws


class _Seat:
    """An answer in the middle of a round, or between two."""

    wanted: Wanted
    above: int  # models above the one whose pass is wanted

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._passes: Passes[RoundDone] | None = None

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


def _step(seats: dict[int, _Seat]) -> list[tuple[int, RoundDone]]:
    """One pass of one model for all answers that need it now; returns the rounds that it has completed, by number."""
    for seat in seats.values():
        seat.start()
    first = max(seats.values(), key=lambda seat: seat.above, default=None)
    level = [
        (number, seat)
        for number, seat in seats.items()
        if first and seat.above == first.above and seat.wanted.model.module is first.wanted.model.module
    ]
    logits = logits_together([seat.wanted for _, seat in level]) if level else []
    rounds = [(number, seat.give(one)) for (number, seat), one in zip(level, logits, strict=True)]
    return [(number, done) for number, done in rounds if done is not None]


Opened = Callable[[Question], Generator[PrefillProgress, None, Answer]]  # reads; returns the answer, ready to begin


def answered_together(opened: Opened, questions: Sequence[Question], most: int) -> Generator[LaneEvent]:
    """Answer all questions, at most so many at a time; the first ones are read before any is answered.

    A question that is cancelled before it has begun has no events, unless it is the first.

    Args:
        opened: reads prompts into separate caches.
    """
    waiting, seats = deque(range(len(questions))), dict[int, _Seat]()
    answers: dict[int, Answer] = {}  # those that have not told their end
    while waiting or answers:
        while waiting and len(answers) < most:
            number = waiting.popleft()
            if number and questions[number].cancelled:
                continue
            answers[number] = yield from _in_lane(number, opened(questions[number]))
            if answers[number].stop_reason is None:
                seats[number] = _Seat(answers[number])
        for number in [number for number in seats if questions[number].cancelled]:
            answers[number].stop_reason = "cancelled"  # perhaps in the middle of a round; committed tokens stay
            del seats[number]
        for number, done in _step(seats):
            yield LaneEvent(number, done)
        for number in [number for number in answers if answers[number].stop_reason is not None]:
            seats.pop(number, None)
            yield LaneEvent(number, answers.pop(number).finished())
            gc.collect()  # its caches, which refer to one another


def _in_lane(lane: int, events: Generator[PrefillProgress, None, Answer]) -> Generator[LaneEvent, None, Answer]:
    while True:
        try:
            progress = next(events)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        yield LaneEvent(lane, progress)


def one_by_one(generate: Callable[..., Iterator[Event]], questions: Sequence[Question]) -> Generator[LaneEvent]:
    """The same events, one answer after the other. `generate`: as `core.engine_api.TextEngine.generate`."""
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


def shared_tokens(questions: Sequence[Question]) -> int:
    """Tokens that all prompts begin with; every prompt has at least one more."""
    prompts = [list(question.prompt_ids) for question in questions]
    return min(min(common_prefix(prompts[0], prompt), len(prompt) - 1) for prompt in prompts)


def number_together(levels: Levels, models: LoadedModels, plan: Plan, questions: Sequence[Question]) -> Choice[int]:
    """How many of the questions are answered at a time, and why not more. Where it is 1, nothing is shared."""
    if len(questions) < 2:
        return Choice(1, "there is one question")
    if models.ranks is not None:
        return Choice(1, "several processes share the model, which follow one conversation")
    if not all(is_exact(question.config.method or FASTEST) for question in questions):
        return Choice(1, "a lossy method has no cache that others could share")
    if levels.full.host_memory:
        return Choice(1, "a layer that waits in host memory is read by one answer at a time")
    parts, shape = (levels.parts.full, levels.parts.retrieval, levels.parts.draft), levels.full.shape
    if shape.reaches or shape.recurrent or not all(part is None or most_joined(part) for part in parts):
        if shape.device.type == "cuda":
            return Choice(1, "on a GPU passes are of one conversation")
        return Choice(1, "the layers of this model do not compute a token as if it were alone")
    room = max(question.room for question in questions) + LONGEST_ROUND
    most = min(room, levels.full.capacity) - shared_tokens(questions)
    each = BranchCache.own_bytes(shape, most, levels.full.chunk_size)
    each += plan.bytes_of(RETRIEVAL) + plan.bytes_of(STREAMING)
    fit = max(0, plan.usable_bytes - plan.total_bytes) // each
    number = min(len(questions), MOST_TOGETHER, fit)
    if number < 2:
        return Choice(1, f"another answer takes {each >> 20:,} MiB, which are not free beside this context")
    if number == len(questions):
        return Choice(number, "all of them")
    return Choice(number, f"{fit:,} fit" if number == fit else "more would wait longer for their words")
