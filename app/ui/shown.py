"""What the page of a session shows beside its book and its conversation: kept as long as the session."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from app.runtime.sessions import Session
from core.errors import CoreError

if TYPE_CHECKING:
    from app.ui.race.view import RaceView
    from app.ui.reading.live_strip import Writing

Place = Literal["read", "library"]  # where a page of a document is shown


@dataclass(slots=True)
class Shown:
    """The state of one page."""

    problem: CoreError | None = None  # why the last act was refused
    draft: tuple[int, str] = (0, "")  # a text for the question box, and its number: each is put there once
    writing: "Writing | None" = None  # the answer that waits or is written
    leaves: dict[Place, str] = field(default_factory=dict)  # an opened page of a document, as HTML
    num_opened: dict[Place, int] = field(default_factory=dict)  # pages asked for: only the newest is shown
    leaf_is_of_strip: bool = False  # the page beside the conversation was opened from the strip of an answer
    ticked: str = ""  # the parts ticked of a library that is too long
    found: str = ""  # the hits of Find, as HTML
    race: "RaceView | None" = None  # a race that waits, runs or failed
    inside: str = ""  # what the tab Inside shows; "": the newest
    brought: str = ""  # the name of a model that was added to the list
    caught_up: object = None  # the model for which its book was read again

    def put(self, text: str) -> None:
        """Put a text into the question box, once."""
        self.draft = (self.draft[0] + 1, text)

    def close(self, place: Place) -> None:
        """Close an opened page; one that is still being drawn is not shown."""
        self.num_opened[place] = self.num_opened.get(place, 0) + 1
        self.leaves.pop(place, None)


def shown_of(session: Session) -> Shown:
    """What a session's page shows."""
    if not isinstance(session.shown, Shown):
        session.shown = Shown()
    return session.shown
