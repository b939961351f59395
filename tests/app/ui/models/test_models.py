"""Models on the page: what is told of each, a download that can be followed and ended, a change, and the offer."""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from huggingface_hub import constants

from app.runtime.downloads import Downloads, Fetch
from app.runtime.events import Loading, Ready
from app.runtime.model_folders import ModelFolders
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.server import serve_page
from app.ui.models import offer, view
from app.ui.models import rows as rows_module
from app.ui.models.offer import best
from app.ui.models.rows import Fit, ModelRow, ModelSource, Speeds, config_of, fit_of, model_rows
from app.ui.models.view import download, fit_line, loading, models
from app.ui.reading.book_view import book_card
from app.ui.site import Site
from app.ui.system import tab as system_tab
from core.errors import CoreError, UnknownModel
from core.models.hub import catalog, local, shapes, store
from core.models.loader import dims_of
from core.planning.hardware import Gpu, Machine
from tests.app.fakes import ANSWER, MACHINE, SECONDS, FakeEngine, in_thread, settled, wait_for
from tests.app.ui.models.conftest import source
from tests.app.ui.pages import PageOf, text_of
from tests.core.models.hub.test_download import REPO, WEIGHTS
from tests.core.models.hub.test_local import add
from tests.core.models.hub.toy_hub import ToyHub
from tests.thinkers import save_thinker

ROW = ModelRow(name="m", description="d", context=4096, is_here=False, size_bytes=10**9)
NO = Fit(weights_refused="It needs 24 GiB.")
GPU = Machine("test processor", 8, 64 << 30, 48 << 30, (Gpu("large", 24 << 30, 23 << 30),))
LIMITS = "Bundled demonstration model: answers are reliable for books like the samples"


def fits(triforce: float, *, context: int = 131_072, reading: float = 60.0) -> Fit:
    speeds = Speeds(plain=triforce / 2, triforce=triforce, because="seen", reading_seconds=reading, pages=100)
    return Fit(context=context, speeds=speeds)


def fetched(downloads: Downloads, condition: Callable[[Fetch], bool] = lambda fetch: fetch.ended) -> Fetch:
    """The download, once it is so far."""
    wait_for(lambda: downloads.now and condition(downloads.now))
    assert downloads.now is not None
    return downloads.now


def is_used(worker: EngineWorker, model: str) -> bool:
    """Wait until no model is being loaded; whether this one is in use."""
    state = settled(worker)
    return isinstance(state, Ready) and state.info.model == model


class ModelPage(PageOf):
    """What one page shows of the models."""

    @property
    def doing(self) -> str:
        return view.doing(self.site.worker.state, self.site.downloads.now)

    @property
    def listing(self) -> str:
        return system_tab.models(self.site)

    @property
    def offered(self) -> str:
        return offer.html(self.site, self.session)


def a_page(worker: EngineWorker, of: ModelSource | None = None, session: Session | None = None) -> ModelPage:
    settled(worker)
    return ModelPage(worker, session.id if session else "", source=of or source())


# -------------------- what is told


def test_the_list_has_every_target_and_asks_nobody(worker: EngineWorker, toys: ToyHub) -> None:
    shown = a_page(worker).listing
    assert "fake in use" in text_of(shown), "what runs is told, though no catalogue has it"
    acts = re.findall('data-act="model-([a-z]+:tiny|[a-z]+:harbour)"', shown)
    assert sorted(acts) == ["get:tiny", "use:harbour"]
    assert "harbour-draft" not in {row.name for row in model_rows(worker.state, source())}
    assert toys.tokens == [] == toys.asked, "the network was asked before Download was pressed"


