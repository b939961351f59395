"""The page: its tabs, and the handler of each event. A view: no tensors, no threads."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.events import Dependency

from app.context.samples import Sample, one_of_each
from app.runtime.downloads import Downloads
from app.runtime.worker import EngineWorker
from app.ui.handlers import Handlers
from app.ui.header import masthead, notice, tab_heading
from app.ui.inside.tab import INTERVAL_SECONDS, build_inside_tab
from app.ui.js_bridge import WITH_ACT
from app.ui.library.find_tab import FindParts, listen_find
from app.ui.library.saved_tab import wire_saved
from app.ui.library.tab import LibraryHandlers, build_library_tab, listen
from app.ui.model_watch import ModelWatch
from app.ui.models.offer import ModelOffer
from app.ui.models.rows import ModelSource
from app.ui.models.tab import ModelHandlers
from app.ui.parts import Parts
from app.ui.race.tab import RaceHandlers, build_race_tab
from app.ui.reading.answers import Answers
from app.ui.reading.chat_actions import ChatActions, wire_list
from app.ui.reading.settings import recalled, wire_settings
from app.ui.reading.tab import Side, build_read_tab, parts_of
from app.ui.retrieval_map.panel import listen_where
from app.ui.system.tab import SystemTab, build_system_tab
from app.ui.updates import Updates

# The browser tab makes and stores its session's id: a reload finds its session again, a second tab gets its own, and a
# file dropped before the page has loaded is not lost. Every event sends the id as its first input.
SESSION_SCRIPT = """<script>
window.triforceSession = () => {
  let id = sessionStorage.getItem("triforce-session");
  if (!id) {
    id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    sessionStorage.setItem("triforce-session", id);
  }
  return id;
};
window.triforceEntry = new Promise((entered) => {
  window.triforceEntered = entered;
  addEventListener("load", () => setTimeout(entered, 60000)); // the page's own event may never come
});
</script>"""
WITH_SESSION = "(id, ...rest) => [window.triforceSession(), ...rest]"
WITH_KEPT = "() => [window.triforceSession(), window.triforceChat.kept()]"
WITH_CHOSEN = "(_, __, thinking) => [window.triforceSession(), window.triforceChat.kept(), thinking]"
ENTERED = "() => window.triforceEntered()"
SEND = "async (id, question, ...rest) => [window.triforceSession(), await window.triforceChat.send(question), ...rest]"
LOST = "() => window.triforceChat.lost()"
# The page's first state comes by another connection than the steps of an opening book, and must not arrive after them.
OPEN = (
    "async (id, files) => "
    "(window.triforceChat.opening(), await window.triforceEntry, [window.triforceSession(), files])"
)
OPEN_SAMPLE = "async () => (await window.triforceEntry, [window.triforceSession()])"
PROPOSE = "(own, proposed) => window.triforceRace.propose(own, proposed)"


def build_page(
    worker: EngineWorker,
    samples: Sequence[Sample],
    *,
    note: str = "",
    source: ModelSource | None = None,
    downloads: Downloads | None = None,
    elsewhere: bool = False,
) -> gr.Blocks:
    """The whole page.

    Args:
        note: one line about the model, under the question box.
        source: how other models are loaded; None: the page offers none.
        downloads: tracks the downloads of this program.
        elsewhere: the model runs on a server, so what belongs to models of this machine is not offered.
    """
    page: gr.Blocks = gr.Blocks(
        title="TriForce Reader", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)
    )
    with page:
        session = gr.Textbox(visible=False, show_label=False)
        # Gradio sends progress to every output of an event and deep-copies its value every time: a third of the page's
        # work during an answer. So only one component, which shows nothing, gets progress.
        quiet: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": session, "js": WITH_SESSION}
        # The worker has the one queue; Gradio's own must not delay an event before the page can show that it waits.
        stream: dict[str, Any] = {**quiet, "concurrency_limit": None}
        at_once: dict[str, Any] = {**quiet, "queue": False}
        kept = gr.Textbox("", visible=False, show_label=False)  # settings sent by the browser
        head = gr.HTML(masthead(worker.state), elem_id="masthead")
        banner = gr.HTML(notice(worker.state), elem_id="banner")
        ticking = gr.Timer(INTERVAL_SECONDS, active=False)
        with gr.Tabs(elem_id="tabs"):
            read_tab, side, talk = build_read_tab(one_of_each(samples), note)
            library_tab, library, saved_parts, find_parts = build_library_tab(talk.choosing)
            with gr.Tab("Race", id="race", elem_id="race-tab", visible=not elsewhere) as race_tab:
                tab_heading("Race")
                race = build_race_tab(worker, samples, session, stream, at_once)
            build_inside_tab(worker, session, ticking, at_once, offered=not elsewhere)
            system = build_system_tab(worker, session, stream, brings=bool(source and source.folders))
        for tab in (read_tab, library_tab, race_tab, system.tab):
            tab.select(lambda _: gr.Timer(active=False), session, ticking, api_visibility="private", **at_once)

        parts = parts_of(side, talk, library, session=session, head=head, banner=banner)
        downloads = downloads or Downloads()
        offer = ModelOffer(worker, source, downloads, talk.offer)
        handlers = Handlers(worker, tuple(samples), parts, offer)
        watch = ModelWatch(worker, parts, one_of_each(samples))
        clicked = (side.card, talk.about, talk.choosing)
        wire_library(worker, handlers, library_tab, (clicked, find_parts), stream, at_once)
        listen_where(worker, talk.where, session, library.act, at_once)
        wire_saved(worker.saved_books, saved_parts, library_tab, session, at_once, stream)
        entered = wire_entry(page, handlers, side, kept, at_once)
        wire_race_entry(entered, race, race_tab, session, stream, at_once)
        watched = {"inputs": [session, kept, parts.thinking], "outputs": parts.of_model, **stream, "js": WITH_CHOSEN}
        loaded = entered.then(watch.watch_model, api_name="watch_model", **watched)
        loaded.then(
            race.offer_lanes, [session, race.parts.lanes], race.parts.lanes, api_visibility="private", **at_once
        )
        resume = never_silent(handlers.resume, parts.card)
        entered.then(resume, session, parts.of_book, api_name="resume", api_visibility="private", **stream)
        wire_books(worker, handlers, samples, side, stream, at_once)
        wire_answers(worker, handlers, side, entered, stream, at_once)
        wire_settings(side.fields, side.method, at_once)
        if source is not None:
            models = ModelHandlers(worker, source, downloads, system.models)
            offered = wire_offer(offer, parts, system, loaded, stream)
            wire_models(models, system, handlers, watch, race, offered, stream, at_once)
    return page


def wire_library(
    worker: EngineWorker,
    handlers: Handlers,
    tab: gr.Tab,
    beside: tuple[Sequence[gr.HTML], FindParts],
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> None:
    """The library, its clicks on other components and on hits of Find too, and Find itself."""
    (others, found), session, library = beside, handlers.parts.session, handlers.parts.library
    documents = LibraryHandlers(worker, library, handlers)
    listen(documents, session, (*others, found.hits), handlers.parts.of_book, stream)
    listen_find(worker, found, session, library.act, at_once)
    tab.select(documents.refresh, session, library.of_library, api_visibility="private", **at_once)


def wire_entry(
    page: gr.Blocks, handlers: Handlers, side: Side, kept: gr.Textbox, at_once: dict[str, Any]
) -> Dependency:
    """The page has loaded: show the session's state and the settings stored by the browser."""
    parts = handlers.parts

    def enter(session_id: str, packed: str = "") -> Updates:
        return handlers.enter(session_id) | recalled(side.fields, side.method, packed)

    shown = [parts.session, side.card, *parts.of_conversation, *parts.library.of_library]
    entered = page.load(
        enter,
        [parts.session, kept],
        [*shown, side.method, side.fields.preset, *side.fields.values],
        api_name="enter",
        **{**at_once, "js": WITH_KEPT},
    )
    entered.then(None, None, None, js=ENTERED, api_visibility="private")
    entered.failure(None, None, None, js=ENTERED, api_visibility="private")
    return entered


