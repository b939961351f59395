"""The tab "Race": its components and event handlers. One question, several methods, one reading."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from app import formats
from app.context.open_book import Book
from app.context.samples import Sample, fastest_method, race_questions
from app.runtime.events import Ready
from app.runtime.race_job import first_lanes
from app.runtime.sessions import RaceBoard, Session
from app.runtime.throttle import INTERVAL_SECONDS, in_batches
from app.runtime.trace import Race
from app.runtime.versions import versions
from app.runtime.worker import EngineWorker
from app.ui.race.card import card_html
from app.ui.race.stage import opening
from app.ui.race.view import AT_FIRST, RaceView
from app.ui.reading.settings import SettingsForm
from app.ui.updates import Updates, lasting
from core.config import GenerationConfig
from core.decoding.registry import METHODS
from core.errors import CoreError, InvalidSetting

NUM_PROMPTS = 3
COUNTING_SECONDS = 0.5  # between two looks at a book that is on its way
MOST_COUNTING_SECONDS = 600.0  # for the longest file to be extracted and counted
LEAST_COUNTING_SECONDS = 6  # a click on a book, and then on the tab: the second may arrive first
WHOLE_ANSWER = 0  # seconds: no budget
LENGTHS = [("Whole answer", WHOLE_ANSWER), ("10 s each", 10), ("30 s each", 30)]
MOST_IN_TIME = 100_000  # tokens: with a time budget only the clock ends a lane
MOST_WAIT_SECONDS = 30.0  # enough for a pass over a long book on a slow machine
DEFAULTS = GenerationConfig()


@dataclass(frozen=True, slots=True, eq=False)
class RaceParts:
    """The components that events change."""

    question: gr.Textbox
    proposal: gr.Textbox  # a question to start with, used unless the reader has typed one
    start: gr.Button
    stop: gr.Button
    prompts: tuple[gr.Button, ...]
    opening: gr.HTML  # the book, as presenter mode begins
    lanes: gr.CheckboxGroup
    length: gr.Radio
    limit: gr.Number
    temperature: gr.Number
    expected: gr.HTML  # how long the race will take
    board: gr.HTML
    saves: tuple[gr.Button, gr.Button, gr.Button]
    saved: gr.Textbox  # a report on its way to the browser's script

    @property
    def of_entry(self) -> list[gr.blocks.Block]:
        """Changed when the tab becomes visible."""
        return [self.proposal, *self.prompts, self.opening, *self.of_race]

    @property
    def of_race(self) -> list[gr.blocks.Block]:
        """Changed by a race."""
        return [self.board, self.start, self.stop, *self.saves]

    @property
    def settings(self) -> list[gr.components.Component]:
        """The inputs of a race, in the order of `RaceHandlers.race`."""
        return [self.question, self.lanes, self.length, self.limit, self.temperature]


class RaceHandlers:
    """One method per event of the tab."""

    def __init__(self, worker: EngineWorker, samples: tuple[Sample, ...], parts: RaceParts) -> None:
        self._worker, self._samples, self.parts = worker, samples, parts

    @lasting
    def reload(self, session_id: str) -> Iterator[Updates]:
        """The page was reloaded: wait for the end of a race that the earlier page followed, and show it."""
        yield {self.parts.proposal: gr.skip()}
        session = self._worker.sessions.find(session_id)
        if session and session.race and not session.race.ended and session.race_view is None:
            wait_until(lambda: session.race is None or session.race.ended)
            yield self.enter(session_id)

    @lasting
    def select(self, session_id: str) -> Iterator[Updates]:
        """The tab was opened, and shows what there is: show it again when a book on its way was counted."""
        session = self._worker.sessions.find(session_id)
        yield {self.parts.proposal: gr.skip()}
        if session is None:
            return
        shown, opened = session.book, time.monotonic()
        while session.book is shown and (waited := time.monotonic() - opened) < MOST_COUNTING_SECONDS:
            if waited > LEAST_COUNTING_SECONDS and not is_coming(session):
                break
            time.sleep(COUNTING_SECONDS)
            yield {self.parts.proposal: gr.skip()}  # Gradio notices a closed page only at a yield
        if session.book is not shown:
            yield self.enter(session_id)

    def enter(self, session_id: str) -> Updates:
        """Show the session's race, and a question to start with: a verified one, else the last one asked."""
        parts, current = self.parts, self._worker.sessions.find(session_id)
        if current is None:
            return self._board(RaceView())
        asked = tuple(exchange.question for exchange in current.exchanges)
        name = current.book.document.name if current.book else ""
        canned = race_questions(self._samples, name, NUM_PROMPTS)
        updates: Updates = {
            parts.proposal: canned[0] if canned else asked[-1] if asked else "",
            parts.opening: opening(current.book),
        }
        shown = [*canned, *[""] * (NUM_PROMPTS - len(canned))]
        for button, text in zip(parts.prompts, shown, strict=True):
            updates[button] = gr.update(value=text, visible=bool(text))
        return updates | self._board(current.race_view or RaceView(current.race))

    def expect(self, session_id: str, lanes: Sequence[str], seconds: float | None, limit: float | None) -> str:
        """How long a race with these settings takes."""
        session = self._worker.sessions.find(session_id)
        return expected_time(lanes, seconds, limit, session.race if session else None)

    def offer_lanes(self, session_id: str, chosen: Sequence[str]) -> dict[str, Any]:
        """Offer lanes once the model is loaded; methods that need a draft only if there is one. A choice stays.

        What no reader has chosen follows the open book: its fastest method is a lane.
        """
        state = self._worker.state
        if not isinstance(state, Ready) or state.info.elsewhere:
            return gr.update()
        choices = lane_choices(has_draft=state.info.has_draft)
        kept = [name for _, name in choices if name in chosen]
        session = self._worker.sessions.find(session_id)
        name = session.book.document.name if session and session.book else ""
        proposed = [first_lanes(state.info, one) for one in ("", *(sample.fastest for sample in self._samples))]
        unfit = len(kept) < min(2, len(chosen))  # by the model, not by the reader, who is told when a lane is missing
        first = set(chosen) in map(set, (AT_FIRST, *proposed)) or unfit
        value = list(first_lanes(state.info, fastest_method(self._samples, name))) if first else kept
        # A value that stays is not told: it would undo what the reader ticks meanwhile
        return gr.update(choices=choices) if set(value) == set(chosen) else gr.update(choices=choices, value=value)

    @lasting
    def race(
        self,
        session_id: str,
        question: str | None,
        lanes: Sequence[str],
        seconds: float | None,
        limit: float | None,
        temperature: float | None,
    ) -> Iterator[Updates]:
        """Run a race and show its progress."""
        view = RaceView(waiting=True)
        current = self._worker.sessions.find(session_id)
        if current is not None and current.race_view is not None and current.race_view.running:
            yield {self.parts.board: gr.skip()}  # clicked twice
            return
        if current is not None:
            current.race_view = view  # otherwise the page could show the previous race meanwhile
        try:
            configs = race_configs(lanes, seconds, limit, temperature)
            events = self._worker.race(session_id, question or "", configs, float(seconds) if seconds else None)
            yield self._board(view)
            for batch in in_batches(events):
                yield {self.parts.board: view.apply(batch).html()}
            view.end()
        except CoreError as error:
            view.fail(error)
        finally:
            if current is not None and current.race_view is view and not view.failed:
                current.race_view = None  # from now on the race itself is shown
        yield self._board(view)

    def report(self, session_id: str, kind: str) -> Updates:
        """The newest race as a file for the browser to save; `kind` is "card", "html" or "json"."""
        session, state = self._worker.sessions.find(session_id), self._worker.state
        race = session.race if session else None
        if race is None or not race.ended or not isinstance(state, Ready):
            error = InvalidSetting("There is no finished race.", hint="Start one, then save its report.")
            return self._board(RaceView().fail(error)) | {self.parts.saved: ""}
        return {self.parts.saved: parcel(race, state, kind, session.book if session else None)}

    def _board(self, view: RaceBoard) -> Updates:
        parts = self.parts
        return {
            parts.board: view.html(),
            parts.start: gr.update(visible=not view.running),
            parts.stop: gr.update(visible=view.running),
            **{button: gr.update(visible=view.finished) for button in parts.saves},
        }


