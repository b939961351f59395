"""The section "Models" of the tab System: a list, downloads, changing the model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import gradio as gr
from gradio.blocks import Block

from app.runtime.downloads import Downloads
from app.runtime.events import Loading, Pause, Ready
from app.runtime.worker import EngineWorker
from app.ui.js_bridge import CLICKS
from app.ui.models import view
from app.ui.models.rows import ModelRow, ModelSource, config_of, model_rows
from app.ui.updates import Updates, lasting
from core.errors import CoreError, UnknownModel


@dataclass(frozen=True, slots=True, eq=False)
class ModelParts:
    """The components."""

    act: gr.Textbox
    doing: gr.HTML  # a download, or why an action failed
    listing: gr.HTML
    path: gr.Textbox | None = None  # of a model to bring
    add: gr.Button | None = None

    @property
    def shown(self) -> list[Block]:
        """Components that events change."""
        return [self.doing, self.listing]


class ModelHandlers:
    """One method per event. The list is read from disk every time: other programs download too."""

    def __init__(self, worker: EngineWorker, source: ModelSource, downloads: Downloads, parts: ModelParts) -> None:
        self._worker, self._source, self._downloads, self._parts = worker, source, downloads, parts

    @lasting
    def enter(self, _session_id: str) -> Iterator[Updates]:
        """The tab has become visible: show the list, again when loading has ended, and a running download."""
        if self._source.unavailable:
            yield {self._parts.listing: view.unavailable(self._source.unavailable)}
            return
        if isinstance(self._worker.state, Loading):
            yield self.drawn()
        for state in self._worker.states():
            if isinstance(state, Pause):
                yield {self._parts.listing: gr.skip()}
            elif isinstance(state, Loading):
                yield {self._parts.doing: view.loading(state)}
            else:
                yield self.drawn()
        yield from self._follow()

    @lasting
    def act(self, _session_id: str, action: str | None) -> Iterator[Updates]:
        """A click on the list, or beside the download."""
        verb, _, name = (action or "").partition(":")
        if self._source.unavailable:
            return
        try:
            if verb == "get":
                self._downloads.start(name)
                yield self.drawn()
                yield from self._follow(seen=True)
            elif verb == "use":
                yield self._use(name)
            elif verb == "forget" and self._source.folders is not None:
                self._source.folders.forget(name)
                yield self.drawn()
            elif verb == "halt":
                self._worker.stop_loading()
            elif verb == "stop":
                self._downloads.stop()
            elif verb == "dismiss":
                self._downloads.dismiss()
                yield {self._parts.doing: view.download(self._downloads.now)}
        except CoreError as error:
            yield {self._parts.doing: view.refused(error)}

    def bring(self, _session_id: str, typed: str | None) -> Updates:
        """Add a model by its path, if it can be used."""
        parts, folders = self._parts, self._source.folders
        if folders is None or parts.path is None:
            return {parts.doing: gr.skip()}
        try:
            found = folders.bring(typed or "")
        except CoreError as error:
            return {parts.doing: view.refused(error)}
        return self.drawn() | {parts.doing: view.brought(found), parts.path: ""}

    def _use(self, name: str) -> Updates:
        rows = self._rows()
        row = next((row for row in rows if row.name == name and row.is_here), None)
        if row is None:
            raise UnknownModel(f"{name} is not on this disk.", hint="Download it first.")
        self._worker.switch(self._source.load(config_of(row, self._source)), name)
        self._downloads.dismiss()
        return {self._parts.doing: view.loading(Loading(name)), self._parts.listing: view.models(rows, loading=True)}

    def _follow(self, *, seen: bool = False) -> Iterator[Updates]:
        """Follow a download, then redraw the list; with `seen`, one that was already complete is not shown again."""
        for fetch in self._downloads.watch():
            if fetch.ended and (seen or fetch.stage != "done"):
                yield self.drawn() | {self._parts.doing: view.download(fetch)}
            elif not fetch.ended:
                yield {self._parts.doing: view.download(fetch)}
            seen = True

    def drawn(self) -> Updates:
        """The present list, and why the last requested model was not loaded."""
        state, now = self._worker.state, self._downloads.now
        if isinstance(state, Loading):
            if not state.model:
                return {self._parts.listing: view.waits(), self._parts.doing: view.loading(state)}
            rows = [replace(row, fit=None) for row in self._rows()]  # free memory changes while a model is loaded
            return {
                self._parts.listing: view.models(rows, loading=True),
                self._parts.doing: view.loading(state),
            }
        refused = state.refused if isinstance(state, Ready) else None
        fetching = now.name if now is not None and not now.ended else ""
        # A page that has told that a download is complete goes on telling it, until it is closed or the model is used
        settled = gr.skip() if now is not None and now.stage == "done" else ""
        return {
            self._parts.listing: view.models(self._rows(), fetching=fetching),
            self._parts.doing: view.not_loaded(refused) if refused else settled,
        }

    def _rows(self) -> list[ModelRow]:
        return model_rows(self._worker.state, self._source)


def build_models(*, brings: bool = False) -> ModelParts:
    """The components; progress stands above the list. `brings`: readers may name paths of this machine."""
    act = gr.Textbox(visible=False, show_label=False)
    doing = gr.HTML("", elem_id="models-doing", js_on_load=CLICKS, apply_default_css=False)
    if not brings:
        return ModelParts(act, doing, gr.HTML("", elem_id="models", js_on_load=CLICKS))
    with gr.Row(elem_id="bring-model"):
        path = gr.Textbox(
            label="Bring a model",
            info="The path of a folder with config.json and weights, or of a .gguf file. It is used where it is.",
            placeholder="/home/me/models/Qwen3-8B",
            max_lines=1,
            scale=1,
            elem_id="bring-path",
        )
        add = gr.Button("Add", size="sm", min_width=90, scale=0, elem_id="bring-add")
    return ModelParts(act, doing, gr.HTML("", elem_id="models", js_on_load=CLICKS), path, add)
