"""The tab System: what it shows in each state of the model, and a report that tells nothing of what was read."""

import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
import torch

from app.conversations.exchange import Exchange
from app.runtime.events import LoadFailed, Loading, Ready
from app.runtime.versions import versions
from app.runtime.worker import EngineWorker
from app.ui.site import Site
from app.ui.system.facts import PARTS, Kept, Snapshot, Usage, guesses, weight_facts
from app.ui.system.tab import PARTS as TAB_PARTS
from app.ui.system.tab import data_folder, kept_in, report, system
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


def shot(state: Any, **changed: Any) -> Snapshot:
    taken = Snapshot(
        state=state,
        taken=datetime(2026, 11, 21, 15, 0),
        system="Linux 6.1, x86_64",
        versions={"python": "3.11.7", "torch": "2.13.0"},
        machine=MACHINE,
        usage=Usage(used_bytes=700 << 20, peak_bytes=800 << 20),
        folder=HOME / ".triforce-reader",
        folder_chosen=False,
        kept=[Kept("uploads", 0, 0)],
        home=HOME,
    )
    return replace(taken, **changed)


@pytest.fixture
def ready(engine: FakeEngine) -> Ready:
    return Ready(cast(Any, engine.info), MACHINE, engine.context)


def drawn(worker: EngineWorker, session_id: str = "") -> dict[str, Any]:
    """What the tab shows: "system" and "report"."""
    site, session = Site(worker), worker.sessions.enter(session_id)
    return {part.name: part.draw(site, session) for part in TAB_PARTS if part.name in ("system", "report")}


# -------------------- the page


def test_the_plan_is_drawn_to_scale_and_every_choice_has_its_reason(ready: Ready) -> None:
    html = system(shot(ready))
    found = re.search(r"<svg.*?</svg>", html, re.DOTALL)
    assert found
    svg = ElementTree.fromstring(found.group())
    widths = {rect.get("class"): float((rect.get("width") or "").rstrip("%")) for rect in svg.iter("rect")}
    # planned 900 MiB and a byte: weights 300, runtime 600; in use 700 on the same scale
    assert widths["fill weights"] == pytest.approx(100 / 3, abs=0.1)
    assert [float((rect.get("width") or "").rstrip("%")) for rect in svg.iter("rect")][-1] == pytest.approx(
        700 / 9, abs=0.1
    )
    titles = [title.text for title in svg.iter("title")]
    assert titles[0] == "target weights: 300 MiB" and titles[-1] == "this process: 700 MiB"
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
    assert "up to near ties" in text_of(system(shot(ready))) and "token for token" not in report(shot(ready))


def test_loading_and_a_failure_show_what_is_known(ready: Ready) -> None:
    loading = text_of(system(shot(Loading(), machine=None, usage=None)))
    assert "The model is being loaded" in loading and "looked up while the model is loaded" in loading
    assert "torch 2.13.0" in loading and "Planned" not in loading
    error = NotEnoughMemory("The weights need 13.0 GiB of /home/alice/x.", hint=f"Choose {EVIL}.")
    failed = shot(LoadFailed(error), usage=None)
    html = system(failed)
    assert "could not be loaded" in html and "The weights need 13.0 GiB" in html and "<img" not in html
    assert "test processor" in html
    told = report(failed)
    assert "Problem:           The weights need 13.0 GiB of …/x. (Choose" in told and "alice" not in told


def test_a_gpu_that_is_not_used_is_told_with_what_mends_it(ready: Ready) -> None:
    machine = replace(MACHINE, unused_gpu=UNUSED_GPU)
    line = "torch 2.13.0+cpu is a build without CUDA. Run: python launch.py repair"
    for state in (ready, LoadFailed(NotEnoughMemory("No room.", hint="Make some."))):
        html = system(shot(state, machine=machine))
        assert f"GPU NVIDIA <img> RTX, not used {line}" in text_of(html) and "<img" not in html
        assert f"NVIDIA <img> RTX, not used ({line})" in report(shot(state, machine=machine))
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


def test_the_report_tells_figures_and_verdicts_but_nothing_that_was_read(
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
    shown = drawn(worker, session_id)
    view, told = shown["system"], shown["report"]
    assert "TriForce: mismatch" in text_of(view) and "The texts differ from token 3" in text_of(view)
    assert SECRET not in told and "dark" not in told and str(tmp_path) not in told
    for fact in ("method:            triforce (end_of_text)", "2 tokens, 20.0 ms per token", "TriForce: mismatch"):
        assert fact in told, told
    assert "level 1 50%, level 2 75%" in told and "doctor --acceptance 0.50,0.75" in told
    assert "folder:            chosen by the user" in told


def test_what_the_host_attends_to_is_told_with_its_reason(ready: Ready, engine: FakeEngine) -> None:
    engine.info.host_memory = SimpleNamespace(value="pinned", because="copies run beside computing")
    engine.info.plan.cpu_attention = SimpleNamespace(value=0.35, because="measured: both end together")
    engine.info.plan.resident_layers = 0
    html = text_of(system(shot(ready)))
    assert "Host attends to 35% of it measured: both end together" in html
    assert "Host attends:" in report(shot(ready)) and "to 35% of it" in report(shot(ready))


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
    assert "Measured here" not in text_of(system(shot(ready)))


def test_acceptance_is_that_of_exact_answers_only(ready: Ready) -> None:
    lossy = replace(finished("a b", "h2o"), exact=False)
    assert "Accepted" not in text_of(system(shot(ready, exchanges=(Exchange("q", lossy),))))
    both = (Exchange("q", lossy), Exchange("q", finished("a b")))
    assert "level 1 50%, level 2 75%" in text_of(system(shot(ready, exchanges=both)))


def test_what_is_kept_is_counted_and_other_folders_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert data_folder() == tmp_path / ".triforce-reader"
    (tmp_path / "uploads" / "deep").mkdir(parents=True)
    (tmp_path / "holiday pictures").mkdir()
    (tmp_path / "uploads" / "deep" / "a.txt").write_text("x" * 3000)
    assert kept_in(tmp_path) == [Kept("uploads", 1, 3000)]
    assert kept_in(tmp_path / "nowhere") == []


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
