"""A page without a browser: acts as its script sends them, and its state as the stream draws it."""

import itertools
import re
import threading
from html import unescape
from typing import Any

from app.markdown import PLACE
from app.runtime.worker import EngineWorker
from app.ui.acts import ActRequest, Acts
from app.ui.page import ACTS, PARTS
from app.ui.site import GROWN, Drawer, Parts, Site
from core.decoding.registry import FASTEST
from tests.app.fakes import wait_for

IDS = itertools.count()
EVIL = '"><img/src=x/onerror="alert(1)">'  # one word, for an engine that writes word by word
MARK = re.compile(f"{PLACE}[0-9]+{PLACE}")  # where the page inserts something


def applied(before: Parts, change: Parts) -> dict[str, Any]:
    """The state after a change: the rule of the page's script (`assets/static/js/stream.js`)."""
    after = dict(before)
    for name, value in change.items():
        if value is None:
            after.pop(name, None)
        elif isinstance(value, dict) and value.keys() == {GROWN}:
            after[name] = after[name] + value[GROWN]
        else:
            after[name] = value
    return after


def text_of(html: str) -> str:
    """What a reader sees of it."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def act_id() -> str:
    """An id that no act has had."""
    return f"act-{next(IDS):020}"


def followed() -> bool:
    """Whether a page follows something that goes on."""
    return any(thread.name == "follow" for thread in threading.enumerate())


class PageOf:
    """The page of one session."""

    def __init__(self, worker: EngineWorker, session_id: str = "", **site: Any) -> None:
        self.site = site["site"] if "site" in site else Site(worker, **site)
        self.worker, self.session = worker, worker.sessions.enter(session_id)
        self.acts = Acts(self.site, *ACTS)

    def does(self, act: str, **values: Any) -> bool:
        """Do an act; whether it was accepted."""
        return self.acts.do(ActRequest(session=self.session.id, id=act_id(), act=act, values=values))

    def asks(self, question: str, **settings: Any) -> None:
        """Ask, and wait until the answer is over."""
        self.begins(question, **settings)
        self.rests()

    def begins(self, question: str, **settings: Any) -> bool:
        """Ask; the answer is on its way."""
        return self.does("ask", question=question, settings={"method": FASTEST, "max_new_tokens": 64, **settings})

    def rests(self) -> None:
        """Wait until no answer and no reading goes on, and all that followed them has ended."""
        wait_for(lambda: self.session.writing is None and not self.worker.is_busy(self.session) and not followed())

    def rests_after_race(self) -> None:
        wait_for(lambda: not (self.session.racing and self.session.racing.running) and not followed())

    @property
    def key(self) -> str:
        """The first book's."""
        return self.session.uploads.library.books[0].key

    @property
    def problem(self) -> str:
        """Why the last act was refused."""
        return self.session.problem.problem if self.session.problem else ""

    def state(self, tab: str = "read") -> dict[str, Any]:
        """All parts of a page that shows this tab."""
        return Drawer(self.site, self.session, tab, PARTS).state()

    def exchanges(self) -> list[dict[str, Any]]:
        state = self.state()
        return [state[f"exchange:{name}"] for name in state["chat"]["order"]]

    @property
    def ids(self) -> list[str]:
        return [node.id for node in self.session.dialogue.path] if self.session.dialogue else []

    @property
    def texts(self) -> list[str]:
        """Questions and answers that are shown, in order."""
        found = [(one["question"], MARK.sub("", one.get("text", one.get("notice", "")))) for one in self.exchanges()]
        return list(itertools.chain.from_iterable(found))
