"""Ctrl+C while an answer is written: the first ends the answer, whose figures are told, the second the command."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # the exit code


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
