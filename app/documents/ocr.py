"""Text of a PDF's pages that are only pictures: recognised in a limited process, page by page, and kept on disk.

The engine is optional. What was recognised once is taken from disk, even where the engine is gone.
"""

import importlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from app.documents.document import Extracting
from app.documents.errors import DocumentTooLarge, OcrMissing, ParsingLimitReached
from app.documents.messages import PageRead
from app.documents.parsing import ParsingLimits, worker_messages
from app.documents.quality import is_picture
from app.documents.recognised import RecognisedPages
from core.files import file_digest

ENGINE = "app.documents.rapid_ocr"  # has NAME, `version` and `load`
USUAL_SECONDS = 3.0  # for a page, until some were recognised here
NEWEST = 0.3  # weight of the newest page in the pace
PAGES_AT_ONCE = 500  # of one process; a command line is not endless
MOST_FAILURES = 3  # pages in a row on which the process crashed or hung
CPU_SECONDS = 120  # for a page
# A full page takes 1.0 GB of RAM and 1.8 GB of address space, with four threads no more (measured).
LIMITS = ParsingLimits(memory_bytes=4 << 30, silence_seconds=180)
_turn = threading.BoundedSemaphore(1)  # one recognition at a time: it may take hours, and memory


@dataclass(slots=True)
class Pace:
    """How long the newest pages took."""

    seconds: float = USUAL_SECONDS  # for one page

    def took(self, seconds: float) -> None:
        """A page took this long."""
        self.seconds += NEWEST * (seconds - self.seconds)


PACE = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ocr:
    """What is done about pages that are only pictures."""

    recognise: bool  # False: only what was recognised before is used
    kept: RecognisedPages | None = None  # None: nothing is kept
    stopped: Callable[[], bool] = lambda: False  # asked again and again; what was recognised until then is used

    def fill(self, file: Path, name: str, pages: Sequence[PageRead]) -> Generator[Extracting, None, list[PageRead]]:
        """The pages, with text for those that are pictures.

        Raises:
            OcrMissing, OcrBroken: there is no engine, or it does not start.
            DocumentError: the file cannot be read by it.
        """
        wanted = [index for index, page in enumerate(pages) if is_picture(page)]
        digest = file_digest(file) if wanted and self.kept else ""
        texts = self.kept.load(digest, label()) if digest and self.kept else {}
        missing = [index for index in wanted if index not in texts]
        if missing and self.recognise:
            yield from self._recognise(file, name, missing, texts, digest)
        filled = list(pages)
        for index in set(wanted) & set(texts):
            filled[index] = {**pages[index], "text": texts[index], "recognised": True}
        return filled

    def _recognise(
        self, file: Path, name: str, missing: Sequence[int], texts: dict[int, str], digest: str
    ) -> Generator[Extracting]:
        """Add the texts of pages, as they are recognised. A page on which the process dies is left out."""
        if label() is None:
            raise OcrMissing(name)
        left, failures = list(missing), 0
        while left and not self.stopped():
            num_left = len(left)
            try:
                yield from self._run(file, name, left, texts, digest, len(missing))
            except ParsingLimitReached:
                failures = failures + 1 if len(left) == num_left else 1
                if failures == MOST_FAILURES:
                    raise
                left.pop(0)

    def _run(
        self, file: Path, name: str, left: list[int], texts: dict[int, str], digest: str, num_pages: int
    ) -> Generator[Extracting]:
        """Recognise the next pages in one process; removes them from `left`."""
        now, engine = left[:PAGES_AT_ONCE], label()
        more = ENGINE, ",".join(map(str, now))
        limits = replace(LIMITS, cpu_seconds=CPU_SECONDS * len(now))
        with closing(worker_messages("recognition", file, name, limits, more, _turn)) as messages:
            begun: float | None = None  # not while it waits for its turn, or the engine is loaded
            for message in messages:
                if message and message["kind"] == "opened":
                    begun = time.monotonic()
                if begun is not None and message and message["kind"] == "page":
                    index = left.pop(0)
                    PACE.took(time.monotonic() - begun)
                    begun = time.monotonic()
                    if not message["damaged"]:
                        texts[index] = message["text"]
                        if self.kept and engine:
                            self.kept.add(digest, engine, index, message["text"])
                    if sum(map(len, texts.values())) > limits.chars:
                        raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
                if self.stopped():
                    return
                yield Extracting(
                    num_done=num_pages - len(left),
                    num_pages=num_pages,
                    recognising=True,
                    seconds_left=expected_seconds(len(left)),
                )


def label() -> str | None:
    """The name and version of the engine; None if it is not installed."""
    module = importlib.import_module(ENGINE)
    version = module.version()
    return f"{module.NAME}-{version}" if version else None


def is_installed() -> bool:
    """Whether text can be recognised."""
    return label() is not None


def expected_seconds(num_pages: int) -> float:
    """How long pages will take, by the newest ones."""
    return PACE.seconds * num_pages
