"""`doctor`: this machine, and machines that are only described. `models` on a hub of this machine."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from app.cli import doctor, models
from core.engine_builder import PairFiles
from core.models.hub.download import DownloadProgress
from core.planning import hardware
from core.planning.forecast import PUBLISHED
from tests.app.cli.conftest import Run
from tests.core.models.hub.test_download import SIZE
from tests.core.models.hub.test_download import hub as hub
from tests.core.models.hub.toy_hub import ToyHub

pytestmark = pytest.mark.usefixtures("no_measuring")
LLAMA = ("doctor", "--model", "llama2-7b-128k", "--context")


def test_a_machine_that_is_not_there_is_planned_and_named_as_assumed(run: Run) -> None:
    report = run(*LLAMA, 131072, "--gpu-memory", 24, "--gpus", 2, "--host-memory", 128, "--json").json
    assert report["machine"]["assumed"] == ["2 x 24 GiB GPU", "128 GiB of host memory"]
    plan = report["plan"]
    assert plan["placement"]["value"] == "split" and 12 <= plan["resident_layers"] < 32
    assert [tier["name"] for tier in plan["tiers"]] == ["GPU 0: 24 GiB GPU", "GPU 1: 24 GiB GPU", "host memory"]
    assert sum(plan["memory"].values()) == plan["total_bytes"] == sum(tier["used_bytes"] for tier in plan["tiers"])
    assert report["prediction"]["context"] == 131072, "the planned one"
    assert "nominal" in report["prediction"]["bandwidth_because"]
    assert report["prediction"]["acceptance_because"].startswith(PUBLISHED.because)
    assert plan["budget"]["value"] >= 4096, "none given: that of the figures, or more where there is room"
    assumed = run(*LLAMA, 131072, "--assume", "2x4090", "--host-memory", 128, "--json").json["prediction"]
    reasons = {name: assumed[name] for name in ("bandwidth_because", "link_because")}
    assert assumed == report["prediction"] | reasons


@pytest.mark.parametrize("found", [True, False])
def test_a_machine_without_a_compiler_is_told_what_brings_one(
    found: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "can_compile", lambda: found)
    shown = run("doctor").out
    assert shown.count("Parsers  ") == 1, "what a hostile document could reach here"
    assert "are not kept from files and network:" in doctor.parsers_line(["files", "network"])
    assert ("no C++ compiler" in shown) == ("pip install -r requirements-compiler.lock" in shown) == (not found)


def test_drafting_weights_are_planned_and_told(run: Run) -> None:
    options = (*LLAMA, 16384, "--assume", "1x4090", "--host-memory", 128, "--self-draft-bits", 4)
    plan = run(*options, "--json").json["plan"]
    assert plan["memory"]["self-draft weights, 4 bit"] == (6_476_005_376 + 131_072_000) * 9 // 16
    assert plan["self_draft_bits"]["value"] == 4 and plan["bits"]["value"] == 16
    shown = run(*options).out
    assert "Self-draft 4 bits: a second copy" in shown and "3.46 GiB  self-draft weights, 4 bit" in shown
    assert "would only add" in run(*options, "--bits", 4, code=2).error


def test_a_config_file_is_enough(run: Run, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
    for name in ("mine.json", "config.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "llama", "vocab_size": 1000, **sizes}))
        given = ("--context", 1024, "--bits", 4, "--acceptance", "0.5,0.9", "--json")
        report = run("doctor", "--model", tmp_path / name, *given).json
        assert report["sizes"]["parameters"] == 2 * 1000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1024) + 9 * 512
        assert report["plan"]["bits"]["value"] == 4 and not report["sizes"]["files_here"]
        assert report["prediction"]["acceptance2"] == 0.9 and report["prediction"]["acceptance_because"] == "as given"
    (tmp_path / "picture.json").write_text('{"model_type": "lxmert"}')
    assert "is no text model" in run("doctor", "--model", tmp_path / "picture.json", code=1).error
    folder = run("doctor", "--model", tmp_path, "--context", 1024, "--budget", 512, "--json").json
    assert folder["sizes"] == report["sizes"]
    assert "this plan's budget is 512" in folder["prediction"]["acceptance_because"]


def test_a_measured_pair_that_is_here_is_planned_with_what_was_measured_as_it_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "can_compile", lambda: True)
    report = run("doctor", "--context", 4096, "--device", "cpu", "--json").json
    assert report["plan"]["context"] == {"value": 4096, "because": "asked for"} and not report["machine"]["assumed"]
    assert report["prediction"]["acceptance_because"].startswith("measured with this pair")
    files, memory = PairFiles.find("harbour", "auto"), report["plan"]["memory"]
    assert files.draft is not None and 0 < files.target.packed_bytes < 4 * files.size().num_parameters
    assert memory["target weights"] == files.target.packed_bytes
    assert memory["draft weights"] == files.draft.packed_bytes
    assert "as stored: the compiled kernel" in run("doctor").out
    assert "Weights    32 bits" in run("doctor", "--attention", "torch").out


@pytest.mark.parametrize(
    ("wish", "layers"), [("auto", True), ("none", False), ("llama-68m", True), ("harbour-draft", True)]
)
def test_a_draft_that_is_wanted_is_planned_though_it_is_not_here(wish: str, layers: bool, run: Run) -> None:
    plan = run(*LLAMA, 4096, "--assume", "1xh100", "--draft", wish, "--json").json["plan"]
    assert ("draft weights" in plan["memory"]) is layers
    assert "no model 'nonsense'" in run(*LLAMA, 4096, "--draft", "nonsense", code=2).error


# -------------------- models


REPO = "mistralai/Mistral-Nemo-Instruct-2407"  # of the catalogue, without a draft


def test_a_model_is_fetched_shown_and_removed_and_what_is_stopped_keeps_what_arrived_and_says_how_to_go_on(
    run: Run, hub: ToyHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def stop(progress: DownloadProgress) -> str:
        if 0 < progress.file_bytes < progress.file_total_bytes:
            raise KeyboardInterrupt
        return ""

    hub.repo = REPO
    (row,) = run("models", "get", "mistral-nemo", "--json").json["repositories"]
    assert row["repository"] == REPO and row["fetched_bytes"] == row["size_bytes"] == SIZE + 20_023
    shown = run("models", "show", "mistral-nemo", "--json").json
    assert shown["state"] == "here" and shown["path"] == row["path"] and shown["kv_bytes_per_token"] == 160 << 10
    assert shown["kv_bytes"]["131072"] == shown["kv_bytes_per_token"] * 131072
    assert run("models", "get", "mistral-nemo", "--json").json["repositories"][0]["fetched_bytes"] == 0
    with monkeypatch.context() as closed:
        closed.setattr(shutil, "rmtree", refuse)
        assert "cannot be removed (Permission denied)" in run("models", "remove", "mistral-nemo", code=1).error
    assert run("models", "remove", "mistral-nemo", "--json").json["freed_bytes"] >= SIZE
    assert run("models", "show", REPO, "--json").json["state"] == "none"
    assert "not on this machine" in run("models", "remove", "mistral-nemo", code=2).error

    with monkeypatch.context() as patched:
        patched.setattr(models, "progress_text", stop)
        assert f"models get {REPO}" in run("models", "get", REPO, code=130).err
    assert run("models", "show", "mistral-nemo", "--json").json["state"] == "part"
    assert "are here already" in run("models", "get", REPO).err
