"""The peers suite with a peer that computes nothing: turns, comparison, refusals, and going on after an end."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers import suite
from assets.tools.bench.peers.lanes import BASELINE, OURS, Lane, Program
from assets.tools.bench.peers.suite import Peers, Weights

WORKER = "tests.assets.tools.bench.peers.fake_peer"
SHAPE: dict[str, Any] = {"repeats": 3, "max_new_tokens": 16, "seed": 1}
OWN = Lane(OURS, BASELINE, {"ms": 10.0})


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return Weights(target=folder, draft=None)


def peers(weights: Weights, *lanes: Lane, said: list[str] | None = None) -> Peers:
    made = Peers(
        weights,
        weights.target.parent / "peers",
        threads=2,
        programs=(Program(OURS, WORKER), Program("other", WORKER)),
        lanes=(OWN, *lanes),
        tell=(said if said is not None else []).append,
    )
    made.prepare(sys.executable)
    return made


def test_lanes_take_turns_and_are_compared_with_ours(weights: Weights) -> None:
    said: list[str] = []
    made = peers(
        weights, Lane("other", "slow", {"ms": 25.0}), Lane("other", "odd", {"ms": 5.0, "wrong_from": 3}), said=said
    )
    rows = list(made.rows((512,), **SHAPE, checkpoint=Checkpoint(None, {})))
    ours, slow, odd = rows
    assert (ours.method, ours.ratio_to_ours, ours.same_tokens, ours.runs) == (BASELINE, 1.0, True, 3)
    assert (slow.ratio_to_ours, slow.ms_per_token, slow.same_tokens, slow.equal_tokens) == (2.5, 25.0, True, 16)
    assert (odd.ratio_to_ours, odd.same_tokens, odd.equal_tokens) == (0.5, False, 3)
    assert (odd.difference, odd.difference_logprob) == ("' a', there ' the'", 0.25)
    assert (slow.difference, slow.difference_logprob, slow.answer) == (None, None, "recite")
    assert ours.prompt_tokens == 512 and ours.first_token_seconds == 0.512 and ours.memory_gib == 2.0
    order = [line.rpartition(": ")[2] for line in said]
    assert order == [BASELINE, "slow", "odd", "odd", "slow", BASELINE, BASELINE, "slow", "odd"]
    assert not made.skipped


def test_what_fails_is_reported_and_the_rest_goes_on(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RUN_SECONDS", 3.0)
    note = weights.target.parent / "child"
    kinds = ("refuses", "raises", "crashes", "ends", "hangs")
    failing = [Lane("other", kind, {"fails": kind, "file": str(note)}) for kind in kinds]
    made = peers(
        weights, *failing, Lane("other", "small", {"ms": 1.0}, needs_draft=True), Lane("other", "last", {"ms": 1.0})
    )
    rows = list(made.rows((512,), **SHAPE, checkpoint=Checkpoint(None, {})))
    assert [row.method for row in rows] == [BASELINE, "last"] and all(row.runs == 3 for row in rows)
    assert {skipped.method: skipped.reason for skipped in made.skipped} == {
        "refuses": "it takes no such cache",
        "raises": "ValueError: a tensor has no shape",
        "crashes": "it was ended by SIGKILL",
        "ends": "it ended without an answer: out of ideas",
        "hangs": "it took longer than 3 s",
        "small": "there is no draft model",
    }
    assert gone(int(note.read_text(encoding="utf-8"))), "what a peer started ends with it"


def gone(process: int) -> bool:
    for _ in range(200):
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
