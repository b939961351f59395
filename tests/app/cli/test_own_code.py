"""A model's own Python never runs, and nobody is asked whether it may."""

import ast
import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from core.errors import UnsupportedModel
from core.models.loader import load_tokenizer, read_config
from tests.app.cli.conftest import ROOT, Run

REFUSAL = "needs Python code that comes with it, which never runs here."
COMMANDS = ["models list", "doctor --model {model}", "ask {book} -q Who? --model {model}"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in the hub's cache that needs its own Python."""
    repository = tmp_path / "home" / "hub" / "models--evil--book"
    folder = repository / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": own}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", None]}}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    ran = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).write_text('it ran')\nraise SystemExit('it ran')\n"
    (folder / "own.py").write_text(ran)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_code_of_a_model_or_asks(
    command: str, folder: Path, book: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder.parents[2]))
    told = run(*command.format(model=folder, book=book).split(), code=int("model}" in command))
    assert not (tmp_path / "ran").exists() and REFUSAL in told.out + told.err
    for read in (read_config, load_tokenizer):
        with pytest.raises(UnsupportedModel, match="never runs here"):
            read(folder)
    assert not (tmp_path / "ran").exists()


def test_every_call_of_transformers_that_could_run_code_refuses_it() -> None:
    """Of those that read a folder or a configuration; `for_model` takes fields and knows no code."""
    calls = [
        (file, call)
        for place in ("app", "core", "assets")
        for file in (ROOT / place).rglob("*.py")
        if "transformers" in (text := file.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("from_pretrained", "from_config")
    ]
    assert len(calls) >= 10
    for file, call in calls:
        said = [word.value for word in call.keywords if word.arg == "trust_remote_code"]
        refused = [isinstance(value, ast.Constant) and value.value is False for value in said]
        assert refused == [True], f"{file}:{call.lineno}"
