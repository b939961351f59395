"""The tab System: what it shows in each state of the model, and a report that tells nothing of what was read."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from app.conversations.exchange import Exchange
from app.runtime.events import LoadFailed, Loading, Ready
from app.runtime.versions import versions
from app.runtime.worker import EngineWorker
from app.ui.site import Site
from app.ui.system.facts import PARTS, Snapshot, Usage, guesses, weight_facts
from app.ui.system.tab import PARTS as TAB_PARTS
from app.ui.system.tab import data_folder, system
from core.config import EngineConfig, GenerationConfig
from core.errors import NotEnoughMemory
from core.models.hub.catalog import find
from core.models.loader import read_dims
from core.models.param_count import size_in
from core.planning.hardware import Gpu, Machine
from core.planning.plan import make_plan
from core.planning.sizes import DRAFTING_WEIGHTS
from tests.app.fakes import MACHINE, UNUSED_GPU, FakeEngine, finished, lane_stats, opened, write_book
from tests.app.ui.pages import EVIL, text_of
from tests.app.ui.race.conftest import PAIR, raced

GPU_MACHINE = Machine("test processor", 2, 16 << 30, 12 << 30, (Gpu("small", 2 << 30, 2 << 30),))

SECRET = "Zanzibar"
HOME = Path("/home/alice")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: HOME)


def shot(state: Any, **changed: Any) -> Snapshot:
    taken = Snapshot(
        state=state,
        system="Linux 6.1, x86_64",
        versions={"python": "3.11.7", "torch": "2.13.0"},
        machine=MACHINE,
        usage=Usage(used_bytes=700 << 20, peak_bytes=800 << 20),
        folder=HOME / ".triforce-reader",
    )
    return replace(taken, **changed)


@pytest.fixture
def ready(engine: FakeEngine) -> Ready:
    return Ready(cast(Any, engine.info), MACHINE, engine.context)


def drawn(worker: EngineWorker, session_id: str = "") -> dict[str, Any]:
    """What the tab shows."""
    site, session = Site(worker), worker.sessions.enter(session_id)
    return {part.name: part.draw(site, session) for part in TAB_PARTS if part.name == "system"}


# -------------------- the page


def test_the_plan_is_drawn_to_scale_and_every_choice_has_its_reason(ready: Ready) -> None:
    html = system(shot(ready))
    spans = re.findall(r'<span class="key (\w+)" title="([^"]*)" style="width:([0-9.]+)%', html)
    # planned 900 MiB and a byte: weights 300, runtime 600; in use 700 on the same scale
    assert {tone: float(width) for tone, _, width in spans[:2]}["weights"] == pytest.approx(100 / 3, abs=0.1)
    assert float(spans[-1][2]) == pytest.approx(700 / 9, abs=0.1)
    assert spans[0][1] == "target weights: 300 MiB" and spans[-1][1] == "this process: 700 MiB"
    words = text_of(html)
    assert "Planned 900 MiB of 12.0 GiB that were free" in words and "In use now 700 MiB, at most 800 MiB" in words
    assert "Exact for fake, float32 weights not quantised" in words and "~/.triforce-reader" in words


def test_every_part_of_a_real_plan_has_a_purpose() -> None:
    entry = find("harbour")
    assert entry.draft is not None
    plan = make_plan(size_in(entry.target), read_dims(entry.draft), EngineConfig(), MACHINE)
    away = make_plan(size_in(entry.target), read_dims(entry.draft), EngineConfig(placement="offloaded"), GPU_MACHINE)
    assert {row.name for row in (*plan.rows, *away.rows)} | {DRAFTING_WEIGHTS} == set(PARTS)


def test_sixteen_bits_promise_less(ready: Ready, engine: FakeEngine) -> None:
    engine.info.plan.precision = "bfloat16"
    assert "up to near ties" in text_of(system(shot(ready)))


def test_loading_and_a_failure_show_what_is_known(ready: Ready) -> None:
    loading = text_of(system(shot(Loading(), machine=None, usage=None)))
    assert "The model is being loaded" in loading and "looked up while the model is loaded" in loading
    assert "torch 2.13.0" in loading and "Planned" not in loading
    error = NotEnoughMemory("The weights need 13.0 GiB of /home/alice/x.", hint=f"Choose {EVIL}.")
    failed = shot(LoadFailed(error), usage=None)
    html = system(failed)
    assert "could not be loaded" in html and "The weights need 13.0 GiB" in html and "<img" not in html
    assert "test processor" in html
    assert "The weights need 13.0 GiB of …/x." in text_of(html) and "alice" not in html


def test_a_gpu_that_is_not_used_is_told_with_what_mends_it(ready: Ready) -> None:
    machine = replace(MACHINE, unused_gpu=UNUSED_GPU)
    line = "torch 2.13.0+cpu is a build without CUDA. Run: python launch.py repair"
    for state in (ready, LoadFailed(NotEnoughMemory("No room.", hint="Make some."))):
        html = system(shot(state, machine=machine))
        assert f"GPU NVIDIA <img> RTX, not used {line}" in text_of(html) and "<img" not in html
    assert "GPU none no CUDA device found" in text_of(system(shot(ready)))


def test_versions_name_what_is_installed_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions()
    released, _, _ = found["torch"].partition("+")  # a wheel may tell its build in one of the two places only
    assert torch.__version__.startswith(released) and released.count(".") == 2
    assert {"python", "transformers", "gradio"} <= found.keys()
    monkeypatch.setattr("app.runtime.versions.ALWAYS", ("no-such-package",))
    monkeypatch.setattr("app.runtime.versions.WHERE_THERE", ("neither-this-one",))
    assert versions() == {"python": found["python"], "no-such-package": "missing"}


# -------------------- the tab and the report


def test_the_tab_tells_figures_and_verdicts_but_nothing_that_was_read(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / f"data {SECRET}" / "uploads"))
    book = write_book(tmp_path, f"{SECRET} was dark. " * 9, f"{SECRET}.txt")
    session_id = opened(worker, book)
    engine.enqueue(f"{SECRET} night.")
    list(worker.answer(session_id, f"Why {SECRET}?", GenerationConfig(method="triforce")))
    for text in (f"{SECRET} was dark.", f"{SECRET} was light."):
        engine.enqueue(text)
    race = raced(worker, session_id, PAIR)
    race.question = f"Why {SECRET}?"
    shown = drawn(worker, session_id)["system"]
    view, private = (text_of(part) for part in shown.split("data-private"))
    assert "TriForce: mismatch" in view and "The texts differ from token 3" in view
    assert SECRET not in view and "dark" not in view and str(tmp_path) not in shown
    assert "Last answer 2 tokens, 20.0 ms per token, level 1 accepted 50%, level 2 accepted 75% triforce" in view
    assert f"~/data {SECRET} chosen with --data-dir" in private, "the report has no part of it"


def test_what_the_host_attends_to_is_told_with_its_reason(ready: Ready, engine: FakeEngine) -> None:
    engine.info.host_memory = SimpleNamespace(value="pinned", because="copies run beside computing")
    engine.info.plan.cpu_attention = SimpleNamespace(value=0.35, because="measured: both end together")
    engine.info.plan.resident_layers = 0
    assert "Host attends to 35% of it measured: both end together" in text_of(system(shot(ready)))


def test_what_was_measured_here_is_told_by_context_and_method(ready: Ready) -> None:
    name = ready.info.model

    def told(method: str, tokens: int, seconds: float, context: int, model: str = name, *more: str) -> Exchange:
        stats = replace(lane_stats(tokens, method), new_tokens=tokens, decode_seconds=seconds)
        done = replace(finished("a b", method), stats=stats, prompt_tokens=context)
        return Exchange("q", done, model=model, methods=(method, *more))

    exchanges = (
        told("triforce", 100, 2.0, 8000),
        told("autoregressive", 10, 1.0, 8500),
        told("autoregressive", 30, 1.0, 8200),
        told("autoregressive", 40, 1.0, 2000),
        told("autoregressive", 900, 1.0, 2000, "another"),
        told("autoregressive", 900, 1.0, 2000, name, "triforce"),
    )
    shown = text_of(system(shot(ready, exchanges=exchanges)))
    assert "About 2,048 tokens Plain decoding 40.0 tokens/s" in shown
    assert "About 8,192 tokens Plain decoding 20.0 tokens/s, TriForce 50.0 tokens/s" in shown


def test_the_data_folder_is_where_the_start_has_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    assert data_folder() == HOME / ".triforce-reader"


@pytest.mark.parametrize(
    ("has_draft", "planned", "words"),
    [
        (True, "triforce", "guesses for level 1"),
        (True, "lookup", "not used: what followed the same words earlier is the guess"),
        (False, "lookup", "what followed the same words earlier is the guess"),
        (False, "retrieval", "the retrieval cache guesses"),
        (False, "autoregressive", "plain decoding makes no guesses"),
    ],
)
def test_the_draft_is_told_by_the_method_that_is_used(
    engine: FakeEngine, has_draft: bool, planned: str, words: str
) -> None:
    assert guesses(cast(Any, SimpleNamespace(has_draft=has_draft, usual_method=planned))) == words
    assert "of weights guesses for level 1" in text_of(system(shot(Ready(engine.info, MACHINE, 9))))


def test_blocks_of_a_file_are_named_and_not_called_32_bits(engine: FakeEngine) -> None:
    (usual,) = weight_facts(engine.info)
    engine.info.weights, engine.info.quantised = "Q4_K, Q6_K", True
    (stored,) = weight_facts(engine.info)
    assert usual.value == "32 bits" and (stored.value, "own blocks" in stored.note) == ("Q4_K, Q6_K", True)


def test_gpus_are_named(ready: Ready) -> None:
    machine = Machine("cpu", 16, 64 << 30, 60 << 30, (Gpu(f"A {EVIL}", 24 << 30, 23 << 30),))
    html = system(shot(ready, machine=machine))
    assert "23.0 GiB of 24.0 GiB free" in text_of(html) and "<img" not in html


@pytest.mark.parametrize(
    ("system_name", "advice"),
    [("Linux 6.1, x86_64", "start with --gpus N"), ("Windows 11, AMD64", "start it in WSL2 with --gpus N")],
)
def test_how_several_gpus_share_a_model_is_told(ready: Ready, system_name: str, advice: str) -> None:
    two = replace(GPU_MACHINE, gpus=GPU_MACHINE.gpus * 2)
    assert advice in text_of(system(shot(ready, machine=two, system=system_name)))
    assert "--gpus" not in text_of(system(shot(ready, machine=GPU_MACHINE, system=system_name)))
