"""Places on the page: each shows one part of the state, drawn by the page's script (assets/static/js/stream.js)."""

import gradio as gr

from app.ui import render

MOUNTED = "window.triforcePage.mounted(element);"


def pane(part: str, elem_id: str = "", first: str = "", *, attributes: str = "") -> None:
    """The place of one part.

    Args:
        part: its name.
        first: HTML until the state has come.
        attributes: of the element that holds it.
    """
    gr.HTML(
        f'<div data-part="{part}" {attributes}>{first}</div>',
        elem_id=elem_id or None,
        js_on_load=MOUNTED,
        apply_default_css=False,
    )


def build_fold(name: str, label: str) -> None:
    """A button that opens and closes a part of the page, in the browser alone (assets/static/js/folds.js)."""
    button = render.button(label, tone="fold", also=f'data-fold="{name}" aria-controls="{name}"')
    gr.HTML(button, elem_id=f"{name}-fold", js_on_load="window.triforceFolds.ready(element);", apply_default_css=False)


def tab_heading(name: str) -> None:
    """A heading that screen readers hear, so that no level is missing between the page's and those of cards."""
    gr.HTML(f"<h2>{name}</h2>", elem_classes="unseen", apply_default_css=False)


def build_drop(name: str, label: str, height: int) -> gr.File:
    """A place to drop files; the script opens what was uploaded."""
    drop: gr.File = gr.File(show_label=False, label=label, elem_id=name, file_count="multiple", height=height)
    drop.upload(
        None,
        drop,
        drop,
        js="(files) => window.triforcePage.opened(files)",
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )
    return drop