def wire_race_entry(
    entered: Dependency,
    race: RaceHandlers,
    tab: gr.Tab,
    session: gr.Textbox,
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> None:
    """The session's race, and a question to start with: at once, and again after what is still on its way."""
    parts, quiet = race.parts, {"api_visibility": "private"}
    for shown in (
        entered.then(race.enter, session, parts.of_entry, api_visibility="private", **at_once),
        entered.then(race.reload, session, parts.of_entry, api_name="enter_race", **stream),
        tab.select(race.enter, session, parts.of_entry, api_visibility="private", **at_once),
        tab.select(race.select, session, parts.of_entry, trigger_mode="multiple", **(quiet | stream)),
    ):
        shown.then(None, [parts.question, parts.proposal], parts.question, js=PROPOSE, api_visibility="private")
        shown.then(race.offer_lanes, [session, parts.lanes], parts.lanes, api_visibility="private", **at_once)


def wire_books(
    worker: EngineWorker,
    handlers: Handlers,
    samples: Sequence[Sample],
    side: Side,
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> None:
    """Events that open books and read their rest."""
    parts = handlers.parts
    session = parts.session
    for dropped, public in ((parts.drop, True), (parts.library.drop, False)):
        opened = dropped.upload(
            handlers.open_upload,
            [session, dropped],
            parts.of_book,
            api_name="open" if public else None,
            api_visibility="public" if public else "private",
            trigger_mode="multiple",  # accept more files while the first are being read
            **(stream | {"js": OPEN}),
        )
        opened.failure(None, None, dropped, js=LOST, api_visibility="private")
    for sample, button in zip(one_of_each(samples), side.samples, strict=True):
        opening = handlers.open_sample(sample)
        clicked = {"api_visibility": "private", "trigger_mode": "multiple", **stream, "js": OPEN_SAMPLE}
        button.click(opening, session, parts.of_book, **clicked)
    side.read_on.click(handlers.read_on, session, parts.of_book, api_name="read_on", **stream)
    side.stop_reading.click(worker.stop_reading, session, None, api_name="stop_reading", **at_once)


def wire_answers(
    worker: EngineWorker,
    handlers: Handlers,
    side: Side,
    entered: Dependency,
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> None:
    """Events of questions and answers, and of the list of conversations."""
    parts, own, answers = handlers.parts, side.own, Answers(worker, handlers)
    session, box, settings = parts.session, parts.box, side.settings
    sent = {**stream, "js": SEND}
    # always_last: a question asked between the end of an answer and the end of its event is not lost
    question = {"inputs": [session, box, *settings], "outputs": parts.of_answer, "trigger_mode": "always_last", **sent}
    asked = [box.submit(answers.ask, api_name="ask", **question)]
    asked[0].success(None, None, None, js="() => window.triforceChat.ended()", api_visibility="private")
    asked[0].failure(None, box, box, js="(typed) => window.triforceChat.unsent(typed)", api_visibility="private")
    for button in parts.suggestions:
        clicked = [session, button, *settings]
        asked.append(button.click(answers.ask, clicked, parts.of_answer, api_visibility="private", **stream))
    actions = ChatActions(worker, handlers, parts, own)
    asked.append(wire_list(actions, answers.again, own, parts, settings, stream, at_once))
    follow = never_silent(answers.follow, parts.strip)
    followed = entered.then(follow, session, parts.of_followed, api_name="follow", **stream)
    # Through the queue, as the steps of a book that opens: so they arrive in order.
    ended: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **stream}
    followed.then(answers.followed, session, [parts.box, *parts.after_answer], **ended)
    for answer in asked:
        answer.then(answers.answered, session, parts.after_answer, **ended)
    for answer in (*asked, followed):
        answer.failure(answers.broken, session, [parts.strip, parts.box], **ended)
    box.stop(worker.stop_answer, session, None, api_name="stop", **at_once)
    parts.chat.clear(answers.clear, session, [parts.strip, *parts.of_talk], api_name="clear", **at_once)


def wire_offer(
    offer: ModelOffer, parts: Parts, system: SystemTab, loaded: Dependency, stream: dict[str, Any]
) -> Dependency:
    """The card that offers a full model: shown when the model has loaded, changed by its clicks.

    Returns the clicks, after which another model may be in use.
    """
    quiet: dict[str, Any] = {"api_visibility": "private", **stream}
    loaded.then(offer.resume, parts.session, parts.offer, **quiet)
    clicked = parts.offer.click(
        offer.act,
        [parts.session, system.models.act],
        parts.offer,
        trigger_mode="multiple",  # accept Cancel while a download is followed
        **(quiet | {"js": WITH_ACT}),
    )
    return clicked


def wire_models(
    models: ModelHandlers,
    system: SystemTab,
    handlers: Handlers,
    watch: ModelWatch,
    race: RaceHandlers,
    offered: Dependency,
    stream: dict[str, Any],
    at_once: dict[str, Any],
) -> None:
    """A choice of model, here or on another page, and all its consequences."""
    quiet: dict[str, Any] = {"api_visibility": "private", **stream}
    parts, shown = handlers.parts, system.models.shown
    session = parts.session
    system.tab.select(models.enter, session, shown, **quiet)
    if system.models.path is not None and system.models.add is not None:
        path = system.models.path
        named = [system.models.add.click, path.submit]
        gr.on(named, models.bring, [session, path], [*shown, path], **quiet)
    chosen = [session, parts.method, parts.thinking]
    looks = never_silent(watch.look_again, parts.head)
    changed = [offered.then(looks, chosen, parts.of_model, **quiet)]
    for clicked in (system.models.listing, system.models.doing):
        done = clicked.click(
            never_silent(models.act, system.models.listing),
            [session, system.models.act],
            shown,
            trigger_mode="multiple",  # accept Cancel and Use while a download is followed
            **(quiet | {"js": WITH_ACT}),
        )
        if clicked is system.models.listing:
            changed.append(done.then(watch.model_changed, chosen, parts.of_model, **quiet))
    returned = gr.Button("Returned", elem_id="returned")  # pressed by the script when the page becomes visible again
    changed.append(returned.click(looks, chosen, parts.of_model, **quiet))
    for seen in changed:
        seen.then(models.enter, session, shown, **quiet)
        seen.then(system.enter, session, system.shown, **quiet)
        seen.then(race.offer_lanes, [session, race.parts.lanes], race.parts.lanes, api_visibility="private", **at_once)
        seen.then(never_silent(handlers.catch_up, parts.card), session, parts.of_book, **quiet)


def never_silent(handler: Callable[..., Iterator[Updates]], block: Block) -> Callable[..., Iterator[Updates]]:
    """Wrap a handler that may yield nothing: Gradio would empty all outputs of a generator that ends without a yield.

    Args:
        block: one of its outputs, which then stays unchanged.
    """

    @functools.wraps(handler)
    def speaking(*inputs: Any) -> Iterator[Updates]:
        yield {block: gr.skip()}
        yield from handler(*inputs)

    return speaking
