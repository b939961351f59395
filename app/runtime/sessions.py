"""The server's state of one open page: its book, its conversation, its answers. The browser holds only the id."""

import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

from app.context.context_documents import Library
from app.context.find import Words
from app.context.kept_documents import KeptDocuments
from app.context.open_book import Book
from app.context.retrieval_map import Loaded, Loads
from app.context.upload_files import OpenFiles
from app.context.uploads import TO_OPEN, Uploads
from app.conversations.exchange import ID, Exchange
from app.runtime.events import Begun, Waiting, WorkerEvent
from app.runtime.saved_books import DiskState
from app.runtime.trace import Race, Trace
from core.errors import CoreError
from core.generation.events import PrefillProgress

if TYPE_CHECKING:  # importing it takes the seconds that the engine's thread spends on it while the page is served
    from app.conversations.tree import Dialogue, Node
    from core.generation.session import Conversation

Side = Literal["read", "library"]  # where a page of a document is shown
MOST_SESSIONS = 64  # beyond that the longest unused one is forgotten; a book of 128K tokens takes about 6 MB


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal from the library took away, to bring it back."""

    library: Library  # before it
    dialogue: "Dialogue | None"
    carried: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Writing:
    """An answer that waits for its turn or is written."""

    trace: Trace  # shown until its turn has come, then the engine's
    parent: str  # the exchange before it, if that is in the conversation shown; else it begins one
    waiting: Waiting | None = None
    begun: bool = False

    def apply(self, event: WorkerEvent) -> None:
        """Apply one event. The engine's thread records the answer itself."""
        match event:
            case Waiting():
                self.waiting = event
            case Begun(record=Trace() as trace):
                self.waiting, self.begun, self.trace = None, True, trace


@dataclass(slots=True, eq=False)
class Racing:
    """A race that waits, runs or failed."""

    race: Race | None = None  # once its turn has come; the engine's thread records the lanes
    waits: bool = False
    waiting: Waiting | None = None
    error: CoreError | None = None  # it did not begin, or was interrupted
    about: Book | None = None  # the book that was open then

    @property
    def running(self) -> bool:
        """It waits, reads or races."""
        return self.error is None and (self.waits if self.race is None else not self.race.ended)

    @property
    def finished(self) -> bool:
        """The race can be replayed and reported."""
        return not self.running and self.race is not None and any(lane.text for lane in self.race.lanes)

    def apply(self, event: WorkerEvent) -> None:
        """Apply one event."""
        match event:
            case Waiting():
                self.waiting = event
            case Begun(record=Race() as race):
                self.race = race


