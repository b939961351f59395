"""How far the loading of weights is, and Stop: whoever loads tells, whoever waits watches.

A context variable carries the watcher, so that nothing between the page and a weight passes it on.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from core.errors import LoadingStopped

LEAST_SECONDS = 0.5  # before the rest is estimated


class LoadProgress(NamedTuple):
    """How far loading is."""

    done_bytes: int
    total_bytes: int
    seconds_left: float | None = None  # None: too early to tell

    @property
    def share(self) -> float:
        """Of all bytes."""
        return self.done_bytes / self.total_bytes if self.total_bytes else 0.0


NOTHING_LOADED = LoadProgress(0, 0)
Tell = Callable[[LoadProgress], None]


class LoadMeter:
    """Bytes of weights that are in place, of those of all models that are expected."""

    def __init__(self, tell: Tell = lambda _: None, cancel: threading.Event | None = None) -> None:
        self._tell, self.cancel = tell, cancel or threading.Event()
        self.done = 0.0  # bytes that are in place
        self._total, self._began = 0, time.perf_counter()

    def expect(self, num_bytes: int) -> None:
        """So many bytes come in addition."""
        self._total += num_bytes
        self.add(0)

    def add(self, num_bytes: float) -> None:
        """So many more are done.

        Raises:
            LoadingStopped: the user has stopped it.
        """
        if self.cancel.is_set():
            raise LoadingStopped
        self.done += num_bytes
        done, seconds = min(self._total, round(self.done)), time.perf_counter() - self._began
        left = seconds * (self._total - done) / done if done and seconds > LEAST_SECONDS else None
        self._tell(LoadProgress(done, self._total, left))

    @contextmanager
    def stops_transformers(self) -> Iterator[None]:
        """Stop ends transformers' own loop over the weights of a checkpoint, at the next one."""

        from transformers.utils.logging import set_tqdm_hook  # takes seconds: whoever loads has imported it

        def hook(_factory: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Stopping":
            return _Stopping(self, args[0] if args else kwargs.get("iterable", ()))

        before = set_tqdm_hook(hook)
        try:
            yield
        finally:
            set_tqdm_hook(before)


class _Stopping:
    """Stands for transformers' progress bar."""

    def __init__(self, meter: LoadMeter, items: Iterable[Any]) -> None:
        self._meter, self._items = meter, items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._meter.add(0)
            yield item

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None


_watching: ContextVar[LoadMeter | None] = ContextVar("watching", default=None)


def load_meter() -> LoadMeter:
    """The one that this thread's loading tells."""
    return _watching.get() or LoadMeter()


@contextmanager
def watched_loading(tell: Tell, cancel: threading.Event | None = None) -> Iterator[None]:
    """Loading by this thread tells its bytes, and ends with LoadingStopped once `cancel` is set."""
    token = _watching.set(LoadMeter(tell, cancel))
    try:
        yield
    finally:
        _watching.reset(token)
