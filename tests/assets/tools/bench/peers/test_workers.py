"""The workers: the clock, and our own and transformers' on the bundled pair."""

from collections.abc import Iterator

import pytest
import torch

from assets.tools.bench.peers.lanes import LANES
from core.models.hub.catalog import ROOT

# -------------------- ours and transformers


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_ours_and_transformers_write_the_same(threads: None) -> None:
    from assets.tools.bench.peers.workers import ours, stock

    models = ROOT / "assets/models"
    pair = {"target": str(models / "harbour-target"), "draft": str(models / "harbour-draft"), "threads": 1}
    given = ours.prompt({**pair, "context": 256, "seed": 900_000, "text": ""})
    request = {**pair, **given, "max_new_tokens": 32}
    workers = {"ours": ours, "transformers": stock}
    answers = {
        lane.name: workers[lane.program].run({**request, "options": dict(lane.options)})
        for lane in LANES
        if lane.program in workers
    }
    answers = {name: answer["recite"] for name, answer in answers.items()}
    assert len(answers) == 8 and 150 < len(given["prompts"]["recite"]) < 300
    for name, answer in answers.items():
        assert answer["tokens"] == answers["ours, plain"]["tokens"] and len(answer["tokens"]) == 32, name
        assert answer["first_token_seconds"] > 0 and answer["ms_per_token"] > 0, name
    assert answers["ours, TriForce"]["decoded_by"] == "triforce"
    likely = answers["ours, plain"]["likely"]
    assert [first[0].token_id for first in likely] == answers["ours, plain"]["tokens"] and len(likely[0]) == 10
