"""The page: components, their places, and which verb of the worker each event calls. A view: no tensors, no threads."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app import samples as sample_books
from app.book_view import BookView
from app.chat_view import ChatView
from app.live_strip import LiveStrip
from app.masthead import masthead, notice
from app.pace import paced
from app.samples import Sample
from app.sessions import Session
from app.worker import AnswerEvent, EngineWorker, Loading, OpenEvent, Ready
from core.config import GenerationConfig, SamplingParams
from core.errors import CoreError, InvalidSetting

Updates = dict[gr.Component | gr.Button, Any]  # what a handler changes: component -> new value or update

NUM_SUGGESTIONS = 3
DEFAULTS = GenerationConfig()
WITH_DRAFT = [("TriForce", "triforce"), ("Plain", "autoregressive")]
WITHOUT_DRAFT = [("Retrieval", "retrieval"), ("Plain", "autoregressive")]
METHOD_INFO = "Both write exactly what the model would write. TriForce needs fewer passes over the book."
# Single dollars are left out: books have prices.
LATEX = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
WELCOME = """<div class="welcome"><h2>Ask a whole book</h2>
<ol><li><b>Open a book.</b> Drop a PDF, text or Markdown file, or choose a sample.</li>
<li><b>It is read once.</b> All of it stays in the model’s context: no summaries, no snippets.</li>
<li><b>Ask.</b> Watch how fast the exact answer comes, and why.</li></ol></div>"""
BOOK_OPEN = """<div class="welcome"><h2>The book is open</h2>
<p>Ask anything about it. You can ask before the reading has ended: the answer then starts right after.</p></div>"""
STORE_SESSION = "(id) => { sessionStorage.setItem('triforce-session', id); return []; }"
RECALL_SESSION = "() => [sessionStorage.getItem('triforce-session') || '']"


def build_page(worker: EngineWorker, samples: Sequence[Sample], *, note: str = "") -> gr.Blocks:
    """The whole page. `note` is one calm line about the model, under the question box."""
    with gr.Blocks(title="TriForce Reader", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)) as page:
        session = gr.Textbox(visible=False, show_label=False)
        head = gr.HTML(masthead(worker.state), elem_id="masthead")
        banner = gr.HTML(notice(worker.state), elem_id="banner")
        with gr.Row(elem_id="shell"):
            with gr.Column(elem_id="side", min_width=280, scale=0):
                card = gr.HTML(elem_id="book", value=BookView(Session("")).html())
                with gr.Row(elem_id="reading-buttons"):
                    stop_reading = gr.Button("Stop reading", size="sm", visible=False, elem_id="stop-reading")
                    read_on = gr.Button("Read on", size="sm", visible=False, elem_id="read-on")
                drop = gr.File(show_label=False, label="Open a book", elem_id="drop", height=104)
                sample_buttons = build_samples(samples)
                method = gr.Radio(
                    WITH_DRAFT, value=DEFAULTS.method, label="Decoding", info=METHOD_INFO, elem_id="method"
                )
                with gr.Accordion("Settings", open=False, elem_id="settings"):
                    temperature = gr.Number(
                        DEFAULTS.sampling.temperature,
                        label="Temperature",
                        info="0 always takes the likeliest token; 0.6 is lively.",
                        step=0.1,
                    )
                    top_p = gr.Number(
                        DEFAULTS.sampling.top_p,
                        label="top-p",
                        info="Draw from the likeliest tokens that share this mass; 1 uses all.",
                        step=0.05,
                    )
                    max_new_tokens = gr.Number(
                        DEFAULTS.max_new_tokens,
                        label="Most new tokens",
                        info="An answer ends here at the latest.",
                        precision=0,
                    )
            with gr.Column(elem_id="main", scale=1, min_width=320):
                strip = gr.HTML(LiveStrip().html(), elem_id="strip")
                chat = gr.Chatbot(
                    show_label=False,
                    elem_id="chat",
                    height="100%",
                    buttons=["copy"],
                    placeholder=WELCOME,
                    latex_delimiters=LATEX,
                    sanitize_html=True,
                    allow_tags=False,
                    feedback_options=None,
                    layout="bubble",
                )
                with gr.Row(elem_id="suggestions"):
                    suggestions = [gr.Button(visible=False, size="sm") for _ in range(NUM_SUGGESTIONS)]
                box = gr.Textbox(
                    placeholder="Ask about the book",
                    show_label=False,
                    label="Question",
                    submit_btn=True,
                    max_lines=6,
                    autofocus=True,
                    elem_id="question",
                )
                gr.HTML(f'<p class="note">{note}</p>' if note else "", elem_id="note")

        def suggest(current: Session) -> Updates:
            name = current.book.document.name if current.book else ""
            asked = tuple(exchange.question for exchange in current.exchanges)
            questions = sample_books.open_questions(tuple(samples), name, asked, NUM_SUGGESTIONS)
            shown = [*questions, *[""] * (NUM_SUGGESTIONS - len(questions))]
            return {
                button: gr.update(value=question, visible=bool(question))
                for button, question in zip(suggestions, shown, strict=True)
            }

        def show_book(view: BookView, current: Session) -> Updates:
            updates: Updates = {
                card: view.html(),
                stop_reading: gr.update(visible=view.reading),
                read_on: gr.update(visible=view.paused and not view.reading),
            }
            if view.take_opened():
                updates |= {chat: gr.update(value=[], placeholder=BOOK_OPEN), strip: LiveStrip().html()} | suggest(current)
            return updates

        def watch_book(current: Session, view: BookView, events: Iterator[OpenEvent]) -> Iterator[Updates]:
            number = current.opening  # a file dropped meanwhile takes the card over
            try:
                for batch in paced(events):
                    if current.opening == number:
                        yield show_book(view.apply(batch), current)
            except CoreError as error:
                view.fail(error)
            if current.opening == number:
                yield show_book(view.end(current), current)

        def open_file(session_id: str, path: str, *, keep: bool = False) -> Iterator[Updates]:
            file = Path(path)
            try:
                current = worker.sessions.get(session_id)
                view = BookView(current).open(file.name)
                events = worker.open_book(session_id, file)
                yield show_book(view, current) | ({} if keep else {drop: None})
                yield from watch_book(current, view, events)
            except CoreError as error:  # no such session
                yield {card: BookView(Session("")).fail(error).html()}
            finally:
                if not keep:
                    file.unlink(missing_ok=True)  # the text is in memory; no copy of the book stays behind

        def open_sample(sample: Sample) -> Callable[[str], Iterator[Updates]]:
            def open_it(session_id: str) -> Iterator[Updates]:
                yield from open_file(session_id, str(sample.file), keep=True)

            return open_it

        def read_rest(session_id: str) -> Iterator[Updates]:
            try:
                current = worker.sessions.get(session_id)
                yield from watch_book(current, BookView(current), worker.read_book(session_id))
            except CoreError as error:
                yield {card: BookView(Session("")).fail(error).html()}

        def watch_answer(
            session_id: str, strip_view: LiveStrip, chat_view: ChatView, question: str, events: Iterator[AnswerEvent]
        ) -> Iterator[Updates]:
            yield {
                strip: strip_view.html(),
                chat: chat_view.messages(),
                box: gr.update(value="", submit_btn=False, stop_btn=True),
            }
            for batch in paced(events):
                yield {strip: strip_view.apply(batch).html(), chat: chat_view.apply(batch).messages()}
            current = worker.sessions.get(session_id)
            updates: Updates = {strip: strip_view.end().html(), box: idle_box(), card: BookView(current).html()}
            if not chat_view.answered:
                updates |= {chat: ChatView(current.exchanges).messages(), box: idle_box(question)}
            yield updates | suggest(current)

        def fail_answer(session_id: str, error: CoreError, question: str | None) -> Updates:
            try:
                past = ChatView(worker.sessions.get(session_id).exchanges).messages()
            except CoreError:  # the session itself is what is missing
                past = []
            return {strip: LiveStrip().fail(error).html(), chat: past, box: idle_box(question)}

        def ask(
            session_id: str, question: str, method: str, temperature: float, top_p: float, max_new_tokens: int
        ) -> Iterator[Updates]:
            try:
                config = generation(method, temperature, top_p, max_new_tokens)
                events = worker.answer(session_id, question, config)
                past = worker.sessions.get(session_id).exchanges
                yield from watch_answer(session_id, LiveStrip(method), ChatView(past, question.strip()), question, events)
            except CoreError as error:
                yield fail_answer(session_id, error, question)

        def regenerate(
            session_id: str, method: str, temperature: float, top_p: float, max_new_tokens: int
        ) -> Iterator[Updates]:
            try:
                config = generation(method, temperature, top_p, max_new_tokens)
                events = worker.regenerate(session_id, config)
                *past, last = worker.sessions.get(session_id).exchanges
                yield from watch_answer(session_id, LiveStrip(method), ChatView(past, last.question), "", events)
            except CoreError as error:
                yield fail_answer(session_id, error, None)

        def enter(session_id: str) -> Updates:
            """The page was loaded: find or make its session and show what it holds."""
            current = worker.sessions.enter(session_id)
            strip_view = LiveStrip()
            if current.exchanges and current.book:
                strip_view.recall(current.exchanges[-1].finished, current.book.num_tokens)
            return {
                session: current.id,
                card: BookView(current).html(),
                chat: gr.update(
                    value=ChatView(current.exchanges).messages(), placeholder=BOOK_OPEN if current.book else WELCOME
                ),
                strip: strip_view.html(),
            } | suggest(current)

        def watch_model() -> Iterator[Updates]:
            for state in worker.states():
                updates: Updates = {head: masthead(state), banner: notice(state)}
                if isinstance(state, Ready) and not state.info.has_draft:
                    updates[method] = gr.update(choices=WITHOUT_DRAFT, value="retrieval")
                yield updates

        settings = [method, temperature, top_p, max_new_tokens]
        book_parts = [card, stop_reading, read_on, drop, chat, strip, *suggestions]
        answer_parts = [strip, chat, box, card, *suggestions]
        # The worker has the one queue; Gradio's own must not hold a page back before it can be told that it waits.
        stream: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
        at_once: dict[str, Any] = {"show_progress": "hidden", "queue": False}

        entered = page.load(
            enter, session, [session, card, chat, strip, *suggestions], js=RECALL_SESSION, api_name="enter", **at_once
        )
        entered.then(None, session, None, js=STORE_SESSION)
        entered.then(watch_model, None, [head, banner, method], api_name="watch_model", **stream)
        entered.then(read_rest, session, book_parts, api_name=False, **stream)
        drop.upload(open_file, [session, drop], book_parts, api_name="open_file", trigger_mode="multiple", **stream)
        for sample, button in zip(samples, sample_buttons, strict=True):
            button.click(open_sample(sample), session, book_parts, api_name=False, **stream)
        read_on.click(read_rest, session, book_parts, api_name="read_on", **stream)
        stop_reading.click(worker.stop_reading, session, None, api_name="stop_reading", **at_once)
        box.submit(ask, [session, box, *settings], answer_parts, api_name="ask", **stream)
        for button in suggestions:
            button.click(ask, [session, button, *settings], answer_parts, api_name=False, **stream)
        box.stop(worker.stop_answer, session, None, api_name="stop", **at_once)
        chat.retry(regenerate, [session, *settings], answer_parts, api_name="regenerate", **stream)
    return page


def build_samples(samples: Sequence[Sample]) -> list[gr.Button]:
    """A button per sample book."""
    if not samples:
        return []
    with gr.Row(elem_id="samples"):
        gr.HTML('<p class="quiet">Or try a sample book:</p>')
        return [gr.Button(sample.file.name, size="sm", min_width=0) for sample in samples]


def idle_box(question: str | None = None) -> dict[str, Any]:
    """The question box ready for a question; `question` puts one back."""
    given = {} if question is None else {"value": question}
    return gr.update(submit_btn=True, stop_btn=False, **given)


def generation(
    method: str, temperature: float | None, top_p: float | None, max_new_tokens: float | None
) -> GenerationConfig:
    """Settings from the page's fields.

    Raises:
        InvalidSetting: a field is empty or out of range.
    """
    if temperature is None or top_p is None or max_new_tokens is None:
        raise InvalidSetting("A field in Settings is empty.", hint="Fill it with a number.")
    return GenerationConfig(
        method=method,
        max_new_tokens=int(max_new_tokens),
        sampling=SamplingParams(temperature=float(temperature), top_p=float(top_p)),
    )
