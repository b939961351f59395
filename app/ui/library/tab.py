"""The tab "Library": Find, the open documents with their order and parts, a page of one of them, and saved books."""

import gradio as gr

from app.ui.library.find_view import FIELD
from app.ui.library.page_viewer import NO_PAGE
from app.ui.library.saved import saved_books
from app.ui.library.view import EMPTY, incoming, listing
from app.ui.pane import pane, tab_heading
from app.ui.reading.tab import build_drop
from app.ui.shown import shown_of
from app.ui.site import Part, standing

PARTS = (
    Part("found", lambda _, session: shown_of(session).found, tab="library"),
    Part("incoming", lambda _, session: incoming(session), tab="library"),
    Part("library", lambda _, session: listing(session), standing, tab="library"),
    Part("preview", lambda _, session: shown_of(session).leaves.get("library", NO_PAGE), tab="library"),
    Part("saved", saved_books, tab="library", rest=1.0),
)


def build_tab() -> None:
    """The tab's places."""
    with gr.Tab("Library", id="library", elem_id="library-tab"), gr.Row(elem_id="library"):
        tab_heading("Library")
        with gr.Column(elem_id="library-column", min_width=300, scale=1):
            gr.HTML(FIELD, elem_id="find", apply_default_css=False)
            pane("found", "found")
            build_drop("library-drop", "Add to the library", 72)
            pane("incoming", "library-incoming")
            pane("library", "library-list", EMPTY)
            pane("saved", "saved")
        with gr.Column(elem_id="library-page", min_width=300, scale=2):
            pane("preview", "library-preview", NO_PAGE)
