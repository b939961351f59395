"""Places on the page: each shows one part of the state, drawn by the page's script (assets/static/js/stream.js)."""

import gradio as gr

from app.ui import render

MOUNTED = "window.triforcePage.mounted(element);"


def static(html: str, elem_id: str = "", loaded: str | None = None, classes: str = "") -> None:
    """HTML that does not change; `loaded`: what the script does once it is there."""
    gr.HTML(html, elem_id=elem_id or None, elem_classes=classes, js_on_load=loaded, apply_default_css=False)


def pane(part: str, elem_id: str = "", first: str = "", *, attributes: str = "") -> None:
    """The place of one part.

    Args:
        part: its name.
        first: HTML until the state has come.
        attributes: of the element that holds it.
    """
    static(f'<div data-part="{part}" {attributes}>{first}</div>', elem_id, MOUNTED)


def build_fold(name: str, label: str) -> None:
    """A button that opens and closes a part of the page, in the browser alone (assets/static/js/folds.js)."""
    button = render.button(label, tone="fold", also=f'data-fold="{name}" aria-controls="{name}"')
    static(button, f"{name}-fold")


def tab_heading(name: str) -> None:
    """A heading that screen readers hear, so that no level is missing between the page's and those of cards."""
    static(f"<h2>{name}</h2>", classes="unseen")


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