@dataclass(slots=True)
class Session:
    """One page. The engine's thread changes its book and conversation; `clear` begins a new conversation."""

    id: str
    book: Book | None = None
    conversation: "Conversation | None" = None  # the book's tokens; the turns come from `exchanges`
    digest: str = ""  # of the book's text, all documents of the library joined
    dialogue: "Dialogue | None" = None  # the one shown; None before the first question
    carried: bool = False  # the conversation continues about the book, though it began about another library
    incognito: bool = False  # nothing of this conversation is written
    editing: str | None = None  # the exchange whose question is being changed
    search: str = ""  # filters the list of conversations
    entered: bool = False  # the page has loaded, so it shows what the session holds
    num_read: int = 0  # tokens of the opening that were read at least once
    read_seconds: float = 0.0  # time for that, as far as it came before a question
    num_reused: int = 0  # tokens of the opening that the model still had when it was opened
    displaced: bool = False  # another page's book has taken its place in the model
    num_drawn: int = 0  # answers begun: each has its own seed
    trace: Trace | None = None  # of the newest answer, which may be unfinished
    race: Race | None = None  # the newest one, which may still run
    removed: Removed | None = None  # the newest removal from the library
    deleted: "Dialogue | None" = None  # the conversation deleted last, in memory alone
    uploads: Uploads = field(default_factory=Uploads)  # the library as the reader wants it
    doing: Waiting | PrefillProgress | None = None  # what the library waits for or does now
    loads: Loads = field(default_factory=Loads)  # what was loaded of the book, by exchange
    budget: int | None = None  # of the retrieval cache for the newest answer, tokens; None: as the engine was loaded
    disk: DiskState = field(default_factory=DiskState)  # of the open book, or of an earlier one
    baseline: "array[float] | None" = None  # weights of the book's chunks for any question; None: not measured
    baseline_budget: int = 0  # the budget they were measured with
    version: int = 0  # of what its page shows
    problem: CoreError | None = None  # why the last act was refused
    draft: tuple[str, str] = ("", "")  # a text for the question box, and its id: each is put there once
    writing: Writing | None = None  # the answer that waits or is written
    racing: Racing | None = None  # a race that waits, runs or failed
    leaves: dict[Side, str] = field(default_factory=dict)  # an opened page of a document, as HTML
    num_opened: dict[Side, int] = field(default_factory=dict)  # pages asked for: only the newest is shown
    leaf_is_of_strip: bool = False  # the page beside the conversation was opened from the strip of an answer
    ticked: str = ""  # the parts ticked of a library that is too long
    finding: tuple[Words, int] = (Words(""), 0)  # what Find searches, and how many hits it shows
    inside: str = ""  # whose making is shown: a method of the race; "": the answer
    acts: OrderedDict[str, bool] = field(default_factory=OrderedDict)  # the newest acts of its page, by their ids
    num_streams: int = 0  # connected pages
    num_visits: int = 0  # pages that were connected, since the program began
    abandoned: bool = False  # nobody looked, or another model came: its library is read once somebody looks
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while `dialogue` is replaced by a changed copy
    files: OpenFiles = field(default_factory=OpenFiles)  # of PDFs, for images of their pages; shared by all sessions
    kept: KeptDocuments = field(default_factory=KeptDocuments)  # texts on disk; shared by all sessions

    def changed(self) -> None:
        """Its page has something else to show."""
        self.version += 1

    def put(self, text: str) -> None:
        """Put a text into the question box, once."""
        self.draft = (secrets.token_hex(8), text)

    def close(self, side: Side) -> None:
        """Close an opened page; one that is still being drawn is not shown."""
        self.num_opened[side] = self.num_opened.get(side, 0) + 1
        self.leaves.pop(side, None)

    @property
    def fits(self) -> bool:
        """The conversation can continue: it is about the open book, or is empty."""
        dialogue = self.dialogue  # another thread may begin a new conversation
        if dialogue is None:
            return True
        return self.book is not None and (self.carried or dialogue.book.digest == self.digest)

    def drop_files(self) -> None:
        """Delete the copies of PDFs that are no longer open here."""
        files = [upload.file for upload in self.uploads.pending]  # first: the engine's thread moves them to the library
        files += [book.file for book in self.uploads.library.books]
        files += [book.file for book in self.book.library.books] if self.book else []
        files += [book.file for book in self.removed.library.books] if self.removed else []
        self.files.retain(self.id, {file for file in files if file})

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The questions about the open book and their answers, on the shown branch."""
        return self.dialogue.exchanges if self.dialogue is not None and self.fits else ()

    @property
    def is_stale(self) -> bool:
        """Another model has counted and read its book: the present model must do so again."""
        return self.book is not None and self.conversation is None

    @property
    def num_talk(self) -> int:
        """Tokens of the shown conversation, as far as the model was asked about the open book."""
        exchanges = self.exchanges
        if not exchanges or self.book is None:
            return 0
        last = exchanges[-1]
        if last.digest != self.digest:  # no question since the library changed: use the count from its opening
            fit, end = self.uploads.fit, self.dialogue.tip if self.dialogue else ""
            return fit.talks.get(end, fit.talk) if fit else 0
        finished = last.finished  # the next prompt has its answer without the thought
        return max(0, finished.prompt_tokens + finished.stats.answer_tokens - self.book.num_opening)

    @property
    def where(self) -> Loaded | None:
        """What was loaded of the open book for the current answer, else for the last one shown.

        None: there was no question about this book.
        """
        node = self.last_node
        if node is None:
            return None
        if (known := self.loads.get(node.id)) is not None:
            return known
        if node.exchange is None or node.exchange.digest != self.digest:
            return None
        return Loaded(False, kept=False)

    def baseline_for(self, loaded: Loaded) -> "array[float] | None":
        """The baseline weights, if they were measured with the budget of an answer."""
        return self.baseline if loaded.budget in (0, self.baseline_budget) else None

    @property
    def last_node(self) -> "Node | None":
        """The end of the shown branch: the current answer, else the last one."""
        if self.dialogue is None or not self.fits:
            return None
        path = self.dialogue.path
        if path and self.loads.get(path[-1].id) is not None:
            return path[-1]
        return next((node for node in reversed(path) if node.exchange is not None), None)

    @property
    def dialogue_id(self) -> str:
        """The shown conversation; "" before its first question."""
        dialogue = self.dialogue
        return dialogue.id if dialogue else ""

    @property
    def lacks_book(self) -> bool:
        """No book is open that the conversation could be about."""
        return self.book is None or not self.fits

    @property
    def can_ask(self) -> bool:
        """A question need not wait for a text that is still being extracted or recognised."""
        return not (self.lacks_book and self.uploads.takes_text)

    @property
    def is_reading(self) -> bool:
        """Extracting, counting, waiting or reading. A page without a book waits for none, whatever loads."""
        uploads = self.uploads
        something = uploads.library.books or uploads.pending or self.book
        to_open = any(one.stage in TO_OPEN and not one.stop.is_set() for one in uploads.pending)
        return uploads.extracting or to_open or (self.doing is not None and bool(something))

    @property
    def is_read(self) -> bool:
        """The whole book was read: all its tokens but the last are in the cache."""
        return self.book is not None and self.num_read >= self.book.num_opening - 1


class NoBook(CoreError):
    """A question without a book."""

    def __init__(self, *, too_long: bool = False) -> None:
        if too_long:
            super().__init__(
                "The book is too long to be read at once.", hint="Tick what the model is to read, then ask."
            )
        else:
            super().__init__("There is no book yet.", hint="Drop a file or choose a sample, then ask.")


class OtherBook(CoreError):
    """A question in a conversation about a book that is not open."""

    def __init__(self, title: str) -> None:
        super().__init__(
            f"This conversation is about {title}, which is not open.",
            hint="Open that book again, or begin a new conversation.",
        )


class Sessions:
    """All open pages, by id.

    Args:
        is_busy: whether work for a session runs or waits; such a session is not forgotten.
    """

    def __init__(self, is_busy: Callable[[Session], bool] = lambda _: False, kept: KeptDocuments | None = None) -> None:
        self.files, self._kept = OpenFiles(), kept or KeptDocuments()
        self._is_busy = is_busy
        self._by_id: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def enter(self, session_id: str) -> Session:
        """The page's session before a reload, else a new one, under the page's own id if that is valid."""
        with self._lock:
            if session_id in self._by_id:
                self._by_id.move_to_end(session_id)
                return self._by_id[session_id]
            new_id = session_id if ID.fullmatch(session_id) else secrets.token_hex(16)
            session = Session(new_id, files=self.files, kept=self._kept)
            self._by_id[session.id] = session
            idle = (old for old, one in self._by_id.items() if one is not session and not self._is_busy(one))
            for old in list(islice(idle, max(0, len(self._by_id) - MOST_SESSIONS))):
                del self._by_id[old]
                self.files.retain(old, set())
            return session

    def get(self, session_id: str) -> Session:
        """The session with an id.

        Raises:
            CoreError: the page belongs to an earlier start of the program.
        """
        session = self.find(session_id)
        if session is None:
            told = "This page is older than the running reader and its book is gone."
            raise CoreError(told, hint="Open the book again, then ask.")
        return session

    def all(self) -> list[Session]:
        """Every open page's."""
        with self._lock:
            return list(self._by_id.values())

    def find(self, session_id: str) -> Session | None:
        """The session with an id, if there is one."""
        with self._lock:
            if session_id in self._by_id:
                self._by_id.move_to_end(session_id)
            return self._by_id.get(session_id)
