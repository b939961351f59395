"""The tab "Race": its places, and what they show. One question, several methods, one reading."""

from typing import Any

import gradio as gr
from pydantic import BaseModel

from app.context.samples import named
from app.runtime.events import Ready
from app.runtime.race_job import first_lanes
from app.runtime.sessions import Racing, Session
from app.ui import render
from app.ui.acts import Act, Values
from app.ui.pane import MOUNTED, pane, static, tab_heading
from app.ui.race.stage import opening
from app.ui.race.view import AT_FIRST, drawn_points, race
from app.ui.reading.settings import SettingsForm
from app.ui.site import Is, Part, Site, follow, standing
from core.config import GenerationConfig
from core.decoding.registry import METHODS
from core.errors import CoreError, InvalidSetting

NUM_PROMPTS = 3
LENGTHS = [("Whole answer", 0), ("10 s each", 10), ("30 s each", 30)]
DEFAULTS = GenerationConfig()
SETUP = """<form id="race-setup" data-race novalidate><div id="race-ask">
<textarea rows="1" placeholder="A question about the book, for all lanes" aria-label="Question" dir="auto"></textarea>
<button type="submit" id="race-start">Start</button>
<button type="button" id="race-stop" data-act="stop-race">Stop</button>
<button type="button" id="race-present" data-present>Present</button></div>
<div id="race-prompts" data-part="race-prompts"></div>
<div id="race-options">
<fieldset class="choice" id="race-lanes"><legend>Lanes</legend><div data-part="race-lanes"></div></fieldset>
{fields}</div><p id="race-expected" class="quiet">Lanes take turns, so that their times add up.</p></form>"""
SAVES = "".join(
    render.button(label, also=f'id="save-{kind}" data-save="race:{kind}"')
    for kind, label in (("card", "Save proof card"), ("json", "JSON"))
)
KEYS = (
    '<p class="keys"><span><kbd>Space</kbd> next, stop</span><span><kbd>R</kbd> the race that ran</span>'
    "<span><kbd>1</kbd>–<kbd>3</kbd> question</span><span><kbd>Esc</kbd> leave</span></p>"
)


def usual_lanes(site: Site, session: Session) -> tuple[str, ...]:
    """The lanes of a race for which none were chosen."""
    state, name = site.worker.state, session.book.document.name if session.book else ""
    return first_lanes(state.info, named(site.samples, name).fastest) if isinstance(state, Ready) else AT_FIRST


def lane_boxes(site: Site, session: Session) -> str:
    """Every possible lane; what the reader ticks stays until other lanes are the usual ones."""
    state, first = site.worker.state, usual_lanes(site, session)
    has_draft = state.info.has_draft if isinstance(state, Ready) else True
    boxes = "".join(
        f'<label><input type="checkbox" name="lane" value="{one.name}" data-keep'
        f"{' checked' if one.name in first else ''}><span>{one.short_label}{'' if one.exact else ' · not exact'}</span>"
        "</label>"
        for one in METHODS.values()
        if has_draft or not one.needs_draft
    )
    return f'<div class="options" id="lanes-{has_draft}-{"-".join(first)}">{boxes}</div>'


def prompts(site: Site, session: Session) -> tuple[str, ...]:
    """Questions about the open book whose gain was measured."""
    return named(site.samples, session.book.document.name).raced[:NUM_PROMPTS] if session.book else ()


def proposal(site: Site, session: Session) -> str:
    """The question that stands in the box until the reader writes another: the first of these, or the last asked."""
    asked = [exchange.question for exchange in session.exchanges]
    return next(iter((*prompts(site, session), *asked[::-1])), "")


def racing_of(session: Session) -> Racing:
    """The race that waits or runs, or that failed with the open book; else the newest."""
    found = session.racing
    return Racing(session.race) if found is None or (found.error and found.about is not session.book) else found


