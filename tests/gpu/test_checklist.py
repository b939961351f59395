"""The call for a GPU, rehearsed: it must run the first time."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from core.config import GenerationConfig
from tests.core.cuda_stubs import pretended_gpu
from tests.core.toys import random_prompt
from tests.gpu import checklist
from tests.gpu.checklist import STEPS, Here, Options, Report, Step, main, read_json, run_step, spawn
from tests.gpu.passes import FIXED, differing, everything, offloads, toy
from tests.gpu.texts import pair_in
from tests.gpu.traces import busy

FAILING = Step("failing", 1.0, "machine")
TINY = Options(tiny=True, commit="abc")


def test_every_step_has_a_function_and_the_budget_holds_them() -> None:
    for step in STEPS:
        module = __import__(f"tests.gpu.{step.module}", fromlist=[step.name])
        assert callable(getattr(module, step.name)), step.name
    assert sum(step.minutes for step in STEPS) <= 25 and len({step.name for step in STEPS}) == len(STEPS)


def test_a_step_that_fails_leaves_what_it_found_and_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(here: Here) -> None:
        here.report.add("first", {"dtype": torch.float16})
        assert read_json(tmp_path / "failing.json")["results"]["first"] == {"dtype": "torch.float16"}, "at once"
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("tests.gpu.machine.failing", failing, raising=False)
    assert run_step(FAILING, tmp_path, TINY) == 1
    found = read_json(tmp_path / "failing.json")
    assert (
        found["status"] == "failed" and found["commit"] == "abc" and found["error"] == "ZeroDivisionError: on purpose"
    )
    assert "raise ZeroDivisionError" in found["traceback"] and found["results"]["first"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os; print('last words', flush=True); os.kill(os.getpid(), 9)", "crashed"),
        ("import time; time.sleep(60)", "late"),
        ("raise SystemExit(0)", "crashed"),  # it says that all is well, and left nothing
    ],
)
def test_a_step_that_crashes_or_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: str
) -> None:
    monkeypatch.setattr(checklist, "command_of", lambda *_, **__: [sys.executable, "-c", code])
    started = time.perf_counter()
    found = spawn(FAILING, tmp_path, 0.01, TINY)
    assert found["status"] == status and time.perf_counter() - started < 30
    assert read_json(tmp_path / "failing.json") == found
    assert status == "late" or "last words" in found["log"] or "code 0" in found["error"]


def test_a_target_and_its_draft_are_found_by_size(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pair_in(str(tmp_path))
    for name, size in (("small.gguf", 1), ("large/model.safetensors", 9), ("large/config.json", 1), ("notes.txt", 99)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size * 10_000)
    assert pair_in(str(tmp_path)) == (str(tmp_path / "large"), str(tmp_path / "small.gguf"))
    assert pair_in(str(tmp_path / "large")) == (str(tmp_path / "large"), "auto")


def test_one_wrong_row_or_bit_of_a_logit_is_noticed() -> None:
    engine = toy(torch.device("cpu"), *offloads()[0])
    config = GenerationConfig(method="triforce", max_new_tokens=6, speculation=FIXED)
    first, again = (everything(engine, random_prompt(150), config) for _ in range(2))
    assert (
        differing(first, again) == [] and len(first[1]) >= 6 and first[2].shape[0] == engine.full_cache.shape.num_layers
    )
    first[2][-1, 0, 0, 7, 3] += 1
    first[1][0, 0] = first[1][0, 0].nextafter(torch.tensor(9e9))
    assert differing(first, again) == ["logits", "rows"]


def test_a_trace_says_how_busy_the_link_is() -> None:
    copy, kernel = "Memcpy HtoD (Pinned -> Device)", "gemm"
    found = busy([(copy, (0, 40)), (kernel, (30, 50)), (copy, (60, 90)), (copy, (60, 70)), ("Memcpy DtoH", (90, 100))])
    assert found["copies to the device, share"] == 0.7 and found["computing, share"] == 0.2
    assert found["nothing at all, share"] == pytest.approx(0.1)
    assert found["longest gaps between copies, ms"] == [{"ms": 0.02, "at": 0.04}]
    assert found["device"][0] == {"op": copy, "ms": 0.08} and busy([]) == {}


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path), "--steps", "load,nothing"])


@pytest.mark.long
def test_the_rehearsal_runs_every_step(tmp_path: Path) -> None:
    assert main(["--tiny", "--minutes", "40", "--out", str(tmp_path)]) == 0
    summary = read_json(tmp_path / "summary.json")
    assert {"versions", *summary["steps"]} == {step.name for step in STEPS} and not summary["skipped"]
    assert (tmp_path / "summary.json").stat().st_size < 1_000_000
    for step in STEPS:
        found = read_json(tmp_path / f"{step.name}.json")
        assert found["status"] == "done" and found["results"], step.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["versions", "races", "pinning", "attention", "waits", "graphs"])
def test_what_is_asked_of_cuda_alone_runs_on_a_pretended_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of a rehearsal, and every line that a rehearsal leaves out."""
    monkeypatch.setattr("tests.gpu.kernels.GIB", 1 << 20)
    step = next(step for step in STEPS if step.name == name)
    with pretended_gpu():
        step.run(Here(TINY, True, Report(tmp_path / f"{name}.json", {})))
    results = json.dumps(read_json(tmp_path / f"{name}.json")["results"])
    assert "not on a processor" not in results
