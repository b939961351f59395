"""One download at a time, in its own thread: answers go on meanwhile, and a reloaded page finds the download again.

`core.models.hub.download` does the work, as for `python launch.py models get`; this module only tracks the progress.
It sends nothing over the network before `start`.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from core.errors import CoreError
from core.models.hub import catalog, store

if TYPE_CHECKING:  # imports network code: only when a download is wanted
    from core.models.hub.client import Repository

log = logging.getLogger(__name__)

MOST_WAIT_SECONDS = 2.0  # for the thread when the program ends; downloaded parts stay on disk in any case

Stage = Literal["asking", "fetching", "stopping", "done", "stopped", "failed"]
ENDED = ("done", "stopped", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """The state of one download. Sizes in bytes, over all files that were incomplete when it began."""

    name: str  # in the catalogue
    stage: Stage = "asking"
    total_bytes: int = 0  # exact; 0: the hub has not answered yet
    kept_bytes: int = 0  # already there before it began
    done_bytes: int = 0
    elapsed_seconds: float = 0.0
    error: CoreError | None = None

    @property
    def ended(self) -> bool:
        """The download is over."""
        return self.stage in ENDED

    @property
    def bytes_per_second(self) -> float:
        """Network speed since the first byte."""
        return (self.done_bytes - self.kept_bytes) / self.elapsed_seconds if self.elapsed_seconds > 0 else 0.0


class Downloads:
    """The running download, or the last one that ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all fields below
        self._now: Fetch | None = None
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def now(self) -> Fetch | None:
        """The download's state; None: there was none since the program began."""
        return self._now

    def start(self, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Begin or continue to download the missing files of a catalogue model and of its draft.

        Args:
            then: called, in the download's thread, once the model is here.
        Raises:
            CoreError: another download is running. UnknownModel: the catalogue has no such model.
        """
        name = catalog.known_row(name).name
        with self._lock:
            if self._now is not None and not self._now.ended:
                raise CoreError(f"{self._now.name} is being downloaded.", hint="Wait for its end, or cancel it.")
            self._now, self._cancel = Fetch(name=name), threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(name, self._cancel, then), name="download", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop after the current piece; downloaded parts stay on disk."""
        self._cancel.set()
        if self._now is not None and not self._now.ended:
            self._tell(stage="stopping")

    def dismiss(self) -> None:
        """Forget how the last download ended, because the reader has seen it."""
        with self._lock:
            if self._now is not None and self._now.ended:
                self._now = None

    def close(self) -> None:
        """Stop because the program ends."""
        self.stop()
        if self._thread is not None:
            self._thread.join(MOST_WAIT_SECONDS)

    # -------------------- the download's thread

    def _run(self, name: str, cancel: threading.Event, then: Callable[[], None]) -> None:
        try:
            if self._fetch(name, cancel):
                self._tell(stage="done")
                then()
        except CoreError as error:
            self._tell(stage="failed", error=error)
        except Exception as error:  # a thread that died silently would look like a stalled download
            log.exception("a download failed")
            problem = f"The download ended with an error ({type(error).__name__})."
            self._tell(stage="failed", error=CoreError(problem, hint="Start it again."))

    def _fetch(self, name: str, cancel: threading.Event) -> bool:
        """False: it was stopped before the end."""
        from core.models.hub.download import check_disk, download, still_to_come

        found, refusal = _look_up(name)
        if not found and refusal is not None:
            raise refusal
        total = sum(repository.size_bytes for repository in found)
        to_come = sum(still_to_come(repository) for repository in found)
        self._tell(total_bytes=total, kept_bytes=total - to_come, done_bytes=total - to_come)
        check_disk(*found)
        before, began = 0, time.perf_counter()
        for repository in found:
            for progress in download(repository, cancel):
                self._tell(
                    stage="stopping" if cancel.is_set() else "fetching",
                    done_bytes=before + progress.done_bytes,
                    elapsed_seconds=time.perf_counter() - began,
                )
            before += repository.size_bytes
        if cancel.is_set():
            to_come = sum(still_to_come(repository) for repository in found)  # a part of a wheel is not kept
            self._tell(stage="stopped", done_bytes=total - to_come)
            return False
        if refusal is not None:
            raise type(refusal)(f"{name} is here, its draft is not. {refusal.problem}", hint=refusal.hint)
        return True

    def _tell(self, **news: object) -> None:
        with self._lock:
            if self._now is not None and not self._now.ended:
                self._now = replace(self._now, **news)  # type: ignore[arg-type]


def _look_up(name: str) -> "tuple[list[Repository], CoreError | None]":
    """The incomplete repositories of a model and its draft, and the error if the hub refuses one of them.

    A refused draft does not prevent the download of the target.
    """
    from core.models.hub.client import look_up

    found: list[Repository] = []
    for repo in catalog.repositories(name):
        folder = store.locate(repo)
        if folder is not None and not store.missing_files(folder):
            continue
        try:
            found.append(look_up(repo))
        except CoreError as error:
            return found, error
    return found, None
