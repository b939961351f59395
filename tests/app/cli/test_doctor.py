"""The doctor command: this machine, and machines that are only described."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from app.cli import doctor
from app.cli.doctor import parsers_line
from app.documents.sandbox import left_open
from core.planning import devices, hardware
from core.planning.choices import Choice
from core.planning.devices import ON_PROCESSOR, Bandwidths
from core.planning.forecast import PUBLISHED
from core.planning.measured import Processor
from tests.app.fakes import MACHINE, UNUSED_GPU


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is measured for a third of a second, which other work on these cores need not wait for."""
    memory = Choice(10e9, "measured on this processor")
    monkeypatch.setattr(Processor, "rates", lambda self: Bandwidths(memory, None, rows=ON_PROCESSOR))
    monkeypatch.setattr(Processor, "flops", lambda self: 1e11)


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
    assert plan["runs_in_this_version"]["value"] is True and "--gpus 2" in plan["runs_in_this_version"]["because"]
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
        assert report["plan"]["bits"] == {"value": 4, "because": "asked for"} and not report["sizes"]["files_here"]
        assert report["prediction"]["acceptance2"] == 0.9 and report["prediction"]["acceptance_because"] == "as given"
    folder = told(capsys, "--model", tmp_path, "--context", 1024, "--budget", 512)
    assert folder["sizes"] == report["sizes"]
    assert "this plan's budget is 512" in folder["prediction"]["acceptance_because"]


def test_people_are_told_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "llama2-7b-128k", "--assume", "1x4090", "--host-memory", "128", "--context", "131072"]
    assert launcher.main(["doctor", *options, "--no-venv"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "not for this machine",
        "12.6 / 6.5 / 3.9 GiB at 16 / 8 / 4 bits; 512 KiB of keys and values a token",
        "of 32 layers fit into the",
        "of 32 layers, host",
        "its share of the attention is measured when the model is loaded; predicted without",
        "link 25.0 GB/s, nominal, as of an RTX 4090; 6",
    ):
        assert words in shown, words
    assert launcher.main(["doctor", "--context", "4096", "--device", "cpu", "--no-venv"]) == 0
    shown = capsys.readouterr().out
    assert "Assumed" not in shown and "Note" not in shown and "measured on this processor" in shown
    assert f"\n{parsers_line(left_open())}\n" in shown


def test_what_this_system_leaves_open_to_parsers_is_told_in_a_line() -> None:
    assert "no other file" in parsers_line([]) and "are not kept from files and network:" in parsers_line(
        ["files", "network"]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "llama2-13b-128k", "--assume", "1x4090"], "lies beside them need"),
        (
            ["--model", "llama2-7b-128k", "--assume", "1x4090", "--host-memory", "32", "--context", "131072"],
            "a context of 131,072 tokens does not",
        ),
        (["--assume", "3x7900xt"], "3x7900xt"),
        (["--assume", "m3-max"], "is an Apple Mac: its GPU has no CUDA"),
        (
            ["--model", "llama-3.1-8b", "--context", "262144"],
            "reads at most 131,072. Use --context 131072 or",
        ),
        (["--gpu", "Apple M4 Max,128,546,0"], "is an Apple Mac"),
        (["--gpu", "M3 Ultra,192,819,10"], "is an Apple Mac"),
        (["--gpu", "MacBook Pro 16,64,400,10"], "is an Apple Mac"),
        (["--gpu", "RX 7900 XTX,24,960,25"], "is no NVIDIA GPU"),
        (["--gpu", "MI300X,192,5300,55"], "is no NVIDIA GPU"),
        (["--assume", "1x4090", "--gpu", "X,24,1008,25"], "--gpu describes the GPUs already"),
        (["--gpu", "X,24,1008"], "describes no GPU"),
        (["--gpu", "X,24,fast,25"], "describes no GPU"),
        (["--gpu", "X,24,-1,25"], "describes no GPU"),
        (["--gpu", "nowhere.json"], "describes no GPU"),
        (["--assume", "cpu", "--gpus", "2"], "--assume names the GPUs"),
        (["--gpu-memory", "-1"], "--gpu-memory -1"),
        (["--acceptance", "0.9"], "--acceptance"),
        (["--acceptance", "0.3,1.5"], "--acceptance"),
        (["--budget", "100"], "budget of 100"),
        (["--cpu-attention-share", "0.95"], "--cpu-attention-share 0.95"),
        (["--model", "nope.json"], "no model 'nope.json'"),
        (["--device", "cuda", "--assume", "cpu"], "no CUDA device"),
    ],
)
def test_a_mistake_is_told_in_one_line(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    situation = words.endswith(("do not fit", "does not", "no CUDA device"))
    assert launcher.main(["doctor", *options, "--no-venv"]) == (1 if situation else 2)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("error:") and words in captured.err


def test_a_broken_config_file_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text("{")
    assert launcher.main(["doctor", "--model", str(file), "--no-venv"]) == 1
    assert "broken.json is unreadable" in capsys.readouterr().err


def test_a_measured_pair_is_planned_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    subject = doctor.find_subject("harbour")
    assert subject.acceptance.because.startswith("measured") and subject.draft is not None and subject.has_files
    report = told(capsys, "--context", 4096, "--device", "cpu")
    assert report["plan"]["context"] == {"value": 4096, "because": "asked for"}
    assert report["plan"]["runs_in_this_version"]["value"] and report["machine"]["assumed"] == []


def test_a_gpu_that_is_not_used_is_told_with_what_mends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda: replace(MACHINE, unused_gpu=UNUSED_GPU))
    report = told(capsys)
    assert report["machine"]["unused_gpu"]["problem"] == "torch 2.13.0+cpu is a build without CUDA."
    assert report["machine"]["unused_gpu"]["hint"] == "Run: python launch.py repair"
    assert report["plan"]["device"] == {"value": "cpu", "because": UNUSED_GPU.because}
    assert launcher.main(["doctor", "--no-venv"]) == 0
    assert f"GPU        {UNUSED_GPU.because} {UNUSED_GPU.hint}\n" in capsys.readouterr().out
    assert launcher.main(["doctor", "--device", "cuda", "--no-venv"]) == 1
    assert capsys.readouterr().err == f"error: {UNUSED_GPU.because} {UNUSED_GPU.hint}\n"
    assert told(capsys, "--assume", "1x4090")["machine"]["unused_gpu"] is None


