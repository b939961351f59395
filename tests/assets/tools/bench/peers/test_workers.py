"""The workers: the clock, the loops over llama.cpp, and our own and transformers' on the bundled pair."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from assets.tools.bench.peers.lanes import LANES
from assets.tools.bench.peers.workers import protocol
from assets.tools.bench.peers.workers.protocol import Clock, until_stop
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
    sys.modules.pop("assets.tools.bench.peers.workers.llama_cpp", None)
    import assets.tools.bench.peers.workers.llama_cpp as worker

    yield worker
    sys.modules.pop("assets.tools.bench.peers.workers.llama_cpp", None)


def test_its_server_is_told_room_threads_and_how_to_guess(llama: Any, tmp_path: Path) -> None:
    request = {"target": str(tmp_path), "draft": "small.gguf", "work": str(tmp_path), "threads": 3}
    request |= {"prompts": {"free": [1] * 500, "quote": [1] * 700}, "max_new_tokens": 100}
    told = " ".join(llama.command_options({**request, "options": {"guess": "draft-simple"}}))
    assert "--ctx-size 1024" in told and told.count(" 3 ") == 3 and "--model-draft small.gguf" in told
    told = " ".join(llama.command_options({**request, "options": {"guess": "ngram-mod"}}))
    assert told.endswith("--spec-type ngram-mod") and "draft" not in told


def test_a_gguf_file_is_read_as_it_is(llama: Any, tmp_path: Path) -> None:
    request = {"target": "/models/m.gguf", "draft": "/models/folder", "work": str(tmp_path)}
    assert llama._file(request, "target") == Path("/models/m.gguf")
    assert llama._file(request, "draft") == tmp_path / "draft.gguf"


def test_times_are_the_servers_own(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"tokens": [5, 6, 7], "timings": {"prompt_ms": 1500.0, "predicted_per_token_ms": 12.5}}
    asked: list[Any] = []

    class Opener:
        @staticmethod
        def urlopen(request: Any) -> Any:
            asked.append(json.loads(request.data))
            return io.BytesIO(json.dumps(said).encode())

    monkeypatch.setattr(llama.urllib.request, "urlopen", Opener.urlopen)
    answer = llama._answer("http://127.0.0.1:1", os.getpid(), [1, 2], 3)
    assert asked[0]["prompt"] == [1, 2] and asked[0]["n_predict"] == 3 and asked[0]["temperature"] == 0
    assert answer["tokens"] == [5, 6, 7] and answer["first_token_seconds"] == 1.5 and answer["ms_per_token"] == 12.5


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
    assert len(read.fields["tokenizer.ggml.tokens"].contents()) == 3072
    assert read.fields["tokenizer.ggml.eos_token_id"].contents() == 4


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
    given = ours.prompt({**pair, "context": 512, "seed": 900_000, "text": ""})
    request = {**pair, **given, "max_new_tokens": 32}
    workers = {"ours": ours, "transformers": stock}
    answers = {
        lane.name: workers[lane.program].run({**request, "options": dict(lane.options)})
        for lane in LANES
        if lane.program in workers
    }
    answers = {name: answer["recite"] for name, answer in answers.items()}
    assert len(answers) == 8 and 400 < len(given["prompts"]["recite"]) < 560
    for name, answer in answers.items():
        assert answer["tokens"] == answers["ours, plain"]["tokens"] and len(answer["tokens"]) == 32, name
        assert answer["first_token_seconds"] > 0 and answer["ms_per_token"] > 0, name
    assert answers["ours, TriForce"]["decoded_by"] == "triforce"
    likely = answers["ours, plain"]["likely"]
    assert [first[0].token_id for first in likely] == answers["ours, plain"]["tokens"] and len(likely[0]) == 10


def test_both_questions_are_about_the_beginning_of_a_text(threads: None) -> None:
    from assets.tools.bench.peers.workers import ours

    models = ROOT / "assets/models"
    request = {"target": str(models / "harbour-target"), "draft": None, "threads": 1, "context": 256, "seed": 1}
    given = ours.prompt({**request, "text": "The harbour was quiet that morning. " * 100})["prompts"]
    free, quote = given["free"], given["quote"]
    same = next(place for place, (a, b) in enumerate(zip(free, quote, strict=False)) if a != b)
    assert list(given) == list(ours.KINDS) and same >= 256 and 256 < len(free) < 330