def is_coming(session: Session) -> bool:
    """A file is on its way into the library, or its text is being counted."""
    uploads = session.uploads
    on_the_way = any(upload.stage not in ("failed", "recognising") for upload in uploads.pending)
    return on_the_way or bool(uploads.library.books and uploads.library is not uploads.settled)


def wait_until(done: Callable[[], bool]) -> None:
    """Wait until the engine's thread has finished its round."""
    deadline = time.monotonic() + MOST_WAIT_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(INTERVAL_SECONDS)


def parcel(race: Race, state: Ready, kind: str, book: Book | None = None) -> str:
    """Name, type and text of a report, as JSON for the page's script. `book`: the open one."""
    from app.ui.assets import CSS
    from app.ui.race.report import Setting, report_html, report_json  # imports torch, which is loaded by now

    setting = Setting(state.info, state.machine, versions())
    when = f"{race.begun:%Y-%m-%d-%H%M%S}"
    if kind == "card":
        about = book if book is not None and (book.title, book.num_tokens) == (race.book, race.num_book) else None
        return json.dumps({"name": f"triforce-proof-{when}.html", "type": "text/html", "text": card_html(race, about)})
    name = f"triforce-race-{when}.{kind}"
    if kind == "json":
        document = json.dumps(report_json(race, setting), ensure_ascii=False, indent=1)
        return json.dumps({"name": name, "type": "application/json", "text": document})
    return json.dumps({"name": name, "type": "text/html", "text": report_html(race, setting, CSS)})


