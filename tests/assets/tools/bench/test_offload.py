"""bench --suite offload: every placement on this machine."""

import json
from pathlib import Path

import pytest

import launch as launcher


@pytest.fixture(autouse=True)
def short_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.planning.measured.LINK_BYTES", 1 << 20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects what other tests left
def test_all_placements_write_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--contexts", "768", "--repeats", "1", "--max-new-tokens", "6", "--budget", "256", "--gpu-memory", "2"]
    options += ["--plot", str(tmp_path / "placements.svg")]
    assert launcher.main(["bench", "--suite", "offload", *options, "--device", "cpu", "--json", "--no-venv"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    rows = document["rows"]
    assert [(row["placement"], row["method"]) for row in rows] == [
        (placement, method)
        for placement in ("resident", "split", "offloaded")
        for method in ("autoregressive", "triforce")
    ]
    assert all(row["identical_to_first"] and row["new_tokens"] and row["prefill_seconds"] > 0 for row in rows)
    assert {row["placement"]: row["resident_layers"] for row in rows}["offloaded"] == 0
    for row in rows:
        away = row["placement"] != "resident"
        assert (row["link_bytes"] > 0) == away and (row["link_gb_per_second"] is not None) == away
        assert row["prefill_link_bytes"] >= 0 and row["cpu_attention_share"] == 0
        assert row["placement"] != "resident" or row["prefill_link_bytes"] == 0
        assert row["peak_memory_bytes"] > 0 and row["planned_bytes"] > 0
    picture = (tmp_path / "placements.svg").read_text(encoding="utf-8")
    assert "<svg" in picture and "placements.svg" in captured.err
