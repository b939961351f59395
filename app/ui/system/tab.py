"""The tab "System": model, machine, exactness, location of data; and a report to copy. Always visible."""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr
from gradio.blocks import Block

from app.runtime.events import LoadFailed, ModelState, Pause, Ready
from app.runtime.versions import versions
from app.runtime.worker import EngineWorker
from app.ui.header import tab_heading
from app.ui.models.tab import ModelParts, build_models
from app.ui.system.report import report
from app.ui.system.view import Kept, Snapshot, Usage, accepted, system, written
from app.ui.updates import Updates, lasting
from core.decoding.stats import DecodeStats

if TYPE_CHECKING:  # importing it loads torch: the engine's thread does that while the page is already served
    from core.planning.hardware import Machine
    from core.planning.speed_model import Prediction

DEFAULT_FOLDER = ".triforce-reader"
OURS = ("uploads", "conversations", "shelf")  # in the data folder; a folder chosen by the user may have others
COPY = """async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not allowed, or the page came over plain HTTP from another machine
    const box = document.querySelector("#system-report textarea");
    box.select();
    document.execCommand("copy");
  }
  return '<p class="quiet" role="status">Copied.</p>';
}"""


class SystemHandlers:
    """One method per event of the tab."""

    def __init__(self, worker: EngineWorker, view: gr.HTML, text: gr.Textbox, copied: gr.HTML) -> None:
        self._worker, self._view, self._text, self._copied = worker, view, text, copied

    @lasting
    def enter(self, session_id: str) -> Iterator[Updates]:
        """The tab has become visible: show the present state, and again when loading has ended."""
        for state in self._worker.states():
            if isinstance(state, Pause):
                yield {self._view: gr.skip()}
                continue
            shot = self.snapshot(session_id, state)
            yield {self._view: system(shot), self._text: report(shot), self._copied: ""}

    def snapshot(self, session_id: str, state: ModelState) -> Snapshot:
        """The present state of everything shown."""
        session = self._worker.sessions.find(session_id)
        folder, home = data_folder(), Path.home()
        exchanges, race = (session.exchanges, session.race) if session else ((), None)
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
            expected=expected_of(state, written(exchanges, race)),
            exchanges=exchanges,
            race=race,
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


def expected_of(state: ModelState, answers: Sequence[tuple[str, DecodeStats]]) -> "Prediction | None":
    """The expected speed of the loaded model; None before it is loaded."""
    if not isinstance(state, Ready) or state.info.elsewhere:
        return None
    from app.ui.system.expected_speed import expect

    return expect(state, answers, accepted(answers))


class SystemTab(NamedTuple):
    """The tab and its components that other events redraw."""

    tab: gr.Tab
    enter: Callable[[str], Iterator[Updates]]
    shown: list[Block]
    models: ModelParts


def build_system_tab(
    worker: EngineWorker, session: gr.Textbox, stream: dict[str, Any], *, brings: bool = False
) -> SystemTab:
    """The tab's components and events. `stream`: how events run that may wait for the model; `brings`: see
    `build_models`."""
    tab: gr.Tab = gr.Tab("System", id="system", elem_id="system-tab")
    with tab, gr.Column(elem_id="system"):
        tab_heading("System")
        view = gr.HTML("", elem_id="system-view")
        models = build_models(brings=brings)
        with gr.Column(elem_id="system-copy"):
            with gr.Row(elem_id="system-copy-head"):
                gr.HTML(ABOUT_REPORT)
                copied = gr.HTML("", elem_id="system-copied")
                copy = gr.Button("Copy report", size="sm", elem_id="copy-report", min_width=0, scale=0)
            text = gr.Textbox(
                show_label=False, label="Report", lines=12, max_lines=24, interactive=False, elem_id="system-report"
            )
    handlers = SystemHandlers(worker, view, text, copied)
    shown: list[Block] = [view, text, copied]
    tab.select(handlers.enter, session, shown, api_name="system", **stream)
    copy.click(None, text, copied, js=COPY, api_visibility="private")
    return SystemTab(tab, handlers.enter, shown, models)


ABOUT_REPORT = (
    "<h3>Report for a bug</h3>"
    '<p class="quiet">Plain text to paste. No text of books, no questions, no names of files.</p>'
)
