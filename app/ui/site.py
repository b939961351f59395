"""What all pages of one program share, and the drawing of one of them: part by part, each only when its key changes."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.context.samples import Sample
from app.runtime.conversation_actions import Conversing
from app.runtime.downloads import Downloads
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker

if TYPE_CHECKING:
    from app.ui.models.offer import ModelOffer
    from app.ui.models.rows import ModelRow, ModelSource


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
    offer: "ModelOffer" = field(init=False)

    def __post_init__(self) -> None:
        from app.ui.models.offer import ModelOffer

        self.conversing = Conversing(self.worker)
        self.offer = ModelOffer(self.worker, self.source, self.downloads)


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


class Drawer:
    """Draws the state of one session for one page, which shows one tab."""

    def __init__(self, site: Site, session: Session, tab: str, parts: tuple[Part, ...]) -> None:
        self._site, self._session = site, session
        self._parts = [part for part in parts if part.tab in ("", tab)]
        self._drawn: dict[str, tuple[object, float, Any]] = {}  # by part: key, time, value
        self._aside: set[str] = set()  # parts that a thread is drawing

    def state(self) -> dict[str, Any]:
        """All parts now."""
        found: dict[str, Any] = {}
        for part in self._parts:
            value = self._value(part)
            if part.name[-1] in ":.":
                found |= {f"{part.name}{name}": one for name, one in value.items()}
            elif value is not None:
                found[part.name] = value
        return found

    def _value(self, part: Part) -> Any:
        key = part.key(self._site, self._session) if part.key else None
        now, (before, drawn, value) = time.monotonic(), self._drawn.get(part.name, (None, -part.rest - 1, None))
        due = part.name not in self._drawn or now - drawn >= part.rest
        if due and not (part.key and part.name in self._drawn and key == before):
            if part.aside:
                self._draw_aside(part, key)
            else:
                self._draw(part, key)
            _, _, value = self._drawn.get(part.name, (None, 0.0, None))
        return value

    def _draw(self, part: Part, key: object) -> None:
        _, _, value = self._drawn.get(part.name, (None, 0.0, None))
        try:
            value = part.draw(self._site, self._session)
        except Exception:  # one part must not end the stream of all others
            log.exception("the part %s could not be drawn", part.name)
        self._drawn[part.name] = key, time.monotonic(), value

    def _draw_aside(self, part: Part, key: object) -> None:
        """Draw in a thread; what takes long is there at a later look."""
        if part.name in self._aside:
            return

        def draw() -> None:
            self._draw(part, key)
            self._aside.discard(part.name)
            self._session.changed()

        self._aside.add(part.name)
        thread = threading.Thread(target=draw, name=part.name, daemon=True)
        thread.start()
        thread.join(ASIDE_SECONDS)
