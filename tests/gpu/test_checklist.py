"""The call for a GPU, rehearsed: it must run the first time."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import checklist
from tests.gpu.checklist import STEPS, Here, Report, Step, main, read_json, run_all, run_step, spawn

FAILING = Step("failing", 1.0, "fails", "machine")
without_cuda = pytest.mark.skipif(hasattr(torch._C, "_cuda_getDeviceCount"), reason="torch was built with CUDA")


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
    assert run_step(FAILING, tmp_path, tiny=True) == 1
    found = read_json(tmp_path / "failing.json")
    assert found["status"] == "failed" and found["error"] == "ZeroDivisionError: on purpose"
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
    found = spawn(FAILING, tmp_path, 0.05, tiny=True)
    assert found["status"] == status and time.perf_counter() - started < 30
    assert read_json(tmp_path / "failing.json") == found
    assert status == "late" or "last words" in found["log"] or "code 0" in found["error"]


def test_what_does_not_fit_is_skipped_by_name_and_the_rest_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def pretended(step: Step, out: Path, minutes: float, *, tiny: bool) -> dict[str, Any]:
        ran.append(step.name)
        return {"status": "done" if step.name == "short" else "failed", "seconds": 1, "results": {}}

    monkeypatch.setattr(checklist, "spawn", pretended)
    steps = [Step(name, minutes, "", "machine") for name, minutes in (("long", 9), ("short", 2), ("other", 1))]
    found = run_all(steps, tmp_path, 5, tiny=False)
    assert ran == ["short", "other"] and found["skipped"] == ["long"] and found["failed"] == ["other"]
    written = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert written == found and len(written["commit"]) in (7, 40) and set(written["steps"]) == {"short", "other"}
    assert "long: skipped" in capsys.readouterr().out


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path), "--steps", "load,nothing"])


@pytest.mark.long
def test_the_rehearsal_runs_every_step(tmp_path: Path) -> None:
    assert main(["--tiny", "--minutes", "40", "--out", str(tmp_path)]) == 0
    summary = read_json(tmp_path / "summary.json")
    assert set(summary["steps"]) == {step.name for step in STEPS} and not summary["skipped"]
    for step in STEPS:
        found = read_json(tmp_path / f"{step.name}.json")
        assert found["status"] == "done" and found["results"], step.name


@pytest.mark.slow
@without_cuda
@pytest.mark.parametrize("name", ["versions", "races", "pinning", "attention", "waits", "graphs"])
def test_what_is_asked_of_cuda_alone_runs_on_a_pretended_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of a rehearsal, and every line that a rehearsal leaves out."""
    from tests.core.cuda_stubs import pretended_gpu

    monkeypatch.setattr("core.planning.cost_model.LINK_BYTES", 1 << 12)
    monkeypatch.setattr("core.planning.cost_model.SHARING_BYTES", 1 << 12)
    monkeypatch.setattr("tests.gpu.kernels.GIB", 1 << 20)
    step = next(step for step in STEPS if step.name == name)
    with pretended_gpu():
        step.run(Here(True, True, Report(tmp_path / f"{name}.json", name, tiny=True)))
    results = json.dumps(read_json(tmp_path / f"{name}.json")["results"])
    assert "not on a processor" not in results
