"""The page: its tabs, and the places in them. What they show comes by one stream; what a reader does is one act each.

Gradio has the frame: blocks, tabs, theme and uploads.
"""

from collections.abc import Mapping

import gradio as gr

from app.ui.acts import Act
from app.ui.header import KEYS, masthead
from app.ui.inside import view as inside
from app.ui.library import acts as library_acts
from app.ui.library import view as library
from app.ui.models import offer as models
from app.ui.pane import pane, static
from app.ui.race import tab as race
from app.ui.reading import acts as reading_acts
from app.ui.reading import parts as reading
from app.ui.site import Part, Site
from app.ui.system import tab as system

PARTS: tuple[Part, ...] = (*reading.PARTS, *library.PARTS, *race.PARTS, *inside.PARTS, *system.PARTS)
ACTS: tuple[Mapping[str, Act], ...] = (
    reading_acts.ACTS,
    library_acts.ACTS,
    library.ACTS,
    race.ACTS,
    inside.ACTS,
    models.ACTS,
)
SILENCE = (
    '<div class="silence" role="status">The reader’s program does not answer. This page goes on by itself when it is '
    "back.</div>"
)


def build_page(site: Site) -> gr.Blocks:
    """The whole page."""
    page: gr.Blocks = gr.Blocks(
        title="TriForce Reader", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)
    )
    with page:
        pane("masthead", "masthead", masthead(site.worker.state))
        pane("banner", "banner")
        with gr.Tabs(elem_id="tabs"):
            reading.build_tab()
            library.build_tab()
            if not site.elsewhere:
                race.build_tab()
                inside.build_tab()
            system.build_tab()
        pane("problem", "told")
        static(SILENCE + KEYS)
    return page
