"""The tab "Read": book, conversations and settings at the side; figures, chat and question in the main column.

An opened page stands beside them.
"""

import gradio as gr

from app.runtime.sessions import Session
from app.ui.pane import build_drop, build_fold, pane, tab_heading
from app.ui.reading.book_view import book_card
from app.ui.reading.live_strip import LiveStrip
from app.ui.reading.settings import Fields, build_settings

QUESTION = """<form id="question" data-question>
<textarea rows="1" placeholder="Ask about the book" aria-label="Question" dir="auto"></textarea>
<button type="submit" class="send" aria-label="Send the question" title="Send (Enter)"><svg viewBox="0 0 24 24"
aria-hidden="true"><path d="M4 4l17 8-17 8 3-8z M7 12h14"/></svg></button>
<button type="button" class="stop" data-act="stop" aria-label="Stop the answer" title="Stop (Esc)"></button></form>
<p class="sending" role="status" hidden>Your question is sent as soon as the file is uploaded.</p>"""
LOG = 'role="log" aria-label="Conversation" aria-live="off"'


def build_read_tab() -> Fields:
    """The tab's places, and the fields of the settings."""
    with gr.Tab("Read", id="read", elem_id="read-tab"), gr.Row(elem_id="shell"):
        tab_heading("Read")
        with gr.Column(elem_id="side", min_width=280, scale=0):
            pane("book", "book", book_card(Session("")))
            build_fold("side", "Books")
            pane("reading", "reading-buttons")
            build_drop("drop", "Open books", 104)
            pane("samples", "samples")
            pane("conversations", "conversations")
            pane("setting:method", "method")
            fields = build_settings()
        with gr.Column(elem_id="main", scale=1, min_width=320):
            with gr.Column(elem_id="figures", min_width=0, scale=0):
                pane("strip", "strip", LiveStrip().html())
                pane("where", "where")
                build_fold("figures", "Figures")
            pane("offer", "model-offer")
            pane("choosing", "choosing")
            pane("about", "about-book")
            pane("chat", "chat", attributes=LOG)
            pane("suggestions", "suggestions")
            pane("editing", "editing")
            gr.HTML(QUESTION, elem_id="ask", apply_default_css=False)
            pane("note", "note")
        pane("leaf", "where-page")
    return fields
