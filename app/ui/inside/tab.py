"""The tab "Inside": how the newest answer or race was made; redrawn while it is written and the tab is visible."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.runtime.sessions import Session
from app.runtime.trace import Trace
from app.runtime.worker import EngineWorker
from app.ui.header import tab_heading
from app.ui.inside.view import EMPTY, inside
from app.ui.updates import Updates
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


def chosen(session: Session, found: list[Subject], key: str | None) -> Subject | None:
    """The reader's choice, else the newest: the answer, or the race's contender."""
    by_key = {subject.key: subject for subject in found}
    wanted = key
    if wanted not in by_key:
        contender = session.race.contender if session.race else None
        wanted = contender.method if session.newest == "race" and contender else ANSWER
    return by_key.get(wanted or "", found[0] if found else None)


def beside(session: Session, subject: Subject) -> list[Trace]:
    """Answers of other methods in the race, to compare times."""
    lanes = session.race.lanes if session.race else ()
    return [lane for lane in lanes if lane.method != subject.trace.method and lane.records]


def state_of(session: Session, found: list[Subject], subject: Subject) -> tuple[object, ...]:
    """Changes with everything that is drawn; begins with the newest subject."""
    trace, ended = subject.trace, session.race is not None and session.race.ended
    newest = (session.newest, id(session.trace), id(session.race))
    return (newest, subject.key, len(found), len(trace.points), trace.finished is not None, ended)


class InsideHandlers:
    """One method per event of the tab."""

    def __init__(self, worker: EngineWorker, picker: gr.Radio, view: gr.HTML, timer: gr.Timer) -> None:
        self._worker, self._picker, self._view, self._timer = worker, picker, view, timer

    def enter(self, session_id: str) -> Updates:
        """The tab has become visible: draw the newest subject, and follow it."""
        return self.pick(session_id, None) | {self._timer: gr.Timer(active=True)}

    def pick(self, session_id: str, key: str | None) -> Updates:
        """The reader chose a subject."""
        session = self._worker.sessions.find(session_id)
        if session is not None:
            session.inside = ()
        return self.draw(session_id, key)

    def draw(self, session_id: str, key: str | None) -> Updates:
        """Draw the choice, or the newest subject if a new one has begun; no updates if nothing changed."""
        session = self._worker.sessions.find(session_id)
        found = subjects(session) if session else []
        subject = chosen(session, found, key) if session else None
        if session is None or subject is None:
            return {self._view: EMPTY, self._picker: gr.update(choices=[], value=None, visible=False)}
        state = state_of(session, found, subject)
        if session.inside and session.inside[0] != state[0]:
            subject = chosen(session, found, None) or subject
            state = state_of(session, found, subject)
        if session.inside == state:
            return {self._view: gr.skip()}
        session.inside, trace = state, subject.trace
        choices = [(one.label, one.key) for one in found]
        return {
            self._view: inside(trace, beside(session, subject), tables=trace.finished is not None),
            self._picker: gr.update(choices=choices, value=subject.key, visible=len(found) > 1),
        }


def build_inside_tab(
    worker: EngineWorker, session: gr.Textbox, timer: gr.Timer, at_once: dict[str, Any], *, offered: bool = True
) -> None:
    """The tab's components and events. `timer` ticks while the tab is visible; `at_once`: how quick events run."""
    with gr.Tab("Inside", id="inside", elem_id="inside-tab", visible=offered) as tab, gr.Column(elem_id="inside"):
        tab_heading("Inside")
        picker = gr.Radio([], show_label=False, label="Show", visible=False, elem_id="inside-picker")
        view = gr.HTML(EMPTY, elem_id="inside-view")
    handlers = InsideHandlers(worker, picker, view, timer)
    tab.select(handlers.enter, session, [view, picker, timer], api_name="inside", **at_once)
    picker.input(handlers.pick, [session, picker], [view, picker], api_visibility="private", **at_once)
    timer.tick(handlers.draw, [session, picker], [view, picker], api_visibility="private", **at_once)
