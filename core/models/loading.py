"""How far the loading of weights is, and Stop: whoever loads tells, whoever waits watches.

A context variable carries the watcher, so that nothing between the page and a weight passes it on.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from transformers.utils.logging import set_tqdm_hook

from core.errors import LoadingStopped

Tell = Callable[[int, int], None]  # bytes done, bytes in all


class LoadMeter:
    """Bytes of weights that are in place, of those of all models that are expected."""

    def __init__(self, tell: Tell = lambda _done, _total: None, cancel: threading.Event | None = None) -> None:
        self._tell, self.cancel = tell, cancel or threading.Event()
        self._total, self._done = 0, 0.0

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
        self._done += num_bytes
        self._tell(min(self._total, round(self._done)), self._total)

    @contextmanager
    def stops_transformers(self) -> Iterator[None]:
        """Stop ends transformers' own loop over the weights of a checkpoint, at the next one."""

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
