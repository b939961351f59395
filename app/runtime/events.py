"""What happens, as the streams of the engine's thread tell it. Frozen values."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.context.open_book import Book
from app.context.retrieval_map import Loaded
from app.context.uploads import Fit
from app.documents.document import Extracting
from app.runtime.trace import Race
from core.errors import CoreError
from core.generation.events import Event, LaneEvent

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread does it while the page is already served
    from core.engine_info import EngineInfo
    from core.planning.hardware import Machine

Kind = Literal["counting", "reading", "answer", "race", "survey", "keeping"]


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is being loaded."""

    model: str = ""  # its name, if it comes in the place of another


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    info: "EngineInfo"
    machine: "Machine"
    context: int
    refused: CoreError | None = None  # why another one, that was wanted in its place, could not be loaded


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model cannot be loaded; every job fails with this error."""

    error: CoreError


ModelState = Loading | Ready | LoadFailed


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something must end before this job begins."""

    reason: Literal["loading", "own job", "another page"]
    num_ahead: int  # jobs of other pages
    own: Kind = "reading"  # what the page itself does first, if that is the reason


@dataclass(frozen=True, slots=True)
class ReadingEnded:
    """The model has read the book, or was stopped on the way."""

    num_read: int
    complete: bool


@dataclass(frozen=True, slots=True)
class AnswerBegun:
    """It is this answer's turn."""

    num_book: int  # tokens of the book
    num_read_before: int  # tokens of the opening that were read at least once before this


@dataclass(frozen=True, slots=True)
class PagesLoaded:
    """What the retrieval cache held up to now for the answer that is being written, or has just ended."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class RaceBegun:
    """It is this race's turn. The engine's thread goes on recording in `race`."""

    race: Race


@dataclass(frozen=True, slots=True)
class RaceEnded:
    """All lanes have ended and exact texts were compared."""


@dataclass(frozen=True, slots=True)
class Counting:
    """A text is being cut into tokens."""


@dataclass(frozen=True, slots=True)
class BookOpened:
    """The library is the session's book now; what is new of it has not been read by the model yet."""

    book: Book


@dataclass(frozen=True, slots=True)
class LibraryTooLong:
    """The context does not hold the library. The book that was open stays open, and something can be chosen."""

    fit: Fit


@dataclass(frozen=True, slots=True)
class LibraryClosed:
    """The library is empty, and so there is no book."""


LibraryEvent = Counting | BookOpened | LibraryTooLong | LibraryClosed


@dataclass(frozen=True, slots=True)
class BookMoving:
    """Rows of the book come from the disk, or go there."""

    what: Literal["opening", "keeping"]
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing new for a while: what has been collected should be shown now."""


BookEvent = Extracting | LibraryEvent | ReadingEnded | BookMoving
RaceEvent = RaceBegun | LaneEvent | RaceEnded
WorkerEvent = Pause | Waiting | BookEvent | AnswerBegun | PagesLoaded | Event | RaceEvent
