"""The section "Models": what is told of every model, a download that can be followed and ended, a change of model."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from huggingface_hub import constants

from app.runtime.downloads import Downloads, Fetch
from app.runtime.events import Loading, Ready
from app.runtime.model_folders import ModelFolders
from app.runtime.worker import EngineWorker
from app.server import serve_page
from app.ui.models import rows as rows_module
from app.ui.models import view
from app.ui.models.rows import Fit, ModelRow, ModelSource, Speeds, config_of, fit_of, model_rows
from app.ui.models.view import download, fit_line, loading, models, not_loaded
from app.ui.site import Site
from app.ui.system import tab as system_tab
from core.config import EngineConfig
from core.errors import CoreError, NotEnoughMemory, UnknownModel
from core.models.hub import catalog, local, shapes, store
from core.models.loader import dims_of
from core.planning.hardware import Gpu, Machine
from tests.app.fakes import MACHINE, SECONDS, FakeEngine, wait_for
from tests.app.ui.pages import EVIL, PageOf
from tests.core.models.hub.test_download import REPO, WEIGHTS
from tests.core.models.hub.test_local import add
from tests.core.models.hub.toy_hub import ToyHub
from tests.thinkers import save_thinker

ROW = ModelRow(name="m", description="d", context=4096, is_here=False, size_bytes=10**9)


def fits(triforce: float, *, context: int = 131_072, reading: float = 60.0) -> Fit:
    speeds = Speeds(plain=triforce / 2, triforce=triforce, because="seen", reading_seconds=reading, pages=100)
    return Fit(context=context, speeds=speeds)


GPU = Machine("test processor", 8, 64 << 30, 48 << 30, (Gpu("large", 24 << 30, 23 << 30),))


def source(**options: Any) -> ModelSource:
    def load(config: EngineConfig) -> Any:
        def make() -> tuple[FakeEngine, Machine]:
            engine = FakeEngine()
            engine.info.model = config.model
            return engine, MACHINE

        return make

    return ModelSource(config=lambda name: EngineConfig(model=name, **options), load=load)


def ended(downloads: Downloads) -> Fetch:
    return fetching(downloads, lambda fetch: fetch.ended)


def fetching(downloads: Downloads, condition: Callable[[Fetch], bool]) -> Fetch:
    wait_for(lambda: downloads.now and condition(downloads.now))
    assert downloads.now is not None
    return downloads.now


class ModelPage(PageOf):
    """What one page shows of the models."""

    @property
    def doing(self) -> str:
        return view.doing(self.site.worker.state, self.site.downloads.now)

    @property
    def listing(self) -> str:
        return system_tab.models(self.site)


def a_page(worker: EngineWorker, source: ModelSource, downloads: Downloads | None = None) -> ModelPage:
    list(worker.states())
    return ModelPage(worker, source=source, downloads=downloads or Downloads())


def text_of(html: str) -> str:
    page = ElementTree.fromstring(f"<div>{html.replace('&nbsp;', ' ').replace(' data-keep', '')}</div>")
    return " ".join(unescape(" ".join(page.itertext())).split())


# -------------------- what is told


def test_the_list_has_every_target_and_asks_nobody(worker: EngineWorker, toys: ToyHub) -> None:
    shown = a_page(worker, source()).listing
    assert EVIL not in shown and "A toy. <img" in text_of(shown)
    assert "fake in use" in text_of(shown), "what runs is told, though no catalogue has it"
    assert 'data-act="model-get:tiny"' in shown and 'data-act="model-use:tiny"' not in shown
    assert 'data-act="model-use:harbour"' in shown and 'data-act="model-get:harbour"' not in shown
    assert "harbour-draft" not in {row.name for row in model_rows(worker.state, source())}
    assert toys.tokens == [] == toys.asked, "the network was asked before Download was pressed"


def test_what_can_be_used_comes_first_and_the_rest_is_folded_with_its_reason() -> None:
    no = replace(ROW, name="no", to_come_bytes=10**9, fit=Fit(weights_refused="It needs 24 GiB."))
    rows = [
        replace(ROW, name="used", in_use=True),
        replace(ROW, name="brought", is_brought=True, fit=Fit(weights_refused="No.")),
        replace(ROW, name="here", is_here=True, fit=fits(1.0, reading=9000.0)),
        replace(ROW, name="suited", size_bytes=1, is_suited=True, fit=fits(9.0)),
        replace(ROW, name="large", size_bytes=9, fit=fits(9.0)),
        replace(ROW, name="small", size_bytes=1, fit=fits(90.0)),
        replace(ROW, name="slow", fit=fits(1.0, reading=900.0)),
        replace(ROW, name="slower", fit=fits(1.0, reading=9000.0)),
        no,
    ]
    assert sorted(reversed(rows), key=lambda row: row.use) == rows
    shown, _, folded = models(rows).partition("<details")
    assert "<h4>slower</h4>" in shown and "<h4>brought</h4>" in shown and "<h4>no</h4>" not in shown
    assert "1 more model that this machine cannot use" in folded and "It needs 24 GiB." in folded
    assert "model-get" not in folded and models([*rows[:-1], replace(no, fit=None)]).count("<details") == 0


def test_weights_that_do_not_fit_are_told_from_a_context_that_does_not() -> None:
    row = catalog.entries()["llama-3.1-8b"]
    shape = shapes.find_shape(row.name)
    assert shape is not None and row.parameters is not None
    dims = replace(dims_of(shape.config, row.name, weight_bytes=0), weight_bytes=2 * row.parameters)
    small = replace(MACHINE, free_ram_bytes=4 << 30)
    assert "weights" in fit_of(row.name, dims, None, small, source()).weights_refused
    assert "Does not fit this machine" in fit_line(fit_of(row.name, dims, None, small, source()))[0]
    whole = fit_of(row.name, dims, None, GPU, source())
    assert whole.context == 131_072 and not whole.weights_refused
    assert "host memory" in fit_line(whole)[0]
    poor = replace(GPU, free_ram_bytes=2 << 30)
    tight = fit_of(row.name, dims, None, poor, source(context=131_072))
    assert 0 < tight.context < 131_072 and tight.context_refused and not tight.weights_refused
    assert f"It fits with {tight.context:,}" in fit_line(tight)[0]
    assert config_of(replace(ROW, fit=tight), source(context=131_072)).context == tight.context
    beyond = fit_of("qwen2.5-7b", replace(dims, max_context=32_768), None, GPU, source(context=131_072))
    assert beyond.context == 32_768 and beyond.context_refused


@pytest.mark.parametrize(
    ("row", "acts"),
    [
        (replace(ROW, to_come_bytes=10**9), {"get"}),
        (replace(ROW, is_here=True), {"use"}),
        (replace(ROW, is_here=True, in_use=True), set()),
        (replace(ROW, is_here=True, draft="small", to_come_bytes=10**8), {"get", "use"}),
        (replace(ROW, is_here=True, fit=Fit(weights_refused="No.")), set()),
        (replace(ROW, to_come_bytes=10**9, fit=Fit(weights_refused="No.")), set()),
    ],
)
def test_only_what_can_be_done_is_offered(row: ModelRow, acts: set[str]) -> None:
    shown = models([row])
    assert {verb for verb in ("get", "use") if f'data-act="model-{verb}:m"' in shown} == acts


def test_names_and_errors_are_text() -> None:
    evil = replace(ROW, name=EVIL, description=EVIL, licence=EVIL, draft=EVIL, to_come_bytes=1)
    fetch = Fetch(name=EVIL, stage="fetching", total_bytes=9, done_bytes=3)
    error = NotEnoughMemory(EVIL, hint=EVIL)
    shown = [models([evil]), download(fetch), download(Fetch(name=EVIL, stage="failed", error=error))]
    for html in [*shown, not_loaded(error), download(Fetch(name=EVIL, stage="stopped"))]:
        assert "<img" not in html and "&lt;img" in html
        text_of(html)


# -------------------- a download


def test_a_download_is_followed_cancelled_and_gone_on_with(toys: ToyHub, gate: threading.Event) -> None:
    downloads = Downloads()
    downloads.start("tiny")
    fetch = fetching(downloads, lambda fetch: fetch.done_bytes > 1 << 20)
    assert fetch.total_bytes == sum(len(toys.files[n]) for n in store_files(toys))
    shown = text_of(download(fetch))
    assert "Downloading tiny" in shown and "of 3.17 MB" in shown and "Cancel" in shown
    with pytest.raises(CoreError, match="tiny is being downloaded"):
        downloads.start("tiny")
    downloads.stop()
    assert downloads.now is not None and downloads.now.stage == "stopping"
    gate.set()
    last = ended(downloads)
    assert last.stage == "stopped" and store.has_parts(REPO) and "cancelled" in download(last)
    downloads.start("tiny")
    last = ended(downloads)
    assert last.stage == "done" and last.kept_bytes > 1 << 20 and last.done_bytes == last.total_bytes
    ranges = [wanted for name, wanted, _ in toys.asked if name == WEIGHTS]
    assert len(ranges) == 2 and ranges[0] is None and ranges[1] is not None, "what was there was fetched again"
    assert not store.missing_files(cast(Path, store.locate(REPO)))


def store_files(toy: ToyHub) -> list[str]:
    return ["config.json", "generation_config.json", "tokenizer.json", WEIGHTS]


def test_an_error_nobody_thought_of_ends_the_download_visibly(toys: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr("core.models.hub.download.still_to_come", broken)
    downloads = Downloads()
    downloads.start("tiny")
    assert "ended with an error (RuntimeError)" in download(ended(downloads))
    with pytest.raises(UnknownModel):
        downloads.start("../../etc")


# -------------------- another model


def test_use_changes_the_model_and_refusals_are_told(worker: EngineWorker, toys: ToyHub) -> None:
    page, held = a_page(worker, source()), threading.Event()
    before = page.listing
    assert not page.does("model-use:tiny") and page.problem == "tiny is not on this disk." and page.doing == ""
    source_ = page.site.source
    assert source_ is not None

    def slow(config: EngineConfig) -> Any:
        def make() -> tuple[FakeEngine, Machine]:
            held.wait(SECONDS)
            return cast(Any, source_.load(config)())

        return make

    page.site.source = replace(source_, load=slow)
    page.does("model-use:harbour")
    assert "Loading harbour" in page.doing
    buttons = page.listing.split("<button")[1:]
    assert buttons and all(" disabled>" in button for button in buttons) and len(buttons) == before.count("<button")
    held.set()
    *_, state = worker.states()
    assert isinstance(state, Ready) and state.info.model == "harbour"
    assert "harbour in use" in text_of(page.listing) and page.doing == ""


@pytest.mark.parametrize(("option", "value"), [("remote", "http://127.0.0.1:1"), ("gpus", 2)])
def test_where_models_cannot_be_changed_the_section_only_says_why(
    worker: EngineWorker, arguments: Any, option: str, value: object
) -> None:
    setattr(arguments, option, value)
    page = a_page(worker, serve_page.model_source(arguments))
    assert f"--{option}" in page.listing and "data-act" not in page.listing
    assert not page.does("model-use:harbour") and not page.does("model-get:harbour") and not page.does("bring:/tmp")


def test_a_model_is_brought_by_its_path_and_taken_off_the_list(
    worker: EngineWorker, toys: ToyHub, tmp_path: Path
) -> None:
    folder = save_thinker(tmp_path / "mine")
    page = a_page(worker, replace(source(), folders=ModelFolders()))
    assert "<form" in system_tab.bring(page.site) and system_tab.bring(Site(worker, source=source())) == ""
    assert not page.does(f"bring:{tmp_path / 'nowhere'}") and page.problem and page.doing == ""
    before = system_tab._models_key(page.site, page.session)
    page.site.source.folders.bring(str(folder))  # type: ignore[union-attr]
    assert system_tab._models_key(page.site, page.session) != before, "by whomever: the list is drawn again"
    page.does(f"bring:{folder}")
    assert "<h4>mine</h4>" in page.listing and f'data-act="model-use:{folder}"' in page.listing
    page.does(f"model-forget:{folder}")
    assert str(folder) not in page.listing


def test_another_model_is_loaded_with_the_options_of_the_start(arguments: Any) -> None:
    arguments.model, arguments.draft, arguments.context, arguments.bits = "llama2-7b-128k", "llama-68m", 9000, 8
    chosen = serve_page.model_source(arguments)
    assert chosen.config("llama2-7b-128k").draft_model == "llama-68m"
    other = chosen.config("qwen3-8b")
    assert (other.model, other.draft_model, other.context, other.bits) == ("qwen3-8b", "auto", 9000, 8)
    arguments.draft = "none"
    assert serve_page.model_source(arguments).config("qwen3-8b").draft_model == "none"


# -------------------- models that lie on this disk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one model in a GGUF file, kept as the hub's library does: a link to a blob."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    blob = tmp_path / "blob"
    blob.write_bytes(b"GGUF")
    (add(tmp_path / "hub", "who/one") / "one.gguf").symlink_to(blob)
    return tmp_path


def running(path: Path) -> Ready:
    info = FakeEngine().info
    info.model, info.path = path.name, str(path)
    return Ready(info, MACHINE, 4096)


def test_of_two_folders_with_one_name_the_loaded_one_is_in_use(toys: ToyHub, tmp_path: Path) -> None:
    same = [save_thinker(tmp_path / where / "harbour") for where in ("a", "b")]
    folders = ModelFolders()
    for folder in same:
        folders.bring(str(folder))
    rows = model_rows(running(same[0]), replace(source(), folders=folders))
    assert [row.name for row in rows if row.in_use] == [str(same[0])]
    assert len(rows) == 4, "the model in use has one row"


def test_an_odd_configuration_leaves_the_list_and_can_be_forgotten(toys: ToyHub, tmp_path: Path) -> None:
    folder, folders = save_thinker(tmp_path / "odd"), ModelFolders(tmp_path / "models.json")
    folders.bring(str(folder))
    file = folder / "config.json"
    for change in ({"hidden_act": "nosuch"}, {"num_attention_heads": 0}, {"vocab_size": 0}):
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        rows_module._counted.cache_clear()
        shown = models(model_rows(running(tmp_path), replace(source(), folders=folders)))
        assert f'data-act="model-forget:{folder}"' in shown and f'data-act="model-use:{folder}"' not in shown
        assert 'data-act="model-use:harbour"' in shown


def test_readers_from_elsewhere_learn_no_path(
    toys: ToyHub, disk: Path, worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "look_at", lambda name, shown, path: local.LocalModel(name=name, shown=shown, path=path))
    (name,) = [one.name for one in local.in_cache()]
    assert name.endswith("one.gguf"), "the owner may use it"
    state = running(disk)
    assert name in {row.name for row in model_rows(state, replace(source(), folders=ModelFolders()))}
    rows = model_rows(state, source())
    assert name not in {row.name for row in rows} and str(disk) not in models(rows) + loading(Loading(name))
    assert "one.gguf" in loading(Loading(name)) and "Qwen/Qwen3-8B" in loading(Loading("Qwen/Qwen3-8B"))
