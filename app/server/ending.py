"""The end of a serving program after Ctrl+C or a signal, even if something hangs or swallows the interrupt."""

import atexit
import os
import queue
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

LONGEST_SECONDS = 45.0  # to save unsaved data and close everything else
LOOK_SECONDS = 0.5
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # those that the system has


class Ending:
    """Inside this context the first signal raises KeyboardInterrupt in the main thread; later ones change nothing.

    An interrupt can get lost, if it is raised while a library catches every exception or while an object is freed.
    So it is remembered too: `longest_seconds` after the signal, the process is ended if it has not left this context.
    """

    def __init__(self, longest_seconds: float = LONGEST_SECONDS) -> None:
        self.asked = False
        self._longest = longest_seconds
        # The handler may interrupt a thread that holds a lock; of all queues and events only SimpleQueue needs none.
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: end requested; False: context left
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Ending":
        threading.Thread(target=self._insist, name="ending", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # ignored under nohup, and by a shell's jobs
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._news.put(False)

    def wait(self) -> None:
        """Wait until the end is requested.

        Raises:
            KeyboardInterrupt: it is requested during the wait; if it was requested before, this only returns.
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
    """End the process even if a thread is in a library's code, where Python's normal exit could crash or hang."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
