"""The tab "System": model, machine, exactness, location of data and models; its facts as text for bug reports."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import gradio as gr

from app import formats
from app.runtime.data_folder import data_place
from app.runtime.events import LoadFailed, Loading, ModelState, Ready
from app.runtime.sessions import Session
from app.runtime.versions import versions
from app.ui import render
from app.ui.charts import Bar, Segment, bars
from app.ui.models import view as models_view
from app.ui.models.rows import model_rows
from app.ui.pane import MOUNTED, pane, static, tab_heading
from app.ui.site import Is, Part, Site, standing
from app.ui.system.facts import (
    Fact,
    data_facts,
    exactness,
    machine_facts,
    measured_facts,
    model_facts,
    ordered,
    part_of,
)

if TYPE_CHECKING:  # importing it loads torch: the engine's thread does that while the page is already served
    from core.planning.hardware import Machine


REPORT = """<div id="system-copy-head"><div><h3>Report for a bug</h3>
<p class="quiet">Plain text to paste. No text of books, no questions, no names of files.</p></div>
<span id="system-copied" role="status"></span>
<button type="button" id="copy-report" data-copy-report>Copy report</button></div>
<textarea id="system-report" aria-label="Report" rows="14" readonly></textarea>"""
BRING = """<form id="bring-model" data-submit="bring"><label><b>Bring a model</b>
<small class="info">The path of a folder with config.json and weights, or of a .gguf file. It is used where it
is.</small>
<input type="text" name="path" placeholder="/home/me/models/Qwen3-8B" autocomplete="off"></label>
<button type="submit" id="bring-add">Add</button></form>"""


def data_folder() -> Path:
    """The data folder: the parent of the uploads folder, which the app's start has set."""
    uploads = os.environ.get("GRADIO_TEMP_DIR")
    return Path(uploads).parent if uploads else data_place(None)


def machine_of(state: ModelState) -> "Machine | None":
    """The machine: as found when the model was loaded; inspected now if that failed and torch is installed."""
    if isinstance(state, Ready):
        return state.machine
    if isinstance(state, LoadFailed):
        try:
            from core.planning.hardware import this_machine
        except ImportError:  # perhaps why loading failed
            return None
        return this_machine()
    return None


def used_bytes(state: Ready) -> tuple[int, int]:
    """Memory of this process on the model's device: now, and at most."""
    from core.planning.hardware import peak_memory_bytes, resolve_device, used_memory_bytes

    device = resolve_device(state.info.plan.device.value)
    return used_memory_bytes(device), peak_memory_bytes(device)


# -------------------- the models


def models(site: Site) -> str:
    """The list. It is read from disk every time: other programs download, too."""
    state, source, now = site.worker.state, site.source, site.downloads.now
    if source is None:
        return ""
    if source.unavailable:
        return models_view.section(source.unavailable)
    if isinstance(state, Loading):  # free memory changes then
        return models_view.models(site.rows, loading=True) if site.rows else models_view.section(models_view.WAITS)
    fetching = now.name if now is not None and not now.ended else ""
    site.rows = tuple(model_rows(state, source))
    return models_view.models(site.rows, fetching=fetching)


def _models_key(site: Site, session: Session) -> object:
    state, now = site.worker.state, site.downloads.now
    loads = state.model if isinstance(state, Loading) else Is(state)
    brought = site.source.folders.names() if site.source and site.source.folders else ()
    return (loads, now and (now.name, now.ended), tuple(brought), len(session.acts))


def bring(site: Site) -> str:
    """The form to bring a model by its path, where readers may name paths of this machine."""
    return BRING if site.source is not None and site.source.folders is not None else ""


HEADS = {
    Loading: ("running", "The model is being loaded"),
    LoadFailed: ("failed", "The model could not be loaded"),
    Ready: ("ready", "The model is loaded"),
}


def system(site: Site, session: Session) -> str:
    """The tab. The script makes the report for bugs of it, but for where data lies (assets/static/js/inside.js)."""
    state, cards, race = site.worker.state, "", session.race
    if isinstance(state, Ready):
        cards = _card("Model", model_facts(state)) if state.info.elsewhere else memory_card(state)
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}"
    cards += (
        _card("Exactness and speculation", exactness(state, race))
        + _card("Machine", machine_facts(state, machine_of(state), machine), wide=False)
        + _card("Measured here", measured_facts(session.exchanges, race), wide=False)
        + _card("Versions", [Fact(name, version) for name, version in versions().items()], wide=False)
        + _card("Where data lies", data_facts(state, data_folder()), private=True)
    )
    tone, words = HEADS[type(state)]
    error = render.problem(state.error) if isinstance(state, LoadFailed) else ""
    return formats.with_tilde(
        f'<section class="system" aria-label="System"><div class="strip-head {tone}"><span class="dot"></span>'
        f'<span class="status" role="status">{words}</span><a class="others" href="#models">Other models</a></div>'
        f'{error}<div class="cards">{cards}</div></section>',
        Path.home(),
    )


def memory_card(ready: Ready) -> str:
    """The plan's memory by purpose, with reasons."""
    plan, (used, most) = ready.info.plan, used_bytes(ready)
    segments = tuple(
        Segment(part_of(row.name).tone, row.name, row.size_bytes, formats.amount(row.size_bytes))
        for row in ordered(plan)
    )
    available = formats.amount(plan.available_bytes)
    data = [Bar("Planned", f"{formats.amount(plan.total_bytes)} of {available} that were free", segments)]
    if used:
        now = Segment("other", "this process", used, formats.amount(used))
        at_most = f", at most {formats.amount(most)} so far" if most > used else ""
        data.append(Bar("In use now", f"{formats.amount(used)}{at_most}", (now,)))
    about = "planned for a full context, before anything is loaded; what was never written to is not taken"
    rows = "".join(
        f'<tr><th scope="row"><i class="key {part_of(row.name).tone}"></i>{render.escape(row.name)}</th>'
        f"<td>{formats.amount(row.size_bytes)}</td>"
        f"<td>{formats.percent(row.size_bytes / max(1, plan.total_bytes))}</td>"
        f'<td class="quiet">{part_of(row.name).purpose}</td></tr>'
        for row in ordered(plan)
    )
    table = f'<table class="parts" aria-label="Parts of the plan"><tbody>{rows}</tbody></table>'
    return (
        f'<section class="sheet wide memory" aria-label="Model and memory"><h3>Model and memory</h3>'
        f"{bars('Memory', about, data, table=False)}{table}{render.facts(model_facts(ready))}</section>"
    )


def _card(title: str, rows: Sequence[Fact], *, wide: bool = True, private: bool = False) -> str:
    kind, also = "sheet wide" if wide else "sheet", " data-private" if private else ""
    card = f'<section class="{kind}" aria-label="{title}"{also}><h3>{title}</h3>{render.facts(rows)}</section>'
    return card if rows else ""


PARTS = (
    Part("system", system, standing, tab="system", rest=0.5, aside=True),
    Part("models-doing", lambda site, _: models_view.doing(site.worker.state, site.downloads.now), tab="system"),
    Part("bring", lambda site, _: bring(site), tab="system"),
    Part("models", lambda site, _: models(site), _models_key, tab="system", rest=0.3, aside=True),
)


def build_tab() -> None:
    """The tab's places."""
    with gr.Tab("System", id="system", elem_id="system-tab"), gr.Column(elem_id="system"):
        tab_heading("System")
        pane("system", "system-view")
        pane("models-doing", "models-doing")
        pane("bring", "bring")
        pane("models", "models")
        static(REPORT, "system-copy", MOUNTED)
