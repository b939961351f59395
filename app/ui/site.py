"""What all pages of one program share, and the drawing of one of them: part by part, each only when its key changes."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.context.samples import Sample
from app.runtime.conversation_actions import Conversing
from app.runtime.downloads import Downloads
from app.runtime.error_text import EngineFault
from app.runtime.events import Pause
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from core.errors import CoreError

if TYPE_CHECKING:
    from app.ui.models.rows import ModelRow, ModelSource

Parts = Mapping[str, Any]  # JSON values by name; never None
GROWN = "+"  # the key of what was added to a text or a list


def changes(before: Parts, after: Parts) -> dict[str, Any]:
    """What turns one state into another: new values by name, `{"+": what was added}` where it only grew, None: gone."""
    found: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if old is None or type(old) is not type(value):
            found[name] = value
        elif old != value:
            grew = isinstance(value, str | list) and len(old) and value[: len(old)] == old
            found[name] = {GROWN: value[len(old) :]} if grew else value
    return found


class Is:
    """A value in a key that is compared by what it is, not by what it holds; it lives as long as the key."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


log = logging.getLogger(__name__)

ASIDE_SECONDS = 0.2  # after which the others go on without a part that is drawn aside


@dataclass(slots=True, eq=False)
class Site:
    """The program behind the pages."""

    worker: EngineWorker
    samples: tuple[Sample, ...] = ()
    source: "ModelSource | None" = None  # how other models are loaded; None: the page offers none
    downloads: Downloads = field(default_factory=Downloads)
    elsewhere: bool = False  # the model runs on a server, so what belongs to models of this machine is not offered
    note: str = ""  # one line about the model, under the question box, until it is loaded
    rows: "tuple[ModelRow, ...]" = ()  # the models, as last seen while none was being loaded
    conversing: Conversing = field(init=False)

    def __post_init__(self) -> None:
        self.conversing = Conversing(self.worker)


def standing(site: Site, session: Session) -> object:
    """The key of parts that are slow to draw: it changes with model, library, book, conversation and race."""
    uploads, race, writing = session.uploads, session.race, session.writing
    return (
        *map(Is, (site.worker.state, session.book, session.dialogue, uploads.library, uploads.fit, race)),
        *(session.digest, session.fits, session.is_read, session.displaced),
        *(uploads.behind, uploads.extracting, uploads.recognising, bool(uploads.pending), race and race.ended),
        writing and writing.parent,
    )


def standing_and(more: Callable[[Site, Session], object]) -> Callable[[Site, Session], object]:
    """The key of a part that something else changes, too."""
    return lambda site, session: (standing(site, session), more(site, session))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One part of a page.

    Args:
        draw: its value; None: the page has nothing there now. The entries of a dict are parts of their
            own, if the name ends with a colon or a dot.
        key: what it is drawn from, where that is cheaper to compare than to draw.
        tab: it is drawn only for pages that show this tab; "": for all.
        rest: least seconds between two drawings.
        aside: it may take seconds the first time, which the other parts do not wait for.
    """

    name: str
    draw: Callable[[Site, Session], Any]
    key: Callable[[Site, Session], object] | None = None
    tab: str = ""
    rest: float = 0.0
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """A part as it was drawn last."""

    key: object
    seconds: float  # when
    version: int  # of the session
    value: Any


class Drawer:
    """Draws the state of one session for one page, which shows one tab."""

    def __init__(self, site: Site, session: Session, tab: str, parts: tuple[Part, ...]) -> None:
        self._site, self._session = site, session
        self._parts = [part for part in parts if part.tab in ("", tab)]
        self._drawn: dict[str, Drawn] = {}
        self._aside: set[str] = set()  # parts that a thread is drawing
        self.is_late = False  # something has changed that a part did not show yet, because it rests

    def state(self) -> dict[str, Any]:
        """All parts now."""
        found: dict[str, Any] = {}
        self.is_late = False
        for part in self._parts:
            value = self._value(part)
            if part.name[-1] in ":.":
                found |= {f"{part.name}{name}": one for name, one in (value or {}).items()}
            elif value is not None:
                found[part.name] = value
        return found

    def _value(self, part: Part) -> Any:
        before = self._drawn.get(part.name)
        if before is not None and time.monotonic() - before.seconds < part.rest:
            self.is_late = self.is_late or before.version != self._session.version
            return before.value
        try:
            key = part.key and part.key(self._site, self._session)
        except Exception:  # the engine's thread changes what it looks at: drawing tells whether it is more than that
            key = object()
        if before is not None and part.key and key == before.key:
            return before.value
        (self._draw_aside if part.aside else self._draw)(part, key)
        drawn = self._drawn.get(part.name)
        return drawn.value if drawn else None

    def _draw(self, part: Part, key: object) -> None:
        before, version = self._drawn.get(part.name), self._session.version
        try:
            value = part.draw(self._site, self._session)
        except Exception:  # one part must not end the stream of all others
            log.exception("the part %s could not be drawn", part.name)
            key, value = object(), before.value if before else None  # and is tried again
        self._drawn[part.name] = Drawn(key, time.monotonic(), version, value)

    def _draw_aside(self, part: Part, key: object) -> None:
        """Draw in a thread; what takes long is there at a later look."""
        if part.name in self._aside:
            return

        def draw() -> None:
            self._draw(part, key)
            self._aside.discard(part.name)
            self._session.changed()

        self._aside.add(part.name)
        thread = threading.Thread(target=draw, name=part.name, daemon=False)  # torch must not be left amid its work
        thread.start()
        thread.join(ASIDE_SECONDS)


# -------------------- work beside a page


def follow(
    session: Session,
    events: Iterable[Any],
    apply: Callable[[Any], object] = lambda _: None,
    failed: Callable[[CoreError], object] | None = None,
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Go through a stream of events in a thread of its own, and let the page show what they change.

    Args:
        failed: told of an error; without it the library shows it.
    """

    def run() -> None:
        try:
            for event in events:
                if not isinstance(event, Pause):
                    apply(event)
                    session.changed()
        except Exception as error:  # a thread that died in silence would look like work that goes on
            if not isinstance(error, CoreError):
                log.exception("a stream of events failed")
                error = EngineFault(error)
            if failed is not None:
                failed(error)
            else:
                session.uploads.error = error
        finally:
            ended()
            session.changed()

    threading.Thread(target=run, name="follow", daemon=True).start()
