"""The end of a program that serves: Ctrl+C or a signal asks for it, and it comes, whatever hangs or overhears that."""

import atexit
import os
import queue
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

LONGEST_SECONDS = 45.0  # to save what is not saved yet, and to close all else
LOOK_SECONDS = 0.5
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # of these, what the system has


class Ending:
    """While it is entered, the first signal raises KeyboardInterrupt in the main thread; later ones change nothing.

    An interrupt can get lost: raised while a library catches all that comes, or while an object is freed. So it is
    remembered, too. If the program has not left this context LONGEST_SECONDS after the signal, it is ended.

    Args:
        longest_seconds: as said.
    """

    def __init__(self, longest_seconds: float = LONGEST_SECONDS) -> None:
        self.asked = False
        self._longest = longest_seconds
        # A handler may interrupt whoever holds a lock; of all queues and events only this one needs none.
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: asked; False: left
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Ending":
        threading.Thread(target=self._insist, name="ending", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # nohup, a shell's background
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._news.put(False)

    def wait(self) -> None:
        """Until the end is asked for.

        Raises:
            KeyboardInterrupt: it is asked for just now; where it was before, this only returns.
        """
        while not self.asked:
            time.sleep(LOOK_SECONDS)  # Windows does not interrupt a wait for an event

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            self._news.put(True)
            raise KeyboardInterrupt

    def _insist(self) -> None:
        if not self._news.get():
            return
        try:
            self._news.get(timeout=self._longest)
        except queue.Empty:
            print(f"Something hung for {self._longest:.0f} s; ended all the same.", file=sys.stderr, flush=True)
            os._exit(1)


def leave(code: int) -> NoReturn:
    """End the process though a thread is still in a library's code: Python's own end could crash or hang on that."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
