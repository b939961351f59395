"""Events in the streams of the engine's thread. Frozen values."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.context.open_book import Book
from app.context.retrieval_map import Loaded
from app.context.uploads import Fit
from app.documents.document import Extracting
from app.runtime.trace import Race
from core.errors import CoreError
from core.generation.events import Event, LaneEvent
from core.models.loading import NOTHING_LOADED, LoadProgress

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread does it while the page is already served
    from core.engine_info import EngineInfo
    from core.planning.hardware import Machine

Kind = Literal["counting", "reading", "answer", "race", "survey", "saving"]


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
class ReadingEnded:
    """The model has read the book, or the reading was stopped."""

    num_read: int
    complete: bool


@dataclass(frozen=True, slots=True)
class AnswerBegun:
    """This answer's turn has come."""

    num_book: int  # tokens of the book
    num_read_before: int  # tokens of the opening that were already read at least once


@dataclass(frozen=True, slots=True)
class PagesLoaded:
    """What the retrieval cache has held so far for the current answer, or for one that has just ended."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class RaceBegun:
    """This race's turn has come. The engine's thread goes on recording in `race`."""

    race: Race


@dataclass(frozen=True, slots=True)
class RaceEnded:
    """All lanes have ended and the exact texts were compared."""


@dataclass(frozen=True, slots=True)
class Counting:
    """A text is being tokenized."""


@dataclass(frozen=True, slots=True)
class BookOpened:
    """The library is the session's book now; the model has not yet read its new parts."""

    book: Book


@dataclass(frozen=True, slots=True)
class LibraryTooLong:
    """The context does not hold the library. The open book stays open, and the reader can choose among offers."""

    fit: Fit


@dataclass(frozen=True, slots=True)
class LibraryClosed:
    """The library is empty, so no book is open."""


LibraryEvent = Counting | BookOpened | LibraryTooLong | LibraryClosed


@dataclass(frozen=True, slots=True)
class BookMoving:
    """Cache rows of the book are copied from disk or to disk."""

    what: Literal["opening", "saving"]
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing new for a while: show the events collected so far."""


BookEvent = Extracting | LibraryEvent | ReadingEnded | BookMoving
RaceEvent = RaceBegun | LaneEvent | RaceEnded
WorkerEvent = Pause | Waiting | BookEvent | AnswerBegun | PagesLoaded | Event | RaceEvent
