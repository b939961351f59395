"""The acts of the tab Race."""

from collections.abc import Sequence

from pydantic import BaseModel

from app.runtime.sessions import Session
from app.ui.acts import Act, Values, follow
from app.ui.race.view import RaceView
from app.ui.reading.settings import SettingsForm
from app.ui.shown import shown_of
from app.ui.site import Site
from core.config import GenerationConfig
from core.decoding.registry import METHODS
from core.errors import CoreError, InvalidSetting

MOST_IN_TIME = 100_000  # tokens: with a time budget only the clock ends a lane


class RaceForm(BaseModel):
    """The settings of a race, as they come from a browser."""

    question: str
    lanes: list[str]
    seconds: float = 0  # of every lane's clock; 0: no budget
    limit: float | None = None
    temperature: float | None = 0


def race_configs(
    lanes: Sequence[str], seconds: float | None, limit: float | None, temperature: float | None
) -> list[GenerationConfig]:
    """The settings of every lane, in the order of METHODS. Raises InvalidSetting."""
    chosen = [name for name in METHODS if name in lanes]
    if len(chosen) < 2:
        raise InvalidSetting("A race needs two lanes.", hint="Choose at least two methods.")
    most = MOST_IN_TIME if seconds else limit
    return [
        SettingsForm(method=name, temperature=temperature, top_p=1.0, max_new_tokens=most).config() for name in chosen
    ]


def race(site: Site, session: Session, _detail: str, values: Values) -> None:
    """Run a race. One that was begun before ends."""
    form, shown, view = RaceForm(**values), shown_of(session), RaceView(waiting=True)
    if shown.race is not None and shown.race.running:
        return  # pressed twice
    shown.race = view
    try:
        configs = race_configs(form.lanes, form.seconds, form.limit, form.temperature)
        events = site.worker.race(session.id, form.question, configs, form.seconds or None)
    except CoreError as error:
        view.fail(error, session.book)
        return

    def ended() -> None:
        view.end()
        if shown.race is view and not view.failed:
            shown.race = None  # from now on the race itself is shown

    follow(session, events, lambda event: view.apply([event]), lambda error: view.fail(error, session.book), ended)


ACTS: dict[str, Act] = {"race": race, "stop-race": lambda site, session, *_: site.worker.stop_race(session.id)}
