"""A race: answers that share a model, a book and a machine take turns."""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack

from core.caches.full import FullCache
from core.caches.full_parts import Suffix
from core.caches.tokens import Context
from core.config import GenerationConfig
from core.decoding.methods import Aside
from core.generation.decode_loop import Answer
from core.generation.events import LaneEvent, RoundDone
from core.generation.levels import Levels
from core.generation.trunk import Trunk
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
            decoder.reset_meters()
            for model in decoder.models[:-1]:
                model.cache.truncate(self._base)  # later rows may be another lane's
            retry(lambda: decoder.start(Context(self.answer.tokens), cancel), decoder.forget)
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
    trunk: Trunk,
    levels: Levels,
    prompt_ids: Sequence[int],
    configs: Sequence[GenerationConfig],
    cancel: threading.Event | None,
    *,
    seconds: float | None,
    boundary: int,
    room: int,
) -> Generator[LaneEvent]:
    """See `core.engine.Engine.race`; `room`: as in `make_room`."""
    trunk.use_budget(configs[0].budget)
    decoders = levels.lane_decoders(configs, trunk.text, prompt_ids)
    reused, prefill_seconds = 0, 0.0
    for progress in trunk.read(prompt_ids, cancel, boundary=boundary, room=room):
        reused, prefill_seconds = progress.reused_tokens, progress.elapsed_seconds
        yield LaneEvent(None, progress)
    answers = [trunk.answer(d, prompt_ids, c) for d, c in zip(decoders, configs, strict=True)]
    if cancel and cancel.is_set():  # perhaps while reading, and no lane may begin on a half-read text
        for answer in answers:
            answer.stop_reason = "cancelled"
    lanes = [Lane(answer, levels.full) for answer in answers]
    try:
        yield from interleaved(lanes, cancel, seconds, reused, prefill_seconds)
    finally:
        with ExitStack() as ending:  # in reverse order; all are called, even if one fails
            ending.callback(trunk.settle, list(prompt_ids))
            for lane in lanes:
                ending.callback(lane.end)


def interleaved(
    lanes: Sequence[Lane],
    cancel: threading.Event | None,
    seconds: float | None,
    reused_tokens: int,
    prefill_seconds: float,
) -> Iterator[LaneEvent]:
    """Slices in turns until every answer has ended.

    Args:
        seconds: a budget on each lane's clock, after which it ends with "time_up"; None: no limit.
    """
    running = dict(enumerate(lanes))
    while running:
        for number, lane in list(running.items()):
            if lane.answer.stop_reason is None:
                for done in lane.slice(cancel, seconds):
                    yield LaneEvent(number, done)
            if lane.answer.stop_reason is not None:
                del running[number]
                ended = lane.answer.finished(reused_tokens=reused_tokens, prefill_seconds=prefill_seconds)
                yield LaneEvent(number, ended)
