"""The page: components, their places, and which handler each event calls. A view: no tensors, no threads."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr
from gradio.blocks import Block

from app.context.samples import Sample
from app.runtime.downloads import Downloads
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.handlers import WELCOME, Handlers, Parts, below
from app.ui.header import masthead, notice
from app.ui.inside.tab import INTERVAL_SECONDS, build_inside_tab
from app.ui.js_bridge import CLICKS, WITH_ACT
from app.ui.library.saved_tab import wire_kept
from app.ui.library.tab import LibraryHandlers, build_library_tab, listen
from app.ui.models.rows import ModelSource
from app.ui.models.tab import ModelHandlers
from app.ui.race.tab import RaceHandlers, build_race_tab
from app.ui.reading.book_view import BookView
from app.ui.reading.chat_actions import ChatActions, build_list, wire_list
from app.ui.reading.live_strip import LiveStrip
from app.ui.reading.settings import DEFAULTS, build_settings, decoding_choices, recalled, wire_settings
from app.ui.retrieval_map.panel import build_where, listen_where
from app.ui.system.tab import SystemTab, build_system_tab
from app.ui.updates import Updates

NUM_SUGGESTIONS = 3
METHOD_INFO = "Both write exactly what the model would write. TriForce needs fewer passes over the book."
# Single dollars are left out: books have prices.
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
# The tab makes its session's id and keeps it: a reload finds its session again, a second tab gets its own, and a file
# that is dropped before the page has said hello is not lost. Every event sends the id as its first input.
SESSION_SCRIPT = """<script>
window.triforceSession = () => {
  let id = sessionStorage.getItem("triforce-session");
  if (!id) {
    id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    sessionStorage.setItem("triforce-session", id);
  }
  return id;
};
</script>"""
WITH_SESSION = "(id, ...rest) => [window.triforceSession(), ...rest]"
WITH_KEPT = "() => [window.triforceSession(), window.triforceChat.kept()]"
PROPOSE = "(own, proposed) => window.triforceRace.propose(own, proposed)"


def build_page(
    worker: EngineWorker,
    samples: Sequence[Sample],
    *,
    note: str = "",
    source: ModelSource | None = None,
    downloads: Downloads | None = None,
) -> gr.Blocks:
    """The whole page.

    Args:
        note: one calm line about the model, under the question box.
        source: what other models are loaded with; None: nothing is said of them.
        downloads: what downloads of this program are told to.
    """
    page: gr.Blocks = gr.Blocks(
        title="TriForce Reader", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)
    )
    with page:
        session = gr.Textbox(visible=False, show_label=False)
        # Gradio tells every output of an event its progress, and takes a deep copy of what the output shows each time:
        # a third of the page's work during an answer. So one component that shows nothing is told instead.
        quiet: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": session, "js": WITH_SESSION}
        # The worker has the one queue; Gradio's own must not hold a page back before it can be told that it waits.
        stream: dict[str, Any] = {**quiet, "concurrency_limit": None}
        at_once: dict[str, Any] = {**quiet, "queue": False}
        kept = gr.Textbox("", visible=False, show_label=False)  # settings, on their way from the browser
        head = gr.HTML(masthead(worker.state), elem_id="masthead")
        banner = gr.HTML(notice(worker.state), elem_id="banner")
        ticking = gr.Timer(INTERVAL_SECONDS, active=False)
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Read", id="read", elem_id="read-tab") as read_tab, gr.Row(elem_id="shell"):
                with gr.Column(elem_id="side", min_width=280, scale=0):
                    card = gr.HTML(BookView(Session("")).html(), elem_id="book", js_on_load=CLICKS)
                    with gr.Row(elem_id="reading-buttons"):
                        stop_reading = gr.Button("Stop reading", size="sm", visible=False, elem_id="stop-reading")
                        read_on = gr.Button("Read on", size="sm", visible=False, elem_id="read-on")
                    drop = gr.File(
                        show_label=False, label="Open books", elem_id="drop", file_count="multiple", height=104
                    )
                    sample_buttons = build_samples(samples)
                    own = build_list()
                    method = gr.Radio(
                        decoding_choices(has_draft=True),
                        value=DEFAULTS.method,
                        label="Decoding",
                        info=METHOD_INFO,
                        elem_id="method",
                    )
                    fields = build_settings()
                    settings = [method, *fields.values]
                with gr.Column(elem_id="main", scale=1, min_width=320):
                    strip = gr.HTML(LiveStrip().html(), elem_id="strip")
                    where = build_where()
                    about = gr.HTML(elem_id="about-book", apply_default_css=False)
                    chat = build_chat()
                    with gr.Row(elem_id="suggestions"):
                        suggestions = tuple(gr.Button(visible=False, size="sm") for _ in range(NUM_SUGGESTIONS))
                    editing = gr.HTML(elem_id="editing", apply_default_css=False)
                    box = gr.Textbox(
                        placeholder="Ask about the book",
                        show_label=False,
                        label="Question",
                        submit_btn=True,
                        max_lines=6,
                        elem_id="question",
                    )
                    under = gr.HTML(below(note), elem_id="note", apply_default_css=False)
            library_tab, library, kept_parts = build_library_tab()
            with gr.Tab("Race", id="race", elem_id="race-tab") as race_tab:
                race = build_race_tab(worker, samples, session, stream, at_once)
            build_inside_tab(worker, session, ticking, at_once)
            system = build_system_tab(worker, session, stream)
        for tab in (read_tab, library_tab, race_tab, system.tab):
            tab.select(lambda _: gr.Timer(active=False), session, ticking, api_visibility="private", **at_once)

        parts = Parts(
            session,
            head,
            banner,
            card,
            stop_reading,
            read_on,
            drop,
            library,
            where,
            method,
            strip,
            chat,
            suggestions,
            box,
            variant=fields.variant,
            listing=own.listing,
            about=about,
            editing=editing,
            note=under,
        )
        handlers = Handlers(worker, tuple(samples), parts)
        shelf = LibraryHandlers(worker, library, handlers)
        listen(shelf, session, card, parts.of_book, stream)
        library_tab.select(shelf.refresh, session, library.of_shelf, api_visibility="private", **at_once)
        listen_where(worker, where, session, library.act, at_once)
        wire_kept(worker.keeping, kept_parts, library_tab, session, at_once, stream)

        def enter(session_id: str, packed: str = "") -> Updates:
            """Show what the session holds, and the settings as the browser kept them."""
            return handlers.enter(session_id) | recalled(fields, method, packed)

        entered = page.load(
            enter,
            [session, kept],
            [session, card, *parts.of_conversation, *library.of_shelf, method, fields.preset, *fields.values],
            api_name="enter",
            **{**at_once, "js": WITH_KEPT},
        )
        for shown in (
            entered.then(race.reload, session, race.parts.of_entry, api_name="enter_race", **stream),
            race_tab.select(race.enter, session, race.parts.of_entry, api_visibility="private", **at_once),
        ):
            question, proposal = race.parts.question, race.parts.proposal
            shown.then(None, [question, proposal], question, js=PROPOSE, api_visibility="private")
        loaded = entered.then(handlers.watch_model, session, parts.of_model, api_name="watch_model", **stream)
        loaded.then(race.offer_lanes, session, race.parts.lanes, api_visibility="private", **at_once)
        entered.then(handlers.resume, session, parts.of_book, api_name="resume", api_visibility="private", **stream)

        for dropped, public in ((drop, True), (library.drop, False)):
            dropped.upload(
                handlers.open_upload,
                [session, dropped],
                parts.of_book,
                api_name="open" if public else None,
                api_visibility="public" if public else "private",
                trigger_mode="multiple",  # more files while the first are being read: they come to the shelf too
                **stream,
            )
        for sample, button in zip(samples, sample_buttons, strict=True):
            opening = handlers.open_sample(sample)
            button.click(opening, session, parts.of_book, api_visibility="private", trigger_mode="multiple", **stream)
        read_on.click(handlers.read_on, session, parts.of_book, api_name="read_on", **stream)
        stop_reading.click(worker.stop_reading, session, None, api_name="stop_reading", **at_once)

        asked = [box.submit(handlers.ask, [session, box, *settings], parts.of_answer, api_name="ask", **stream)]
        for button in suggestions:
            clicked = [session, button, *settings]
            asked.append(button.click(handlers.ask, clicked, parts.of_answer, api_visibility="private", **stream))
        asked.append(wire_list(ChatActions(worker, handlers, parts, own), own, parts, settings, stream, at_once))
        for answer in asked:
            answer.then(handlers.answered, session, parts.after_answer, api_visibility="private", **at_once)
        box.stop(worker.stop_answer, session, None, api_name="stop", **at_once)
        chat.clear(handlers.clear, session, [strip, *parts.of_talk], api_name="clear", **at_once)
        wire_settings(fields, method, at_once)
        if source is not None:
            models = ModelHandlers(worker, source, downloads or Downloads(), system.models)
            wire_models(models, system, handlers, parts, race, stream, at_once)
    return page


def wire_models(
    models: ModelHandlers,
    system: SystemTab,
    handlers: Handlers,
    parts: Parts,
    race: RaceHandlers,
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> None:
    """A click on a model, here or on another page, and everything that another model changes."""
    quiet: dict[str, Any] = {"api_visibility": "private", **stream}
    session, shown = parts.session, system.models.shown
    system.tab.select(models.enter, session, shown, **quiet)
    changed: list[Any] = []
    for clicked in (system.models.listing, system.models.doing):
        done = clicked.click(
            never_silent(models.act, system.models.listing),
            [session, system.models.act],
            shown,
            trigger_mode="multiple",  # Cancel and Use while a download is followed
            **(quiet | {"js": WITH_ACT}),
        )
        if clicked is system.models.listing:
            changed.append(done.then(handlers.model_changed, [session, parts.method], parts.of_model, **quiet))
    returned = gr.Button("Returned", elem_id="returned")  # the script presses it when the page is looked at again
    changed.append(
        returned.click(never_silent(handlers.look_again, parts.head), [session, parts.method], parts.of_model, **quiet)
    )
    for seen in changed:
        seen.then(models.enter, session, shown, **quiet)
        seen.then(system.enter, session, system.shown, **quiet)
        seen.then(race.offer_lanes, session, race.parts.lanes, api_visibility="private", **at_once)
        seen.then(never_silent(handlers.catch_up, parts.card), session, parts.of_book, **quiet)


def never_silent(handler: Callable[..., Iterator[Updates]], block: Block) -> Callable[..., Iterator[Updates]]:
    """A handler that may have nothing to show: Gradio empties every output of a generator that ends without a yield.

    Args:
        block: one of its outputs; it stays as it is.
    """

    @functools.wraps(handler)
    def speaking(*inputs: Any) -> Iterator[Updates]:
        yield {block: gr.skip()}
        yield from handler(*inputs)

    return speaking


def build_samples(samples: Sequence[Sample]) -> list[gr.Button]:
    """A button per sample book."""
    if not samples:
        return []
    with gr.Row(elem_id="samples"):
        gr.HTML('<p class="quiet">Or try a sample book:</p>')
        return [gr.Button(sample.file.name, size="sm", min_width=0) for sample in samples]


def build_chat() -> gr.Chatbot:
    """The conversation. Text reaches it with its HTML escaped, and it sanitises what it renders all the same."""
    return gr.Chatbot(
        show_label=False,
        elem_id="chat",
        height="100%",
        buttons=[],
        group_consecutive_messages=False,  # figures and buttons stand beside the text, not in it
        placeholder=WELCOME,
        latex_delimiters=LATEX,
        sanitize_html=True,
        allow_tags=False,
        feedback_options=None,
        layout="bubble",
    )