def race_configs(
    lanes: Sequence[str], seconds: float | None, limit: float | None, temperature: float | None
) -> list[GenerationConfig]:
    """The settings of every lane, in the order of METHODS.

    Raises:
        InvalidSetting: fewer than two lanes; a field is empty or out of range.
    """
    chosen = [name for name in METHODS if name in lanes]
    if len(chosen) < 2:
        raise InvalidSetting("A race needs two lanes.", hint="Choose at least two methods.")
    return [SettingsForm(name, temperature, 1.0, MOST_IN_TIME if seconds else limit).config() for name in chosen]


def expected_time(lanes: Sequence[str], seconds: float | None, limit: float | None, before: Race | None) -> str:
    """The sum over all lanes, as HTML: lanes take turns. Without a limit of time, by the speeds of the race before.

    Args:
        before: the newest race on this page.
    """
    chosen = [name for name in METHODS if name in lanes]
    if len(chosen) < 2:
        return ""
    if seconds:
        total = formats.duration(len(chosen) * seconds)
        return f'<p class="quiet">{len(chosen)} lanes take turns: about <b>{total}</b>, then the texts are compared</p>'
    speeds = {lane.method: lane.stats.ms_per_token for lane in before.lanes} if before else {}
    known = [speeds.get(name) for name in chosen]
    if not limit or limit < 1 or not all(known):
        return '<p class="quiet">Lanes take turns, so that their times add up</p>'
    total = formats.duration(limit * sum(filter(None, known)) / 1000)
    return (
        f'<p class="quiet">{len(chosen)} lanes take turns: at most <b>{total}</b>, by the speeds of the race before</p>'
    )


def lane_choices(*, has_draft: bool = True) -> list[tuple[str, str]]:
    """Label and value of every possible lane."""
    found = [method for method in METHODS.values() if has_draft or not method.needs_draft]
    return [(method.short_label + ("" if method.exact else " · not exact"), method.name) for method in found]


