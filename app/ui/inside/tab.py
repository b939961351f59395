"""The tab "Inside": how the newest answer or race was made; it moves along while the answer is written."""

from dataclasses import dataclass

import gradio as gr

from app.runtime.sessions import Session
from app.runtime.trace import Trace
from app.ui import render
from app.ui.acts import Act, Values
from app.ui.inside.view import EMPTY, inside
from app.ui.pane import pane, tab_heading
from app.ui.shown import shown_of
from app.ui.site import Part, Site
from app.ui.state import Is
from core.decoding.registry import method_label

INTERVAL_SECONDS = 0.5  # drawing takes the engine's process some milliseconds
ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Subject:
    """Something the tab can show."""

    key: str  # ANSWER, or the method of a lane of the race
    label: str
    trace: Trace


def subjects(session: Session) -> list[Subject]:
    """All subjects: the newest answer, the lanes of the newest race."""
    found = [Subject(ANSWER, "Answer", session.trace)] if session.trace and session.trace.records else []
    lanes = session.race.lanes if session.race else ()
    return found + [Subject(one.method, f"Race: {method_label(one.method)}", one) for one in lanes if one.records]


def chosen(session: Session) -> Subject | None:
    """The reader's choice, as long as nothing newer has begun; else the newest: the answer, or the race's contender."""
    found = subjects(session)
    by_key = {subject.key: subject for subject in found}
    made_for, _, wanted = shown_of(session).inside.partition(" ")
    if made_for != _newest(session) or wanted not in by_key:
        contender = session.race.contender if session.race else None
        wanted = contender.method if session.newest == "race" and contender else ANSWER
    return by_key.get(wanted, found[0] if found else None)


def beside(session: Session, subject: Subject) -> list[Trace]:
    """Answers of other methods in the race, to compare times."""
    lanes = session.race.lanes if session.race else ()
    return [lane for lane in lanes if lane.method != subject.trace.method and lane.records]


def _newest(session: Session) -> str:
    """Changes when another answer or race begins."""
    return f"{session.newest}-{id(session.trace)}-{id(session.race)}"


def _key(_site: Site, session: Session) -> object:
    subject = chosen(session)
    if subject is None:
        return None
    trace, ended = subject.trace, session.race is not None and session.race.ended
    return (Is(trace), len(subjects(session)), len(trace.points), trace.finished is not None, ended)


def view(session: Session) -> str:
    """The figures, charts and words of the chosen subject."""
    subject = chosen(session)
    if subject is None:
        return EMPTY
    trace = subject.trace
    return inside(trace, beside(session, subject), tables=trace.finished is not None)


def picker(session: Session) -> str:
    """The choice among several subjects."""
    found, now = subjects(session), chosen(session)
    if len(found) < 2 or now is None:
        return ""
    rows = "".join(
        f'<label><input type="radio" name="inside" data-act-change="inside:{one.key}"'
        f"{' checked' if one.key == now.key else ''}><span>{render.escape(one.label)}</span></label>"
        for one in found
    )
    return f'<fieldset class="choice"><legend class="unseen">Show</legend><div class="options">{rows}</div></fieldset>'


def pick(_site: Site, session: Session, key: str, _values: Values) -> None:
    """The reader chose a subject."""
    shown_of(session).inside = f"{_newest(session)} {key}"


ACTS: dict[str, Act] = {"inside": pick}
PARTS = (
    Part("inside", lambda _, session: view(session), _key, tab="inside", rest=INTERVAL_SECONDS),
    Part("inside-picker", lambda _, session: picker(session), tab="inside"),
)


def build_tab() -> None:
    """The tab's places."""
    with gr.Tab("Inside", id="inside", elem_id="inside-tab"), gr.Column(elem_id="inside"):
        tab_heading("Inside")
        pane("inside-picker", "inside-picker")
        pane("inside", "inside-view", EMPTY)
