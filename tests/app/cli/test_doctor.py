"""The doctor command: this machine, and machines that are only described."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from app.cli import doctor
from app.cli.doctor import parsers_line
from core.planning import hardware
from core.planning.choices import Choice
from core.planning.devices import ON_PROCESSOR, Bandwidths
from core.planning.forecast import PUBLISHED
from core.planning.measured import Processor


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is measured for a third of a second, which other work on these cores need not wait for."""
    memory = Choice(10e9, "measured on this processor")
    products: Choice[float | None] = Choice(1e11, "measured")
    rates = Bandwidths(memory, None, rows=ON_PROCESSOR, products=products)
    monkeypatch.setattr(Processor, "rates", lambda self: rates)


def told(capsys: pytest.CaptureFixture[str], *options: object) -> Any:
    assert launcher.main(["doctor", *map(str, options), "--json", "--no-venv"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_machine_that_is_not_there_is_planned_and_named_as_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ("--gpu-memory", 24, "--gpus", 2, "--host-memory", 128)
    report = told(capsys, "--model", "llama2-7b-128k", *machine, "--context", 131072)
    assert report["machine"]["assumed"] == ["2 x 24 GiB GPU", "128 GiB of host memory"]
    plan = report["plan"]
    assert plan["placement"]["value"] == "split" and 12 <= plan["resident_layers"] < 32
    assert [tier["name"] for tier in plan["tiers"]] == ["GPU 0: 24 GiB GPU", "GPU 1: 24 GiB GPU", "host memory"]
    assert sum(plan["memory"].values()) == plan["total_bytes"] == sum(tier["used_bytes"] for tier in plan["tiers"])
    assert report["sizes"]["weight_bytes"]["16"] == 13_476_831_232
    assert "nominal" in report["prediction"]["bandwidth_because"]
    assert report["prediction"]["acceptance_because"].startswith(PUBLISHED.because)
    assert plan["budget"]["value"] >= 4096, "none given: that of the figures, or more where there is room"
    assumed = told(capsys, "--model", "llama2-7b-128k", "--assume", "2x4090", "--host-memory", 128, "--context", 131072)
    assert assumed["prediction"] == {
        **report["prediction"],
        "bandwidth_because": assumed["prediction"]["bandwidth_because"],
        "link_because": assumed["prediction"]["link_because"],
    }


@pytest.mark.parametrize("found", [True, False])
def test_a_machine_without_a_compiler_is_told_what_brings_one(
    found: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "can_compile", lambda: found)
    assert launcher.main(["doctor", "--no-venv"]) == 0
    shown = capsys.readouterr().out
    assert ("no C++ compiler" in shown) == ("pip install -r requirements-compiler.lock" in shown) == (not found)


def test_drafting_weights_are_planned_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "llama2-7b-128k", "--assume", "1x4090", "--host-memory", "128", "--context", "16384"]
    report = told(capsys, *options, "--self-draft-bits", 4)
    assert report["plan"]["memory"]["self-draft weights, 4 bit"] == (6_476_005_376 + 131_072_000) * 9 // 16
    assert report["plan"]["self_draft_bits"]["value"] == 4 and report["plan"]["bits"]["value"] == 16
    assert launcher.main(["doctor", *options, "--self-draft-bits", "4", "--no-venv"]) == 0
    shown = capsys.readouterr().out
    assert "Self-draft 4 bits: a second copy" in shown and "3.46 GiB  self-draft weights, 4 bit" in shown
    assert launcher.main(["doctor", *options, "--self-draft-bits", "4", "--bits", "4", "--no-venv"]) == 2
    assert "would only add" in capsys.readouterr().err


def test_a_config_file_is_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
    file.write_text(json.dumps({"model_type": "llama", "vocab_size": 1000, **sizes}))
    for name in (file, tmp_path / "config.json"):
        if name != file:
            file.rename(name)
        report = told(capsys, "--model", name, "--context", 1024, "--bits", 4, "--acceptance", "0.5,0.9")
        assert report["sizes"]["parameters"] == 2 * 1000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1024) + 9 * 512
        assert report["plan"]["bits"]["value"] == 4 and not report["sizes"]["files_here"]
        assert report["prediction"]["acceptance2"] == 0.9 and report["prediction"]["acceptance_because"] == "as given"
    folder = told(capsys, "--model", tmp_path, "--context", 1024, "--budget", 512)
    assert folder["sizes"] == report["sizes"]
    assert "this plan's budget is 512" in folder["prediction"]["acceptance_because"]


def test_what_this_system_leaves_open_to_parsers_is_told_in_a_line() -> None:
    assert "no other file" in parsers_line([]) and "are not kept from files and network:" in parsers_line(
        ["files", "network"]
    )


HERE = """
--model llama2-13b-128k --assume 1x4090 | lies beside them need
--model llama2-7b-128k --assume 1x4090 --host-memory 32 --context 131072 | a context of 131,072 tokens does not
--device cuda --assume cpu | no CUDA device
"""
TYPED = """
--assume 3x7900xt | 3x7900xt
--assume m3-max | is no NVIDIA GPU: it has no CUDA
--model llama-3.1-8b --context 262144 | reads at most 131,072. Use --context 131072 or
--gpu M3_Ultra,192,819,10 | is no NVIDIA GPU
--gpu RX_7900_XTX,24,960,25 | is no NVIDIA GPU
--assume 1x4090 --gpu X,24,1008,25 | described twice
--gpu X,24,1008 | describes no GPU
--gpu X,24,fast,25 | describes no GPU
--gpu X,24,-1,25 | describes no GPU
--gpu nowhere.json | describes no GPU
--assume cpu --gpus 2 | described twice
--gpu-memory -1 | --gpu-memory -1
--budget 100 | budget of 100
--cpu-attention-share 0.95 | --cpu-attention-share 0.95
--model nope.json | no model 'nope.json'
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [(line, 1) for line in HERE.strip().splitlines()] + [(line, 2) for line in TYPED.strip().splitlines()],
)
def test_a_mistake_is_told_in_one_line(line: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    typed, _, words = line.partition(" | ")
    options = [word.replace("_", " ") for word in typed.split()]
    assert launcher.main(["doctor", *options, "--no-venv"]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("error:") and words in captured.err


def test_a_measured_pair_is_planned_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    subject = doctor.find_subject("harbour")
    assert subject.measured is not None and subject.draft is not None and subject.has_files
    report = told(capsys, "--context", 4096, "--device", "cpu")
    assert report["plan"]["context"] == {"value": 4096, "because": "asked for"}
    assert report["machine"]["assumed"] == []
    assert report["prediction"]["acceptance_because"].startswith("measured with this pair")


def test_a_refusal_names_more_than_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Layers are whole: what is left of the card and of the host together may be more than all of them need."""
    options = ["--model", "llama2-7b-128k", "--assume", "1x4090", "--context", "131072", "--no-venv"]
    said = 0
    for gib in (56, 64, 68, 69, 70, 71, 72):
        code = launcher.main(["doctor", *options, "--host-memory", str(gib)])
        message = capsys.readouterr().err
        if code:
            needed, left = map(float, re.findall(r"need ([\d.]+) GiB, ([\d.]+) GiB are left", message)[0])
            assert needed > left and "layers fit on the GPU" in message
            said += 1
    assert 0 < said < 7
