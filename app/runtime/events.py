"""Events in the streams of the engine's thread. Frozen values."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.context.open_book import Book
from app.documents.document import Extracting
from app.runtime.trace import Race, Trace
from core.errors import CoreError
from core.generation.events import Event, LaneEvent
from core.models.loading import NOTHING_LOADED, LoadProgress

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread does it while the page is already served
    from core.engine_info import EngineInfo
    from core.planning.hardware import Machine

Kind = Literal["reading", "answer", "race", "survey", "saving"]


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is being loaded."""

    model: str = ""  # its name, if it replaces another model
    progress: LoadProgress = NOTHING_LOADED


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    info: "EngineInfo"
    machine: "Machine"
    context: int
    refused: CoreError | None = None  # why another model, requested in its place, could not be loaded


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model cannot be loaded; every job fails with this error."""

    error: CoreError


ModelState = Loading | Ready | LoadFailed


@dataclass(frozen=True, slots=True)
class Waiting:
    """The job waits until something else ends."""

    reason: Literal["loading", "own job", "another page", "opening"]
    num_ahead: int  # jobs of other pages
    own: Kind = "reading"  # which job of this page runs first, if that is the reason


@dataclass(frozen=True, slots=True)
class Begun:
    """The turn of an answer or a race has come. The engine's thread goes on recording in `record`."""

    record: Trace | Race


@dataclass(frozen=True, slots=True)
class BookOpened:
    """The library is the session's book now; the model has not yet read its new parts."""

    book: Book


@dataclass(frozen=True, slots=True)
class BookMoving:
    """Cache rows of the book are copied from disk or to disk."""

    what: Literal["opening", "saving"]
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The session is another one than before: its library, how far its book is read, what its answer has loaded."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing new for a while: show the events collected so far."""


BookEvent = Extracting | BookOpened | BookMoving
WorkerEvent = Pause | Changed | Waiting | BookEvent | Begun | Event | LaneEvent