def test_what_can_be_used_comes_first_and_the_rest_is_folded_with_its_reason() -> None:
    order: dict[str, dict[str, Any]] = {
        "used": {"in_use": True},
        "brought": {"is_brought": True, "fit": NO},
        "here": {"is_here": True, "fit": fits(1.0, reading=9000.0)},
        "suited": {"size_bytes": 1, "is_suited": True, "fit": fits(9.0)},
        "large": {"size_bytes": 9, "fit": fits(9.0)},
        "small": {"size_bytes": 1, "fit": fits(90.0)},
        "slow": {"fit": fits(1.0, reading=900.0)},
        "slower": {"fit": fits(1.0, reading=9000.0)},
        "no": {"to_come_bytes": 10**9, "fit": NO},
    }
    rows = [replace(ROW, name=name, **changed) for name, changed in order.items()]
    assert sorted(reversed(rows), key=lambda row: row.use) == rows
    shown, _, folded = models(rows).partition("<details")
    assert re.findall("<h4>([a-z]*)", shown) == [*order][:-1] and re.findall("<h4>([a-z]*)", folded) == ["no"]
    assert "1 more model that this machine cannot use" in folded and "It needs 24 GiB." in folded
    assert "model-get" not in folded and "<details" not in models(rows[:-1])


def test_weights_that_do_not_fit_are_told_from_a_context_that_does_not() -> None:
    row = catalog.entries()["llama-3.1-8b"]
    shape = shapes.find_shape(row.name)
    assert shape is not None and row.parameters is not None
    dims = replace(dims_of(shape.config, row.name, weight_bytes=0), weight_bytes=2 * row.parameters)

    def fit(machine: Machine, **options: Any) -> tuple[Fit, str]:
        found = fit_of(row.name, dims, None, machine, source(**options))
        return found, fit_line(found)[0]

    found, line = fit(replace(MACHINE, free_ram_bytes=4 << 30))
    assert "weights" in found.weights_refused and "Does not fit this machine" in line
    found, line = fit(GPU)
    assert found.context == 131_072 and not found.weights_refused and "host memory" in line
    tight, line = fit(replace(GPU, free_ram_bytes=2 << 30), context=131_072)
    assert 0 < tight.context < 131_072 and tight.context_refused and not tight.weights_refused
    assert f"It fits with {tight.context:,}" in line
    assert config_of(replace(ROW, fit=tight), source(context=131_072)).context == tight.context
    beyond = fit_of("qwen2.5-7b", replace(dims, max_context=32_768), None, GPU, source(context=131_072))
    assert beyond.context == 32_768 and beyond.context_refused


def test_only_what_can_be_done_is_offered() -> None:
    offers: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({"to_come_bytes": 10**9}, ["get"]),
        ({"is_here": True}, ["use"]),
        ({"is_here": True, "in_use": True}, []),
        ({"is_here": True, "draft": "small", "to_come_bytes": 10**8}, ["get", "use"]),
        ({"is_here": True, "fit": NO}, []),
        ({"to_come_bytes": 10**9, "fit": NO}, []),
    )
    assert " disabled>" in models([replace(ROW, to_come_bytes=10**9)], fetching="another")
    for changed, acts in offers:
        assert re.findall('data-act="model-(.*?):m"', models([replace(ROW, **changed)])) == acts, changed


# -------------------- a download


