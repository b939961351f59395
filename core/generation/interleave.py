"""A race: answers that share a model, a book and a machine take turns."""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack

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
        self._suffix: Suffix | None = None
        self._held: Aside | None = None
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
            self.leave()
        else:
            self.end()

    def _enter(self, cancel: threading.Event | None) -> None:
        decoder = self.answer.decoder
        for model, meter in zip(decoder.models, self._meters, strict=True):
            model.meter = meter
        retry = self.answer.oom_fallback.retry
        if (suffix := self._suffix) is not None:
            retry(lambda: self._full.attach(suffix), lambda: self._full.truncate(self._base))
            self._suffix = None
        if (held := self._held) is not None:
            retry(lambda: decoder.put_back(held, self._base), lambda: None)
            self._held = None
        else:
            self.answer.begin(cancel)
        self._inside = True

    def leave(self) -> None:
        """Set aside this lane's rows of the full cache and the contents of its smaller caches."""
        retry = self.answer.oom_fallback.retry
        self._held = retry(self.answer.decoder.set_aside, lambda: None)
        self._suffix = retry(lambda: self._full.detach(self._base), lambda: None)
        self._inside = False

    def end(self) -> None:
        """Free everything of the lane. Ending twice is harmless."""
        if self._inside:
            self._inside = False
            self._full.truncate(self._base)
        if self._held is not None:
            self.answer.decoder.drop(self._held)
            self._held = None
        if self._suffix is not None:
            self._full.forget(self._suffix)
            self._suffix = None


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
    with ExitStack() as ending:  # all lanes end, even if one of them fails to
        for lane in lanes:
            ending.callback(lane.end)
        while running:
            for number, lane in list(running.items()):
                if lane.answer.stop_reason is None:
                    for done in lane.slice(cancel, seconds):
                        yield LaneEvent(number, done)
                if lane.answer.stop_reason is not None:
                    del running[number]
                    yield LaneEvent(number, lane.answer.finished())