def build_race() -> tuple[RaceParts, gr.Button]:
    """The tab's components, and the button for presentation mode."""
    with gr.Column(elem_id="race"):
        beginning = gr.HTML(opening(None), elem_id="race-opening")
        with gr.Column(elem_id="race-setup"):
            with gr.Row(elem_id="race-ask"):
                question = gr.Textbox(
                    label="Question",
                    show_label=False,
                    placeholder="A question about the book, for all lanes",
                    max_lines=3,
                    scale=1,
                    elem_id="race-question",
                )
                start = gr.Button("Start", variant="primary", elem_id="race-start", min_width=110, scale=0)
                stop = gr.Button("Stop", visible=False, elem_id="race-stop", min_width=110, scale=0)
                present = gr.Button("Present", elem_id="race-present", min_width=110, scale=0)
            with gr.Row(elem_id="race-prompts"):
                prompts = tuple(gr.Button(visible=False, size="sm") for _ in range(NUM_PROMPTS))
            with gr.Row(elem_id="race-options"):
                lanes = gr.CheckboxGroup(
                    lane_choices(), value=list(AT_FIRST), label="Lanes", elem_id="race-lanes", min_width=240
                )
                length = gr.Radio(LENGTHS, value=WHOLE_ANSWER, label="Until", elem_id="race-length", min_width=200)
                limit = gr.Number(
                    DEFAULTS.max_new_tokens, label="Most tokens", precision=0, elem_id="race-limit", min_width=90
                )
                temperature = gr.Number(0, label="Temperature", step=0.1, elem_id="race-temperature", min_width=90)
            expected = gr.HTML(elem_id="race-expected")
        proposal = gr.Textbox(visible=False, show_label=False)
        board = gr.HTML(RaceView().html(), elem_id="race-board")
        with gr.Row(elem_id="race-save"):
            save_card = gr.Button("Save proof card", size="sm", visible=False, elem_id="save-card")
            save_html = gr.Button("Long report", size="sm", visible=False, elem_id="save-html")
            save_json = gr.Button("JSON", size="sm", visible=False, elem_id="save-json")
        saved = gr.Textbox(visible=False, show_label=False)
        gr.HTML(KEYS, elem_id="race-keys")

    parts = RaceParts(
        question,
        proposal,
        start,
        stop,
        prompts,
        beginning,
        lanes,
        length,
        limit,
        temperature,
        expected,
        board,
        (save_card, save_html, save_json),
        saved,
    )
    return parts, present


def build_race_tab(
    worker: EngineWorker,
    samples: Sequence[Sample],
    session: gr.Textbox,
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> RaceHandlers:
    """The tab's components and events. `stream` and `at_once` are how the page's events run."""
    parts, present = build_race()
    handlers = RaceHandlers(worker, tuple(samples), parts)
    started = gr.on(
        [parts.start.click, parts.question.submit],
        handlers.race,
        [session, *parts.settings],
        parts.of_race,
        api_name="race",
        trigger_mode="multiple",  # a race can be started as soon as the one before is seen to have ended
        **stream,
    )
    parts.stop.click(worker.stop_race, session, None, api_name="stop_race", **at_once)
    for button in parts.prompts:
        button.click(None, button, parts.question, js="(text) => text", api_visibility="private")
    for kind, button in zip(("card", "html", "json"), parts.saves, strict=True):
        report = partial(handlers.report, kind=kind)
        made = button.click(report, session, [parts.saved, *parts.of_race], api_name=f"report_{kind}", **at_once)
        made.then(
            None, parts.saved, parts.saved, js="(parcel) => window.triforceRace.save(parcel)", api_visibility="private"
        )
    settings = [parts.lanes, parts.length, parts.limit]
    changes = [parts.lanes.change, parts.length.change, parts.limit.change, started.then]
    for change in changes:
        change(handlers.expect, [session, *settings], parts.expected, api_visibility="private", **at_once)
    present.click(None, None, None, js="() => window.triforceRace.present()", api_visibility="private")
    return handlers


KEYS = (
    '<p class="keys"><span><kbd>Space</kbd> next, stop</span><span><kbd>R</kbd> the race that ran</span>'
    "<span><kbd>1</kbd>–<kbd>3</kbd> question</span><span><kbd>Esc</kbd> leave</span></p>"
)
