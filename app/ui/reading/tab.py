"""The tab "Read": book, conversations and settings at the side; figures, chat and question in the main column.

An opened page stands beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from app.context.samples import Sample
from app.runtime.sessions import Session
from app.ui.header import below, tab_heading
from app.ui.js_bridge import CLICKS, FOLDED, LOOKS_AGAIN, SUMMED
from app.ui.library.drawing import LibraryParts
from app.ui.parts import Parts
from app.ui.reading.book_view import BookView
from app.ui.reading.chat_actions import ListParts, build_list
from app.ui.reading.live_strip import LiveStrip
from app.ui.reading.settings import DEFAULTS, Fields, build_settings, decoding_choices
from app.ui.reading.welcome import WELCOME
from app.ui.retrieval_map.panel import WhereParts, build_where

NUM_SUGGESTIONS = 3
METHOD_INFO = "Both write exactly what the model would write. TriForce needs fewer passes over the book."
# Without single dollars, because books have prices.
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The components at the side."""

    card: gr.HTML
    stop_reading: gr.Button
    read_on: gr.Button
    drop: gr.File
    samples: list[gr.Button]
    own: ListParts
    method: gr.Radio
    fields: Fields

    @property
    def settings(self) -> list[gr.components.Component]:
        """The inputs of an answer."""
        return [self.method, *self.fields.values]


@dataclass(frozen=True, slots=True, eq=False)
class Talk:
    """The components of the main column."""

    strip: gr.HTML
    where: WhereParts
    offer: gr.HTML
    choosing: gr.HTML
    about: gr.HTML
    chat: gr.Chatbot
    suggestions: tuple[gr.Button, ...]
    editing: gr.HTML
    told: gr.HTML
    box: gr.Textbox
    note: gr.HTML


def build_side(samples: Sequence[Sample]) -> Side:
    """The components at the side."""
    with gr.Column(elem_id="side", min_width=280, scale=0):
        card = gr.HTML(BookView(Session("")).html(), elem_id="book", js_on_load=CLICKS)
        build_fold("side", "Books")
        with gr.Row(elem_id="reading-buttons"):
            stop_reading = gr.Button("Stop reading", size="sm", visible=False, elem_id="stop-reading")
            read_on = gr.Button("Read on", size="sm", visible=False, elem_id="read-on")
        drop = gr.File(show_label=False, label="Open books", elem_id="drop", file_count="multiple", height=104)
        buttons = build_samples(samples)
        own = build_list()
        method = gr.Radio(
            decoding_choices(has_draft=True),
            value=DEFAULTS.method,
            label="Decoding",
            info=METHOD_INFO,
            elem_id="method",
        )
        return Side(card, stop_reading, read_on, drop, buttons, own, method, build_settings())


def build_talk(note: str) -> Talk:
    """The components of the main column. `note`: the line under the question box."""
    with gr.Column(elem_id="main", scale=1, min_width=320):
        with gr.Column(elem_id="figures", min_width=0, scale=0):
            strip = gr.HTML(LiveStrip().html(), elem_id="strip")
            where = build_where()
            build_fold("figures", "Figures")
        offer = gr.HTML(elem_id="model-offer", js_on_load=CLICKS + LOOKS_AGAIN, apply_default_css=False)
        choosing = gr.HTML("", elem_id="choosing", js_on_load=CLICKS + SUMMED)
        about = gr.HTML(elem_id="about-book", js_on_load=CLICKS, apply_default_css=False)
        chat = build_chat()
        with gr.Row(elem_id="suggestions"):
            suggestions = tuple(gr.Button(visible=False, size="sm") for _ in range(NUM_SUGGESTIONS))
        editing = gr.HTML(elem_id="editing", apply_default_css=False)
        told = gr.HTML(elem_id="told", apply_default_css=False)
        box = gr.Textbox(
            placeholder="Ask about the book",
            show_label=False,
            label="Question",
            submit_btn=True,
            max_lines=6,
            elem_id="question",
        )
        under = gr.HTML(below(note), elem_id="note", apply_default_css=False)
    return Talk(strip, where, offer, choosing, about, chat, suggestions, editing, told, box, under)


def build_read_tab(samples: Sequence[Sample], note: str) -> tuple[gr.Tab, Side, Talk]:
    """The tab and its components."""
    with gr.Tab("Read", id="read", elem_id="read-tab") as tab, gr.Row(elem_id="shell"):
        tab_heading("Read")
        side = build_side(samples)
        talk = build_talk(note)
        talk.where.page.render()  # type: ignore[no-untyped-call]
    return tab, side, talk


def parts_of(
    side: Side, talk: Talk, library: LibraryParts, *, session: gr.Textbox, head: gr.HTML, banner: gr.HTML
) -> Parts:
    """The components that events change, of this tab, the library and the page around them."""
    return Parts(
        session=session,
        head=head,
        banner=banner,
        card=side.card,
        stop_reading=side.stop_reading,
        read_on=side.read_on,
        drop=side.drop,
        library=library,
        where=talk.where,
        method=side.method,
        strip=talk.strip,
        chat=talk.chat,
        suggestions=talk.suggestions,
        box=talk.box,
        variant=side.fields.variant,
        thinking=side.fields.thinking,
        listing=side.own.listing,
        offer=talk.offer,
        about=talk.about,
        editing=talk.editing,
        told=talk.told,
        note=talk.note,
        samples=tuple(side.samples),
    )


def build_fold(name: str, label: str) -> None:
    """A button that opens and closes a part of the page, in the browser alone (assets/static/js/folds.js)."""
    button = f'<button type="button" class="fold" data-fold="{name}" aria-controls="{name}">{label}</button>'
    gr.HTML(button, elem_id=f"{name}-fold", js_on_load=FOLDED, apply_default_css=False)


def build_samples(samples: Sequence[Sample]) -> list[gr.Button]:
    """A button per sample book."""
    if not samples:
        return []
    with gr.Row(elem_id="samples"):
        gr.HTML('<p class="quiet">Or try a sample book:</p>')
        return [gr.Button(sample.label(), size="sm", min_width=0) for sample in samples]


def build_chat() -> gr.Chatbot:
    """The conversation. Its text arrives with HTML escaped; the component sanitises it as well."""
    return gr.Chatbot(
        show_label=False,
        elem_id="chat",
        height="100%",
        buttons=[],
        group_consecutive_messages=False,  # figures and buttons beside the text, not in it
        placeholder=WELCOME,
        latex_delimiters=LATEX,
        sanitize_html=True,
        allow_tags=False,
        feedback_options=None,
        layout="bubble",
    )