def test_a_download_is_followed_cancelled_gone_on_with_and_ends_visibly_whatever_happens(
    toys: ToyHub, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads, files = Downloads(), ("config.json", "generation_config.json", "tokenizer.json", WEIGHTS)
    downloads.start("tiny")
    fetch = fetched(downloads, lambda fetch: fetch.done_bytes > 1 << 20)
    assert fetch.total_bytes == sum(len(toys.files[name]) for name in files)
    shown = text_of(download(fetch))
    assert "Downloading tiny" in shown and "of 3.17 MB" in shown and "Cancel" in shown
    with pytest.raises(CoreError, match="tiny is being downloaded"):
        downloads.start("tiny")
    downloads.stop()
    assert downloads.now is not None and downloads.now.stage == "stopping"
    gate.set()
    last = fetched(downloads)
    assert last.stage == "stopped" and store.has_parts(REPO) and "cancelled" in download(last)
    downloads.start("tiny")
    last = fetched(downloads)
    assert last.stage == "done" and last.kept_bytes > 1 << 20 and last.done_bytes == last.total_bytes
    fetch_all = downloads._fetch
    monkeypatch.setattr(downloads, "_fetch", lambda *asked: (fetch_all(*asked), downloads.stop())[0])
    downloads.start("tiny")
    assert fetched(downloads).stage == "done", "cancelled too late"
    monkeypatch.setattr("core.models.hub.download.check_disk", lambda *_: 1 / 0)
    downloads.start("tiny")
    assert "ended with an error (ZeroDivisionError)" in download(fetched(downloads))
    with pytest.raises(UnknownModel):
        downloads.start("../../etc")


# -------------------- another model


def test_use_changes_the_model_and_refusals_are_told(worker: EngineWorker, toys: ToyHub) -> None:
    of, held = source(), threading.Event()
    page = a_page(worker, replace(of, load=lambda config: lambda: held.wait(SECONDS) and of.load(config)()))
    before = page.listing
    assert not page.does("model-use:tiny") and page.problem == "tiny is not on this disk." and page.doing == ""
    page.does("model-use:harbour")
    assert "Loading harbour" in page.doing
    buttons = page.listing.split("<button")[1:]
    assert buttons and all(" disabled>" in button for button in buttons) and len(buttons) == before.count("<button")
    held.set()
    assert is_used(worker, "harbour") and "harbour in use" in text_of(page.listing) and page.doing == ""


@pytest.mark.parametrize(("option", "value"), [("remote", "http://127.0.0.1:1"), ("gpus", 2)])
def test_where_models_cannot_be_changed_the_section_only_says_why(
    worker: EngineWorker, arguments: Any, option: str, value: object
) -> None:
    setattr(arguments, option, value)
    page = a_page(worker, serve_page.model_source(arguments))
    assert f"--{option}" in page.listing and "data-act" not in page.listing
    assert not any(page.does(act) for act in ("model-use:harbour", "model-get:harbour", "bring:/tmp"))


def test_a_model_is_brought_by_its_path_and_taken_off_the_list(
    worker: EngineWorker, toys: ToyHub, tmp_path: Path
) -> None:
    folder, folders = save_thinker(tmp_path / "mine"), ModelFolders()
    page = a_page(worker, replace(source(), folders=folders))
    assert "<form" in system_tab.bring(page.site) and system_tab.bring(Site(worker, source=source())) == ""
    assert not page.does(f"bring:{tmp_path / 'nowhere'}") and page.problem and page.doing == ""
    before = system_tab._models_key(page.site, page.session)
    folders.bring(str(folder))
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


def running(path: Path) -> Ready:
    info = FakeEngine().info
    info.model, info.path = path.name, str(path)
    return Ready(info, MACHINE, 4096)


def test_of_two_folders_with_one_name_the_loaded_one_is_in_use(toys: ToyHub, tmp_path: Path) -> None:
    same, folders = [save_thinker(tmp_path / where / "harbour") for where in ("a", "b")], ModelFolders()
    for folder in same:
        folders.bring(str(folder))
    rows = model_rows(running(same[0]), replace(source(), folders=folders))
    assert [row.name for row in rows if row.in_use] == [str(same[0])] and len(rows) == 4, "it has one row"


def test_an_odd_configuration_leaves_the_list_and_can_be_forgotten(toys: ToyHub, tmp_path: Path) -> None:
    folder, folders = save_thinker(tmp_path / "odd"), ModelFolders(tmp_path / "models.json")
    folders.bring(str(folder))
    file = folder / "config.json"
    for change in ({"hidden_act": "nosuch"}, {"num_attention_heads": 0}, {"vocab_size": 0}):
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        rows_module.counted.cache_clear()
        shown = models(model_rows(running(tmp_path), replace(source(), folders=folders)))
        assert f'data-act="model-forget:{folder}"' in shown and f'data-act="model-use:{folder}"' not in shown
        assert 'data-act="model-use:harbour"' in shown


def test_readers_from_elsewhere_learn_no_path(toys: ToyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model in a GGUF file, which the hub's cache keeps as a link to a blob."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "blob").write_bytes(b"GGUF")
    (add(tmp_path / "hub", "who/one") / "one.gguf").symlink_to(tmp_path / "blob")
    monkeypatch.setattr(local, "look_at", lambda name, shown, path: local.LocalModel(name=name, shown=shown, path=path))
    (name,) = [one.name for one in local.in_cache()]
    state = running(tmp_path)
    assert name.endswith("one.gguf") and name in {
        row.name for row in model_rows(state, replace(source(), folders=ModelFolders()))
    }, "the owner may use it"
    rows = model_rows(state, source())
    assert name not in {row.name for row in rows} and str(tmp_path) not in models(rows) + loading(Loading(name))
    assert "one.gguf" in loading(Loading(name)) and "Qwen/Qwen3-8B" in loading(Loading("Qwen/Qwen3-8B"))


# -------------------- the offer above the chat


def test_the_largest_model_that_is_quick_enough_is_best() -> None:
    def row(name: str, size: int, triforce: float, *, reading: float = 60.0, context: int = 131_072) -> ModelRow:
        return replace(ROW, name=name, size_bytes=size, fit=fits(triforce, reading=reading, context=context))

    slow, good, small = row("slow", 9, 2.0), row("good", 5, 9.0), row("small", 1, 90.0)
    short, hours = row("short", 8, 40.0, context=16_384), row("hours", 9, 9.0, reading=7200.0)
    gated, bundled = replace(row("gated", 7, 9.0), gated=True), replace(row("bundled", 9, 900.0), is_bundled=True)
    assert best([slow, good, small, short, gated, bundled, hours, replace(ROW, fit=NO)]) == good
    assert best([slow, row("slower", 9, 1.0)]) == slow, "none is quick: the quickest"
    assert best([gated, bundled]) == gated and best([bundled, ROW]) is None
    assert best([small, short], 100_000) == small and best([short], 100_000) == short, "it should hold the book"
    four_bits = replace(row("four bits", 3, 20.0), is_suited=True)
    assert best([good, four_bits, small]) == four_bits and best([good, replace(four_bits, fit=fits(2.0))]) == good
    here = replace(gated, is_here=True)
    assert best([good, here]) == here, "what is on the disk needs no licence any more"


def test_a_book_of_another_kind_or_an_idle_gpu_brings_the_offer_and_nothing_is_asked(
    worker: EngineWorker, engine: FakeEngine, toys: ToyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.info.limits = LIMITS
    page = a_page(worker)
    assert page.offered == "", "nothing is open, and there is no GPU"
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 8)
    list(worker.open_books(page.session.id, [tmp_path / "book.txt"]))
    assert page.session.book is not None
    shown, note = page.offered, page.session.book.note
    told = text_of(shown)
    assert "The full model tiny suits this machine best." in told and 'data-act="offer-get:tiny"' in shown
    assert told.count(note) == 1 and note.startswith(LIMITS)
    assert "demonstration" not in book_card(page.session), "said once, above the chat"
    assert "about 33.42 MB to download" in told and "tokens a second" in told
    assert toys.tokens == [] == toys.asked
    assert note in offer.html(Site(worker), page.session), "where no model can be offered it is said, too"
    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "Bring a folder: python launch.py --model FOLDER" in page.offered and "get:" not in page.offered
    engine.info.limits = ""
    assert page.offered == "", "a full model is in use"
    engine.info.limits, engine.info.plan.device.value = LIMITS, "cuda"
    machine, state = replace(MACHINE, gpus=(Gpu("Big", 24 << 30, 23 << 30),)), worker.state
    monkeypatch.setattr("app.ui.models.rows.machine_alone", lambda _: machine)
    page.site.worker = cast(Any, SimpleNamespace(state=replace(cast(Ready, state), machine=machine)))
    told = text_of(offer.html(page.site, worker.sessions.enter("")))
    assert "For your own books on the Big of this machine: tiny suits" in told


def test_a_wished_model_is_used_once_it_is_here_unless_it_was_stopped_or_an_answer_is_written(
    worker: EngineWorker, engine: FakeEngine, session: Session, toys: ToyHub, gate: threading.Event
) -> None:
    engine.info.limits = LIMITS
    page = a_page(worker, session=session)
    downloads = page.site.downloads
    session.book = replace(session.book, note=LIMITS) if session.book else None
    toys.gated, toys.token = True, "secret"
    page.does("offer-get:tiny")
    fetched(downloads)
    assert "toys/tiny is gated" in text_of(page.offered) and "suits this machine" in page.offered, "above the offer"
    toys.gated, toys.token = False, None
    page.does("model-dismiss"), page.does("offer-get:tiny")
    fetched(downloads, lambda fetch: fetch.done_bytes > 0)
    page.does("model-stop")
    gate.set()
    assert fetched(downloads).stage == "stopped"
    page.does("model-get:tiny")  # from the System tab
    assert fetched(downloads).stage == "done" and is_used(worker, "fake")
    engine.writing.clear()
    answering, _ = in_thread(worker.answer(session.id, "Why?", ANSWER))
    wait_for(lambda: engine.configs)
    page.does("offer-get:tiny")
    wait_for(lambda: page.problem, "the change was refused, and it is said")
    assert "Read with tiny" in text_of(page.offered) and is_used(worker, "fake"), "the reader changes later"
    engine.writing.set()
    answering.join(SECONDS)
    assert page.does("model-use:tiny") and is_used(worker, "tiny")


def test_the_smallest_model_needs_no_hub_and_is_offered_beside_the_best(
    worker: EngineWorker, engine: FakeEngine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.info.limits = LIMITS
    page = a_page(worker, session=session)
    session.book = replace(session.book, note=LIMITS) if session.book else None
    small = replace(ROW, name="small", size_bytes=10**8, to_come_bytes=10**8, fit=fits(90.0), needs_hub=False)
    large = replace(ROW, name="tiny", size_bytes=10**9, to_come_bytes=10**9, fit=fits(9.0))
    here, unfit = replace(small, is_here=True, to_come_bytes=0), replace(large, fit=NO)

    def shown(*rows: ModelRow) -> str:
        monkeypatch.setattr("app.ui.models.offer.model_rows", lambda *_: list(rows))
        return page.offered

    told, acts = text_of(shown(small, large)), re.findall('data-act="([^"]*)"', shown(small, large))
    assert "The full model small answers soonest, often wrongly; tiny suits this machine best." in told
    assert "Download small (100.00 MB, 100 pages in 1 min)" in told
    assert acts == ["offer-get:small", "offer-get:tiny"], "the quickest way to a real answer comes first"
    assert 'class="act strong" data-act="model-use:small"' in shown(here, large)
    assert "small" not in text_of(shown(small, replace(large, is_here=True, to_come_bytes=0))), "the best is here"
    alone = shown(small, unfit)
    assert "small suits this machine best; it is small and often wrong." in text_of(alone)
    assert alone.count("get:small") == 1 and "No known full model fits" in shown(unfit)
    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "get:" not in shown(small, large) and "use:small" in shown(here, large)
    engine.info.model, engine.info.limits = "smollm2-135m", ""
    told = text_of(shown(here, large))
    assert "smollm2-135m is small and often wrong. Of the larger models, tiny suits" in told
    assert "soonest" not in told and shown(here) == "", "nothing larger fits"
