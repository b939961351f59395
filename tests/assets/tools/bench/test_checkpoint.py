"""Checkpoints: what is written is found again, a cut line is dropped, and other settings are refused."""

from pathlib import Path

import pytest

from assets.tools.bench.checkpoint import Checkpoint
from core.errors import InvalidSetting


def test_results_are_found_again(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    Checkpoint(file, {"seed": 1, "lengths": (1, 2)}).put("x", {"ms": 1.5})
    again = Checkpoint(file, {"seed": 1, "lengths": (1, 2)})
    assert again.get("x") == {"ms": 1.5} and again.get("y") is None
    with file.open("a", encoding="utf-8") as half:
        half.write('{"key": "y", "res')
    third = Checkpoint(file, {"seed": 1, "lengths": (1, 2)})
    assert third.get("y") is None
    third.put("z", 3)
    assert Checkpoint(file, {"seed": 1, "lengths": (1, 2)}).get("z") == 3


def test_other_settings_and_other_files_are_refused(tmp_path: Path) -> None:
    file, text = tmp_path / "a.jsonl", tmp_path / "text"
    Checkpoint(file, {"seed": 1})
    with pytest.raises(InvalidSetting, match="other settings"):
        Checkpoint(file, {"seed": 2})
    text.write_text("words\n", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="cannot be used"):
        Checkpoint(text, {"seed": 1})
    with pytest.raises(InvalidSetting, match="cannot be used"):
        Checkpoint(tmp_path / "none" / "a.jsonl", {})


def test_without_a_file_it_lasts_as_long_as_the_process() -> None:
    memory = Checkpoint(None, {})
    memory.put("x", 1)
    assert memory.get("x") == 1
