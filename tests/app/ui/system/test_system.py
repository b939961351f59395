"""The tab System: what it shows in each state of the model, and a report that tells nothing of what was read."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from app.runtime.events import LoadFailed, Loading, Ready
from app.runtime.versions import versions
from app.runtime.worker import EngineWorker
from app.ui.header import masthead
from app.ui.system import tab
from app.ui.system.facts import PARTS
from core.config import EngineConfig
from core.errors import NotEnoughMemory
from core.models.hub.catalog import find
from core.models.loader import read_dims
from core.models.param_count import size_in
from core.planning.hardware import Gpu, Machine
from core.planning.plan import make_plan
from core.planning.sizes import DRAFTING_WEIGHTS
from tests.app.fakes import MACHINE, UNUSED_GPU, FakeEngine, opened, write_book
from tests.app.ui.pages import PageOf, text_of
from tests.app.ui.race.conftest import PAIR, raced

GPU_MACHINE = Machine("test processor", 2, 16 << 30, 12 << 30, (Gpu("small", 2 << 30, 2 << 30),))
SECRET = "Zanzibar"
HOME = Path("/home/alice")
Shown = Callable[..., str]
ERROR = NotEnoughMemory("The weights need 13.0 GiB of /home/alice/x.", hint="Choose another.")


@pytest.fixture
def ready(engine: FakeEngine) -> Ready:
    return Ready(cast(Any, engine.info), MACHINE, engine.context)


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The tab's HTML, on a machine of the test's own."""
    monkeypatch.setattr(Path, "home", lambda: HOME)
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr(tab, "used_bytes", lambda _: (700 << 20, 800 << 20))

    def draw(state: Any, machine: Machine | None = MACHINE, system: str = "Linux") -> str:
        monkeypatch.setattr(tab, "machine_of", lambda _: machine)
        monkeypatch.setattr("platform.system", lambda: system)
        site: Any = SimpleNamespace(worker=SimpleNamespace(state=state))
        return tab.system(site, cast(Any, SimpleNamespace(exchanges=(), race=None)))

    return draw


def test_the_plan_is_drawn_to_scale_and_every_choice_has_its_reason(
    ready: Ready, engine: FakeEngine, shown: Shown
) -> None:
    html = shown(ready)
    spans = re.findall(r'<span class="key (\w+)" title="([^"]*)" style="width:([0-9.]+)%', html)
    # planned 900 MiB and a byte: weights 300, runtime 600; in use 700 on the same scale
    assert {tone: float(width) for tone, _, width in spans[:2]}["weights"] == pytest.approx(100 / 3, abs=0.1)
    assert float(spans[-1][2]) == pytest.approx(700 / 9, abs=0.1)
    assert spans[0][1] == "target weights: 300 MiB" and spans[-1][1] == "this process: 700 MiB"
    words = text_of(html)
    for told in (
        "Planned 900 MiB of 12.0 GiB that were free",
        "In use now 700 MiB, at most 800 MiB",
        "Exact for fake, float32 weights not quantised",
        "~/.triforce-reader",
        "GPU none no CUDA device found",
        "Decodes by TriForce with lookup",
        "Weights 32 bits",
    ):
        assert told in words, told
    engine.info.plan.precision = "bfloat16"
    engine.info.weights, engine.info.quantised = "Q4_K, Q6_K", True
    engine.info.host_memory = SimpleNamespace(value="pinned", because="copies run beside computing")
    engine.info.plan.cpu_attention = SimpleNamespace(value=0.35, because="measured: both end together")
    words = text_of(shown(ready))
    for told in ("up to near ties", "Weights Q4_K, Q6_K the file's own blocks", "Host attends to 35% of it measured"):
        assert told in words, told


@pytest.mark.parametrize(
    ("system", "advice"),
    [("Linux", "start with --gpus N"), ("Windows", "start it in WSL2 with --gpus N")],
)
def test_gpus_are_named_with_what_uses_them(ready: Ready, shown: Shown, system: str, advice: str) -> None:
    one = text_of(shown(ready, GPU_MACHINE, system))
    assert "2.0 GiB of 2.0 GiB free" in one and "--gpus" not in one
    two = replace(GPU_MACHINE, gpus=GPU_MACHINE.gpus * 2)
    assert advice in text_of(shown(ready, two, system))
    line = "torch 2.13.0+cpu is a build without CUDA. Run: python launch.py repair"
    for state in (ready, LoadFailed(ERROR)):
        words = text_of(shown(state, replace(MACHINE, unused_gpu=UNUSED_GPU), system))
        assert f"GPU NVIDIA <img> RTX, not used {line}" in words


def test_every_part_of_a_real_plan_has_a_purpose() -> None:
    entry = find("harbour")
    assert entry.draft is not None
    plan = make_plan(size_in(entry.target), read_dims(entry.draft), EngineConfig(), MACHINE)
    away = make_plan(size_in(entry.target), read_dims(entry.draft), EngineConfig(placement="offloaded"), GPU_MACHINE)
    assert {row.name for row in (*plan.rows, *away.rows)} | {DRAFTING_WEIGHTS} == set(PARTS)


def test_loading_and_a_failure_show_what_is_known(shown: Shown) -> None:
    loading = text_of(shown(Loading(), None))
    assert "The model is being loaded" in loading and "looked up while the model is loaded" in loading
    assert f"torch {versions()['torch']}" in loading and "Planned" not in loading
    html = shown(LoadFailed(ERROR))
    assert "could not be loaded" in html and "The weights need 13.0 GiB of …/x." in text_of(html)
    assert "test processor" in html and "alice" not in html and "No model" in masthead(LoadFailed(ERROR))


def test_the_tab_tells_figures_and_verdicts_but_nothing_that_was_read(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / f"data {SECRET}" / "uploads"))
    page = PageOf(worker, opened(worker, write_book(tmp_path, f"{SECRET} was dark. " * 9, f"{SECRET}.txt")))
    engine.enqueue(f"{SECRET} night.")
    page.asks(f"Why {SECRET}?", method="triforce")
    for text in (f"{SECRET} was dark.", f"{SECRET} was light."):
        engine.enqueue(text)
    raced(worker, page.session.id, PAIR).question = f"Why {SECRET}?"
    html = page.state("system")["system"]
    view, private = (text_of(part) for part in html.split("data-private"))
    assert "TriForce: mismatch" in view and "The texts differ from token 3" in view
    assert SECRET not in view and "dark" not in view and str(tmp_path) not in html
    accepted = "level 1 accepted 50%, level 2 accepted 75%"
    assert f"Last answer 2 tokens, 20.0 ms per token, {accepted} TriForce. Complete; " in view
    assert f"~/data {SECRET} chosen with --data-dir" in private, "the report has no part of it"
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    assert tab.data_folder() == tmp_path / ".triforce-reader"


def test_versions_name_what_is_installed_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions()
    released, _, _ = found["torch"].partition("+")  # a wheel may tell its build in one of the two places only
    assert torch.__version__.startswith(released) and released.count(".") == 2
    assert {"python", "transformers", "gradio"} <= found.keys()
    monkeypatch.setattr("app.runtime.versions.ALWAYS", ("no-such-package",))
    monkeypatch.setattr("app.runtime.versions.WHERE_THERE", ("neither-this-one",))
    assert versions() == {"python": found["python"], "no-such-package": "missing"}