def lanes(session: Session) -> dict[str, Any]:
    """Texts and clocks of the lanes while they race: they only grow, and the script draws them."""
    race = session.race
    if race is None or race.ended or not racing_of(session).running:
        return {}
    found: dict[str, Any] = {}
    for number, lane in enumerate(race.lanes):
        found |= {f"{number}.text": lane.text, f"{number}.points": drawn_points(lane.points)}
    return found


def saves(session: Session) -> str:
    """The buttons that save the proof card and the figures of a finished race."""
    return SAVES if racing_of(session).finished else ""


def _board_key(site: Site, session: Session) -> object:
    return object() if racing_of(session).running else (standing(site, session), Is(session.racing))


MOST_IN_TIME = 100_000  # tokens: with a time budget only the clock ends a lane


class RaceForm(BaseModel):
    """The settings of a race, as they come from a browser."""

    question: str
    lanes: list[str]
    seconds: float = 0  # of every lane's clock; 0: no budget
    limit: float | None = None
    temperature: float | None = 0

    def configs(self) -> list[GenerationConfig]:
        """The settings of every lane, in the order of METHODS. Raises InvalidSetting."""
        chosen = [name for name in METHODS if name in self.lanes]
        if len(chosen) < 2:
            raise InvalidSetting("A race needs two lanes.", hint="Choose at least two methods.")
        heat, most = self.temperature, MOST_IN_TIME if self.seconds else self.limit
        return [SettingsForm(method=name, temperature=heat, top_p=1.0, max_new_tokens=most).config() for name in chosen]


def start(site: Site, session: Session, _detail: str, values: Values) -> None:
    """Run a race. One that was begun before ends."""
    form, mine = RaceForm(**values), Racing(waits=True)
    if session.racing is not None and session.racing.running:
        return  # pressed twice

    def failed(error: CoreError) -> None:
        mine.error, mine.about = error, session.book

    def ended() -> None:
        mine.waits = False
        if session.racing is mine and mine.error is None:
            session.racing = None  # from now on the race itself is shown

    session.racing = mine
    try:
        events = site.worker.race(session.id, form.question, form.configs(), form.seconds or None)
    except CoreError as error:
        return failed(error)
    follow(session, events, mine.apply, failed, ended)


ACTS: dict[str, Act] = {
    "race": start,
    "stop-race": lambda site, session, *_: site.worker.jobs.cancel(session.id, "race"),
}


PARTS = (
    Part("race-lanes", lane_boxes, standing, tab="race"),
    Part(
        "race-prompts", lambda *of: "".join(map(render.button, map(render.escape, prompts(*of)))), standing, tab="race"
    ),
    Part("race-proposal", proposal, standing, tab="race"),
    Part("race-opening", lambda _, session: opening(session.book), standing, tab="race"),
    Part(
        "race",
        lambda site, session: race(racing_of(session), usual_lanes(site, session)),
        _board_key,
        tab="race",
        rest=0.1,
    ),
    Part("lane:", lambda _, session: lanes(session), tab="race"),
    Part("race-save", lambda _, session: saves(session), tab="race"),
)


def build_tab() -> None:
    """The tab's places."""
    lengths = [(label, f'name="seconds" value="{value}"') for label, value in LENGTHS]
    fields = (
        render.radios("<legend>Until</legend>", lengths, value=lengths[0][1])
        + render.number("Most tokens", f'name="limit" min="1" value="{DEFAULTS.max_new_tokens}"')
        + render.number("Temperature", 'name="temperature" min="0" max="2" step="0.1" value="0"')
    )
    with gr.Tab("Race", id="race", elem_id="race-tab"), gr.Column(elem_id="race"):
        tab_heading("Race")
        pane("race-opening", "race-opening", opening(None))
        static(SETUP.format(fields=fields), "race-form", MOUNTED)
        pane("race", "race-board", race(Racing()))
        pane("race-save", "race-save")
        static(KEYS, "race-keys")
