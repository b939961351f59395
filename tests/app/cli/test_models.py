"""`models` on a hub of this machine: listed, shown, fetched with its draft, stopped, removed."""

import json
import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from app.cli import models
from app.cli.arguments import parse_arguments
from core.errors import InvalidSetting, UnknownModel
from core.models.hub.download import DownloadProgress
from tests.core.models.hub.test_wheel import index  # noqa: F401
from tests.core.models.hub.toy_hub import ToyHub, serving

REPO = "mistralai/Mistral-Nemo-Instruct-2407"  # of the catalogue, without a draft


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyHub]:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": random.Random(2).randbytes(3 << 20)}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving(ToyHub(REPO, files)) as toy:
        monkeypatch.setattr(constants, "ENDPOINT", toy.endpoint)
        yield toy


def arguments(*words: str) -> Namespace:
    return parse_arguments(["models", *words])


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert models.run(arguments(*words, "--json")) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_model_is_fetched_shown_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    got = told(capsys, "get", "mistral-nemo")
    (row,) = got["repositories"]
    assert row["repository"] == REPO and row["fetched_bytes"] == row["size_bytes"] == (3 << 20) + 4
    shown = told(capsys, "show", "mistral-nemo")
    assert shown["state"] == "here" and shown["path"] == row["path"] and shown["kv_bytes_per_token"] == 160 << 10
    assert shown["kv_bytes"]["131072"] == shown["kv_bytes_per_token"] * 131072
    assert told(capsys, "get", "mistral-nemo")["repositories"][0]["fetched_bytes"] == 0
    assert told(capsys, "remove", "mistral-nemo")["freed_bytes"] >= 3 << 20
    assert told(capsys, "show", REPO)["state"] == "none"
    with pytest.raises(UnknownModel):
        models.run(arguments("remove", "mistral-nemo"))


def test_stopping_keeps_what_arrived_and_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(progress: DownloadProgress) -> str:
        if 0 < progress.file_bytes < progress.file_total_bytes:
            raise KeyboardInterrupt
        return ""

    with monkeypatch.context() as patched:
        patched.setattr(models, "progress_text", stop)
        with pytest.raises(KeyboardInterrupt):
            models.run(arguments("get", REPO))
    assert f"models get {REPO}" in capsys.readouterr().err
    assert told(capsys, "show", "mistral-nemo")["state"] == "part"
    models.run(arguments("get", REPO))
    assert "are here already" in capsys.readouterr().err


def test_names_that_cannot_be_fetched(hub: ToyHub) -> None:
    with pytest.raises(InvalidSetting, match="comes with this project"):
        models.run(arguments("get", "harbour"))
    for action in ("get", "remove", "show"):
        with pytest.raises(UnknownModel):
            models.run(arguments(action, "no-such-model"))


@pytest.mark.parametrize(("words", "problem"), [("get", "needs the NAME"), ("list qwen3-8b", "takes no name")])
def test_a_name_belongs_to_all_but_the_list(words: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        models.run(arguments(*words.split()))
