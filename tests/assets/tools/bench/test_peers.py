"""The peers suite, with a peer that computes nothing: turns, comparison, refusals, going on; our worker and theirs."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers import suite
from assets.tools.bench.peers.lanes import BASELINE, LANES, OURS, Lane, Program
from assets.tools.bench.peers.suite import Peers, Weights
from assets.tools.bench.peers.workers import ours, stock
from core.errors import InvalidSetting
from core.models.hub.catalog import ROOT

WORKER = "tests.assets.tools.bench.fake_peer"
SHAPE: dict[str, Any] = {"repeats": 3, "max_new_tokens": 16, "seed": 1}


def peers(folder: Path, *lanes: Lane, **more: Any) -> tuple[Peers, list[str]]:
    """The suite, and what it tells."""
    (folder / "target").mkdir(exist_ok=True)
    (folder / "target" / "model.safetensors").write_bytes(b"weights")
    programs, said = (Program(OURS, WORKER), Program("other", WORKER), Program("third", WORKER)), list[str]()
    lanes = (Lane(OURS, BASELINE, {"ms": 10.0}), *lanes)
    weights = Weights(target=folder / "target", draft=None)
    made = Peers(weights, folder / "peers", threads=2, programs=programs, lanes=lanes, tell=said.append, **more)
    made.prepare(sys.executable)
    return made, said


def test_lanes_take_turns_are_compared_with_ours_and_not_run_again(tmp_path: Path) -> None:
    lanes = Lane("other", "slow", {"ms": 25.0}), Lane("other", "odd", {"ms": 5.0, "wrong_from": 3})
    made, said = peers(tmp_path, *lanes)
    kept = Checkpoint(tmp_path / "kept.jsonl", {})
    rows = list(made.rows((512,), **SHAPE, checkpoint=kept))
    mine, slow, odd = rows
    assert (mine["method"], mine["ratio_to_ours"], mine["same_tokens"], mine["runs"]) == (BASELINE, 1.0, True, 3)
    assert (slow["ratio_to_ours"], slow["ms_per_token"], slow["equal_tokens"]) == (2.5, 25.0, 16)
    assert (odd["ratio_to_ours"], odd["same_tokens"], odd["equal_tokens"]) == (0.5, False, 3)
    assert (odd["difference"], odd["difference_logprob"]) == ("' a', there ' the'", 0.25)
    assert (slow["difference"], slow["difference_logprob"], slow["answer"]) == (None, None, "recite")
    assert mine["prompt_tokens"] == 512 and mine["first_token_seconds"] == 0.512 and mine["memory_gib"] == 2.0
    order = [line.rpartition(": ")[2] for line in said]
    assert order == [BASELINE, "slow", "odd", "odd", "slow", BASELINE, BASELINE, "slow", "odd"]
    again, said = peers(tmp_path, *lanes)
    assert list(again.rows((512,), **SHAPE, checkpoint=Checkpoint(tmp_path / "kept.jsonl", {}))) == rows
    assert said == again.skipped == made.skipped == []


def test_some_can_be_named_and_a_text_is_asked_about_twice(tmp_path: Path) -> None:
    lanes = [Lane(program, f"{program}, {way}", {"ms": 1.0}) for program in ("other", "third") for way in ("a", "b")]
    made, _ = peers(tmp_path, *lanes, only=["third"], parts=["b"])
    rows = list(made.rows((64,), **SHAPE | {"repeats": 1}, checkpoint=Checkpoint(None, {}), text="A book."))
    assert [(row["answer"], row["method"]) for row in rows] == [
        (kind, lane) for kind in ("free", "quote") for lane in (BASELINE, "third, b")
    ]
    with pytest.raises(InvalidSetting, match="no peer 'fourth'"):
        peers(tmp_path, only=["fourth"])


def test_what_fails_is_reported_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RUN_SECONDS", 3.0)
    kinds, note = ("refuses", "raises", "crashes", "ends", "hangs"), tmp_path / "child"
    failing = [Lane("other", kind, {"fails": kind, "file": str(note)}) for kind in kinds]
    made, _ = peers(
        tmp_path, *failing, Lane("other", "small", {"ms": 1.0}, needs_draft=True), Lane("other", "last", {"ms": 1.0})
    )
    rows = list(made.rows((512,), **SHAPE, checkpoint=Checkpoint(None, {})))
    assert [row["method"] for row in rows] == [BASELINE, "last"] and all(row["runs"] == 3 for row in rows)
    assert {skipped["method"]: skipped["reason"] for skipped in made.skipped} == {
        "refuses": "it takes no such cache",
        "raises": "ValueError: a tensor has no shape",
        "crashes": "it was ended by SIGKILL",
        "ends": "it ended without an answer: out of ideas",
        "hangs": "it took longer than 3 s",
        "small": "there is no draft model",
    }
    status = Path(f"/proc/{note.read_text(encoding='utf-8')}/stat")
    deadline = time.monotonic() + 5
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "what a peer started ends with it"


@pytest.mark.slow
def test_ours_and_transformers_write_the_same() -> None:
    threads, models = torch.get_num_threads(), ROOT / "assets/models"
    pair = {"target": str(models / "harbour-target"), "draft": str(models / "harbour-draft"), "threads": 1}
    given = ours.prompt({**pair, "context": 256, "seed": 900_000, "text": ""})
    request, workers = {**pair, **given, "max_new_tokens": 32}, {"ours": ours, "transformers": stock}
    answers = {
        lane.name: workers[lane.program].run({**request, "options": dict(lane.options)})["recite"]
        for lane in LANES
        if lane.program in workers
    }
    torch.set_num_threads(threads)
    plain = answers[BASELINE]
    assert len(answers) == 8 and 150 < len(given["prompts"]["recite"]) < 300 and len(plain["tokens"]) == 32
    for name, answer in answers.items():
        assert answer["tokens"] == plain["tokens"] and min(answer["first_token_seconds"], answer["ms_per_token"]) > 0, (
            name
        )
    assert answers["ours, TriForce"]["decoded_by"] == "triforce"
    assert [first[0].token_id for first in plain["likely"]] == plain["tokens"] and len(plain["likely"][0]) == 10
