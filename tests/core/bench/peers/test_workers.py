"""The workers: the clock, the loops over llama.cpp, and our own and transformers' on the bundled pair."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from core.bench.peers.lanes import LANES
from core.bench.peers.workers import protocol
from core.bench.peers.workers.protocol import Clock, until_stop
from core.models.hub.catalog import ROOT


def test_the_clock_leaves_out_the_tokens_that_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 12.0, 12.5, 13.0))
    monkeypatch.setattr(protocol, "perf_counter", lambda: next(times))
    clock = Clock()
    for count in (2, 3, 2):
        clock.arrived(count)
    answer = clock.answer([1] * 7)
    assert answer["first_token_seconds"] == 2.0 and answer["ms_per_token"] == 1000 / 5
    times = iter((0.0, 1.0))
    clock = Clock()
    clock.arrived()
    assert clock.answer([1])["ms_per_token"] is None


def test_an_answer_ends_with_its_stop_token() -> None:
    assert until_stop([5, 6, 2, 7], [2]) == [5, 6, 2] and until_stop([5, 6], [2]) == [5, 6]


# -------------------- llama.cpp


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The worker without the library."""
    pytest.importorskip("gguf", reason="requirements-gguf.txt is not installed")
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    sys.modules.pop("core.bench.peers.workers.llama_cpp", None)
    import core.bench.peers.workers.llama_cpp as worker

    yield worker
    sys.modules.pop("core.bench.peers.workers.llama_cpp", None)


class Counting:
    """A model that continues every text by a rule; `wrong` tokens of those it draws are others."""

    def __init__(self, wrong: int = 0) -> None:
        self.tokens: list[int] = []
        self.passes, self._wrong = 0, wrong

    def logits(self, tokens: list[int], count: int = 1) -> Any:
        self.passes += 1
        rows = []
        for token in tokens:
            self.tokens.append(token)
            right = (3 * token + len(self.tokens) // 9) % 11
            right = (right + 1) % 11 if self._wrong and len(self.tokens) % self._wrong == 0 else right
            rows.append(20.0 * np.eye(11)[right])
        return np.stack(rows[-count:])

    def keep(self, count: int) -> None:
        assert count <= len(self.tokens)
        del self.tokens[count:]


@pytest.mark.parametrize("stop", [[], [7]])
@pytest.mark.parametrize("most", [1, 2, 40])
@pytest.mark.parametrize("kind", ["draft", "wrong draft", "lookup"])
def test_guesses_change_passes_and_no_token(llama: Any, kind: str, most: int, stop: list[int]) -> None:
    prompt, plain, target = [1, 2, 3, 1, 2, 3, 1, 2], Counting(), Counting()
    draft = Counting(wrong=4 if kind == "wrong draft" else 0)
    guess = llama.looked_up() if kind == "lookup" else llama.drafted(draft)
    expected = llama._answer(plain, None, prompt, stop, most)["tokens"]
    assert llama._answer(target, guess, prompt, stop, most)["tokens"] == expected
    assert len(expected) == most or expected[-1] in stop
    assert target.passes < plain.passes or most < 3 or len(expected) < 10 or kind == "lookup"


def test_a_lookup_continues_what_occurred_last(llama: Any) -> None:
    guess = llama.looked_up()
    text = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2, 3]
    assert guess(text) == [9, 8, 1, 2, 3] and guess([*text, 9]) == [8, 1, 2, 3, 9]
    assert guess([*text, 9, 7]) == []


def test_rows_are_turned_as_its_own_converter_does(llama: Any) -> None:
    from tests.ggufs import interleaved

    rows = np.arange(24.0).reshape(8, 3)
    assert (llama.interleaved(rows, 2) == interleaved(rows, 2)).all() and (llama.interleaved(rows, 2) != rows).any()


def test_the_bundled_pair_becomes_a_gguf_file(llama: Any, tmp_path: Path) -> None:
    import gguf

    llama._convert(ROOT / "assets/models/harbour-draft", tmp_path / "draft.gguf")
    read = gguf.GGUFReader(tmp_path / "draft.gguf")
    shapes = {tensor.name: tuple(tensor.shape) for tensor in read.tensors}
    assert shapes["token_embd.weight"] == (162, 3072) and shapes["blk.1.attn_q.weight"] == (162, 192)
    assert read.fields["llama.vocab_size"].contents() == 3072 and len(shapes) == 3 + 2 * 9


# -------------------- ours and transformers


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_ours_and_transformers_write_the_same(threads: None) -> None:
    from core.bench.peers.workers import ours, stock

    models = ROOT / "assets/models"
    pair = {"target": str(models / "harbour-target"), "draft": str(models / "harbour-draft"), "threads": 1}
    given = ours.prompt({**pair, "context": 512, "seed": 900_000})
    request = {**pair, **given, "max_new_tokens": 32}
    workers = {"ours": ours, "transformers": stock}
    answers = {
        lane.name: workers[lane.program].run({**request, "options": dict(lane.options)})
        for lane in LANES
        if lane.program in workers and not lane.name.endswith(("lookup, f16 KV", "plain, f16 KV", "TriForce"))
    }
    assert len(answers) == 8 and 400 < len(given["prompt"]) < 560
    for name, answer in answers.items():
        assert answer["tokens"] == answers["ours, plain"]["tokens"] and len(answer["tokens"]) == 32, name
        assert answer["first_token_seconds"] > 0 and answer["ms_per_token"] > 0, name
    assert answers["ours, TriForce, f16 KV"]["decoded_by"] == "triforce"
