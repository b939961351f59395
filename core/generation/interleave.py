"""A race: answers that share a model, a book and a machine take turns."""

import threading
from collections.abc import Generator, Iterator, Sequence

from core.caches.full import FullCache
from core.caches.full_parts import Suffix
from core.decoding.methods import Aside
from core.generation.decode_loop import Answer
from core.generation.events import LaneEvent, RoundDone
from core.models.cached_model import PassMeter

SLICE_SECONDS = 0.25  # of computing, before the next lane's turn


class Lane:
    """An answer whose rows behind the lanes' common prompt can be set aside."""

    def __init__(self, answer: Answer, full: FullCache) -> None:
        self.answer, self._full = answer, full
        self._base = full.length  # tokens that all lanes share
        self._meters = [PassMeter(model.device) for model in answer.decoder.models]
        self._aside: tuple[Aside, Suffix] | None = None
        self._inside = False

    def slice(self, cancel: threading.Event | None, seconds: float | None) -> Iterator[RoundDone]:
        """Rounds until the slice is over or the answer has ended; at least one unless it is cancelled."""
        self._enter(cancel)
        until = self.answer.seconds + SLICE_SECONDS
        while self.answer.stop_reason is None:
            if cancel and cancel.is_set():
                self.answer.stop_reason = "cancelled"
            else:
                yield self.answer.round()
                if self.answer.stop_reason is None and seconds is not None and self.answer.seconds >= seconds:
                    self.answer.stop_reason = "time_up"
            if self.answer.seconds >= until:
                break
        if self.answer.stop_reason is None:
            self._leave()
        else:
            self.end()

    def _enter(self, cancel: threading.Event | None) -> None:
        decoder = self.answer.decoder
        for model, meter in zip(decoder.models, self._meters, strict=True):
            model.meter = meter
        aside, self._aside, self._inside = self._aside, None, True
        if aside is None:
            self.answer.begin(cancel)
            return
        (held, suffix), retry = aside, self.answer.oom_fallback.retry
        retry(lambda: self._full.attach(suffix), lambda: self._full.truncate(self._base))
        retry(lambda: decoder.put_back(held, self._base), lambda: None)

    def _leave(self) -> None:
        """Set aside the contents of this lane's smaller caches and its rows of the full cache."""
        retry = self.answer.oom_fallback.retry
        held = retry(self.answer.decoder.set_aside, lambda: None)
        self._aside = held, retry(lambda: self._full.detach(self._base), lambda: None)
        self._inside = False

    def end(self) -> None:
        """Free everything of the lane. Ending twice is harmless."""
        if self._inside:
            self._full.truncate(self._base)
        if self._aside is not None:
            held, suffix = self._aside
            self.answer.decoder.drop(held)
            self._full.forget(suffix)
        self._inside, self._aside = False, None


def raced(
    answers: Sequence[Answer], full: FullCache, cancel: threading.Event | None, seconds: float | None
) -> Generator[LaneEvent]:
    """Slices in turns until every answer has ended. All begin behind the prompt that the full cache has read.

    Args:
        seconds: a budget on each lane's clock, after which it ends with "time_up"; None: no limit.
    """
    if cancel and cancel.is_set():  # perhaps while reading, and no lane may begin on a half-read text
        for answer in answers:
            answer.stop_reason = "cancelled"
    lanes = [Lane(answer, full) for answer in answers]
    running = dict(enumerate(lanes))
    try:
        while running:
            for number, lane in list(running.items()):
                if lane.answer.stop_reason is None:
                    for done in lane.slice(cancel, seconds):
                        yield LaneEvent(number, done)
                if lane.answer.stop_reason is not None:
                    del running[number]
                    yield LaneEvent(number, lane.answer.finished())
    finally:
        for lane in lanes:
            lane.end()