def test_a_described_machine_that_lacks_host_memory_may_only_lack_its_description(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda: MACHINE)
    options = ["doctor", "--model", "llama2-7b-128k", "--context", "131072", "--assume", "1x4090", "--no-venv"]
    for more, told_of in (([], True), (["--host-memory", "32"], False)):
        assert launcher.main([*options, *more]) == 1
        message = capsys.readouterr().err
        assert "Use --context" in message and ("that machine's --host-memory" in message) is told_of


def test_a_machine_by_its_figures_is_planned_with_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--model", "llama-3.1-8b", "--host-memory", 64, "--context", 32768)
    known = told(capsys, *options, "--assume", "1x4090")
    described = told(capsys, *options, "--gpu", "My Card, 24, 1008, 25, 165")
    assert described["machine"]["assumed"][0] == "1 x My Card with 24 GiB"
    for figure in ("plain_ms_per_token", "triforce_ms_per_token"):
        assert described["prediction"][figure] == known["prediction"][figure]
    assert described["prediction"]["bandwidth_because"] == "as described, My Card"
    assert described["reading_seconds"] == known["reading_seconds"] > 0 and described["reading_tokens"] == 131072
    file = tmp_path / "card.json"
    card = {"name": "My Card", "gib": 24, "memory_gb_per_second": 504, "link_gb_per_second": 25}
    file.write_text(json.dumps(card))
    slower = told(capsys, *options, "--gpu", file, "--gpus", 2)
    assert len(slower["machine"]["gpus"]) == 2 and slower["reading_seconds"] is None
    assert "TFLOPS" in slower["reading_because"]
    for other in ("Mac Studio", "Radeon Pro W7900"):
        file.write_text(json.dumps({**card, "name": other}))
        assert launcher.main(["doctor", "--gpu", str(file), "--no-venv"]) == 2
    for nvidia in ("Tesla M60", "M40", "RTX 4000 Ada", "Quadro RTX 6000", "GeForce MX450"):
        assert devices.described_gpu(f"{nvidia},24,480,12").name == nvidia
    file.write_text(json.dumps({**card, "colour": "red"}))
    assert launcher.main(["doctor", "--gpu", str(file), "--no-venv"]) == 2


def test_newer_and_smaller_cards_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    for name, gib in (("5090", 32), ("a100-40", 40), ("a100", 80)):
        report = told(capsys, "--model", "llama-3.1-8b", "--assume", f"1x{name}", "--host-memory", 64)
        assert report["machine"]["gpus"][0]["total_bytes"] == gib << 30
        assert "not known" not in report["prediction"]["bandwidth_because"]
    for driver, key in (("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA A100-SXM4-80GB", "a100"), ("RTX 5090", "5090")):
        assert devices.kind_of(driver) == devices.KINDS[key]


def test_what_is_not_of_this_model_or_not_of_this_machine_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    card = ("--assume", "1x4090", "--host-memory", 64)
    other, own = (told(capsys, "--model", name, *card) for name in ("llama-3.1-8b", "llama2-7b-128k"))
    assert "measured with another model, not with this one" in other["prediction"]["acceptance_because"]
    assert "another model" not in own["prediction"]["acceptance_because"]
    here = told(capsys, "--context", 4096, "--device", "cpu")
    assert here["sizes"]["kv_bytes_per_token_here"] == 2 * here["sizes"]["kv_bytes_per_token"]
    assert "another model" not in here["prediction"]["acceptance_because"] and here["reading_seconds"] > 0
    assert launcher.main(["models", "show", "harbour", "--json", "--no-venv"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["kv_bytes_per_token"] == here["sizes"]["kv_bytes_per_token"], "one figure in both commands"


def test_narrower_weights_are_proposed_where_they_would_hold_more(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "llama-3.1-8b", "--assume", "1x4090", "--host-memory", 64, "--context", 65536)
    report = told(capsys, *options)
    assert report["plan"]["placement"]["value"] == "split" and report["proposal"].startswith("With --bits 8 all 65,536")
    assert told(capsys, *options, "--bits", 8)["plan"]["placement"]["value"] == "resident"
    assert told(capsys, *options, "--bits", 8)["proposal"] == ""


def test_a_context_may_be_as_long_as_the_models_own(capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "--model", "qwen3-4b-2507", "--assume", "1xh200", "--host-memory", 256, "--context", 262144)
    assert report["plan"]["context"]["value"] == 262144 and report["sizes"]["most_context"] == 262144


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
