"""The tab "System": model, machine, exactness, location of data; and a report to copy. Always visible."""

import os
import platform
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import gradio as gr

from app.runtime.events import LoadFailed, Loading, ModelState, Ready
from app.runtime.sessions import Session
from app.runtime.versions import versions
from app.ui.models import acts as models_acts
from app.ui.models import view as models_view
from app.ui.models.rows import model_rows
from app.ui.pane import pane, tab_heading
from app.ui.shown import shown_of
from app.ui.site import Part, Site, standing
from app.ui.state import Is
from app.ui.system.facts import Kept, Snapshot, Usage
from app.ui.system.view import report, system

if TYPE_CHECKING:  # importing it loads torch: the engine's thread does that while the page is already served
    from core.planning.hardware import Machine

DEFAULT_FOLDER = ".triforce-reader"
OURS = ("uploads", "conversations", "shelf")  # in the data folder; a folder chosen by the user may have others
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


def snapshot(site: Site, session: Session) -> Snapshot:
    """The present state of everything shown."""
    state, folder, home = site.worker.state, data_folder(), Path.home()
    return Snapshot(
        state=state,
        taken=datetime.now(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        versions=versions(),
        machine=machine_of(state),
        usage=usage_of(state),
        folder=folder,
        folder_chosen=folder != home / DEFAULT_FOLDER,
        kept=kept_in(folder),
        home=home,
        exchanges=session.exchanges,
        race=session.race,
    )


def data_folder() -> Path:
    """The data folder: the parent of the uploads folder, which the app's start has set."""
    uploads = os.environ.get("GRADIO_TEMP_DIR")
    return Path(uploads).parent if uploads else Path.home() / DEFAULT_FOLDER


def kept_in(folder: Path) -> list[Kept]:
    """Files and bytes in each of our parts of the data folder. File names are not shown."""
    return [_kept(folder / name) for name in OURS if (folder / name).is_dir()]


def _kept(part: Path) -> Kept:
    sizes = []
    for file in part.rglob("*"):
        try:
            if file.is_file():
                sizes.append(file.stat().st_size)
        except OSError:  # deleted meanwhile
            continue
    return Kept(part.name, len(sizes), sum(sizes))


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


def usage_of(state: ModelState) -> Usage | None:
    """Memory of this process on the model's device; None before the model is loaded."""
    if not isinstance(state, Ready) or state.info.elsewhere:
        return None
    from core.planning.hardware import peak_memory_bytes, resolve_device, used_memory_bytes

    device = resolve_device(state.info.plan.device.value)
    return Usage(used_bytes=used_memory_bytes(device), peak_bytes=peak_memory_bytes(device))


# -------------------- the models


def doing(site: Site, session: Session) -> str:
    """What goes on with models, or how the last act on them ended."""
    state, now = site.worker.state, site.downloads.now
    if told := shown_of(session).told.get(models_acts.TOLD):
        return told
    if isinstance(state, Loading):
        return models_view.loading(state)
    if now is not None:
        return models_view.download(now)
    return models_view.not_loaded(state.refused) if isinstance(state, Ready) and state.refused else ""


def models(site: Site) -> str:
    """The list. It is read from disk every time: other programs download, too."""
    state, source, now = site.worker.state, site.source, site.downloads.now
    if source is None:
        return ""
    if source.unavailable:
        return models_view.unavailable(source.unavailable)
    if isinstance(state, Loading):  # free memory changes then
        return models_view.models(site.rows, loading=True) if site.rows else models_view.waits()
    fetching = now.name if now is not None and not now.ended else ""
    site.rows = tuple(model_rows(state, source))
    return models_view.models(site.rows, fetching=fetching)


def _models_key(site: Site, session: Session) -> object:
    state, now = site.worker.state, site.downloads.now
    loads = state.model if isinstance(state, Loading) else Is(state)
    return (loads, now and (now.name, now.ended), shown_of(session).told.get(models_acts.TOLD), len(session.acts))


def bring(site: Site) -> str:
    """The form to bring a model by its path, where readers may name paths of this machine."""
    return BRING if site.source is not None and site.source.folders is not None else ""


PARTS = (
    Part("system", lambda *of: system(snapshot(*of)), standing, tab="system", rest=0.5, aside=True),
    Part("report", lambda *of: report(snapshot(*of)), standing, tab="system", rest=0.5, aside=True),
    Part("models-doing", doing, tab="system"),
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
        gr.HTML(
            REPORT,
            elem_id="system-copy",
            js_on_load="window.triforcePage.mounted(element);",
            apply_default_css=False,
        )
