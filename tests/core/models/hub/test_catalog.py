"""The catalogue: every row can be planned, found, explained when it is not here, and paired by its tokens."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from core.config import EngineConfig
from core.engine import Engine
from core.errors import CoreError, DamagedAssets, IncompleteModel, ModelNotHere, UnknownModel, UnsupportedModel
from core.models import loader
from core.models.gguf_families import KINDS
from core.models.hub import catalog, client, store
from core.models.hub.draft_selection import pair
from core.models.hub.shapes import find_shape
from core.models.param_count import size_of
from core.ops.stored_blocks import LAYOUTS
from tests.core.models.hub.test_local import add, put
from tests.core.toys import answer, tiny_config

ROWS = [row for row in catalog.entries().values() if row.repo]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def save(folder: Path, words: int = 60, layers: int = 2, added: tuple[str, ...] = (), **config: Any) -> Path:
    """A complete model folder: tiny random weights, a tokenizer of so many words."""
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, **{f"w{n}": n for n in range(3, words)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="<unk>")), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(added)})
    model = AutoModelForCausalLM.from_config(tiny_config(layers=layers, **config), dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def put_in_cache(repo: str, source: Path) -> Path:
    """As if a hub model had been downloaded."""
    return put(source, add(store.cache_folder(), repo))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_complete_and_its_shape_can_be_counted(row: catalog.Known) -> None:
    assert row.license and row.description and row.repo and catalog.HUB_ID.fullmatch(row.repo)
    assert row.role == "draft" or (row.chat_format and row.speculation)
    assert catalog.recommended(row.name) == row.speculation
    shape = find_shape(row.name)
    assert shape is not None
    size = size_of(shape.config, row.name)
    assert row.parameters == size.num_parameters
    assert size.dims.max_context >= 2048 and size.dims.head_dim in (64, 128)
    if row.draft:
        draft = find_shape(row.draft)
        assert draft is not None and size_of(draft.config, row.draft).num_parameters < 0.2 * size.num_parameters
    if row.gguf:  # of a known kind, from one commit
        assert row.config is not None and row.config["model_type"] in set(KINDS.values())
        assert row.gguf.file.endswith(".gguf") and len(row.gguf.sha256) == 64
        assert (row.gguf.commit is None) == bool(row.gguf.package) == (not row.needs_hub)
        assert set(row.gguf.kinds) <= set(LAYOUTS), "a laptop keeps them as they are"
        assert 4.5 < 8 * row.gguf.size_bytes / size.num_parameters < 6
        repository = client.look_up(str(row.repo))
        (file,) = repository.files
        assert (file.name, file.size_bytes, file.digest) == (row.gguf.file, row.gguf.size_bytes, row.gguf.sha256)
        assert repository.commit == (row.gguf.commit or row.gguf.sha256)


def load(model: str | Path, context: int = 256, draft: str | Path = "auto") -> Engine:
    return Engine.load(EngineConfig(model=str(model), draft_model=str(draft), device="cpu", context=context))


def changed(folder: Path, **config: Any) -> Path:
    """A model whose config.json says something else."""
    file = save(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return folder


def test_a_model_is_found_by_name_and_by_id_or_names_the_command_that_gets_it(tmp_path: Path) -> None:
    for name in ("qwen3-8b", "Qwen/Qwen3-8B", "somebody/something"):
        with pytest.raises(ModelNotHere) as error:
            catalog.find(name)
        assert "models get" in error.value.hint
    with pytest.raises(UnknownModel):
        catalog.find("no-such-model")
    folder = put_in_cache("Qwen/Qwen3-8B", save(tmp_path / "m"))
    for name in ("qwen3-8b", "Qwen/Qwen3-8B"):
        entry = catalog.find(name)
        assert entry.target == folder and entry.name == "qwen3-8b" and entry.template_options
        assert entry.draft is None and "models get qwen3-0.6b" in entry.draft_because
    draft = put_in_cache("Qwen/Qwen3-0.6B", save(tmp_path / "d"))
    assert catalog.find("qwen3-8b").draft == draft


def test_a_model_without_all_files_says_what_it_lacks_and_how_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put_in_cache("Qwen/Qwen3-8B", save(tmp_path / "m"))
    (folder / "model.safetensors").unlink()
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / shards["a"]).write_bytes(b"")
    with pytest.raises(IncompleteModel) as error:
        load("qwen3-8b")
    assert shards["b"] in error.value.problem and "models get qwen3-8b" in error.value.hint
    for damaged in ('{"weight_map": ', "[]", '{"weight_map": {"a": 1, "b": "2"}}'):
        (folder / "model.safetensors.index.json").write_text(damaged)
        with pytest.raises(IncompleteModel, match=r"index\.json|lacks 1 and"):
            load("qwen3-8b")
    local = save(tmp_path / "n")
    (local / "tokenizer.json").unlink()
    with pytest.raises(IncompleteModel, match=r"tokenizer\.json"):
        pair(str(local))
    (tmp_path / "empty").mkdir()
    with pytest.raises(IncompleteModel, match=r"config\.json"):
        catalog.find(str(tmp_path / "empty"))
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    with pytest.raises(DamagedAssets) as damaged:
        catalog.find("harbour")
    assert "git checkout -- " in damaged.value.hint


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "whatever", "architectures": ["WhateverForCausalLM"]}, "'whatever'"),
        ({"max_position_embeddings": 128}, "128"),
        # transformers only logs what the checkpoint lacks, initialises it, and answers nonsense
        ({"num_hidden_layers": 3}, "do not fit"),
        ({"vocab_size": 70}, "do not fit|missing or damaged"),
    ],
)
def test_what_could_not_answer_is_refused_in_one_line(tmp_path: Path, config: dict[str, Any], told: str) -> None:
    with pytest.raises(CoreError) as error:
        load(changed(tmp_path / "m", **config))
    assert re.search(told, error.value.problem) and error.value.hint and "\n" not in str(error.value)


# -------------------- drafts


def test_a_draft_is_found_by_its_tokens_if_its_keys_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = save(tmp_path / "t", layers=9, added=("<tool>",))  # tokens that one of both has in addition part no pair
    put_in_cache("small/other-words", save(tmp_path / "a", words=59, layers=1))
    damaged = put_in_cache("small/damaged", save(tmp_path / "e", layers=1))
    (damaged / "tokenizer.json").write_text("{}")
    for closed in ("small/closed", "Qwen/Qwen3-0.6B"):  # folders that cannot be read
        put_in_cache(closed, save(tmp_path / "f", layers=1))
        (store.repository_folder(closed) / "refs" / "main").write_bytes(b"\xff")
    found = pair(str(target))
    assert found.draft is None and "no small model" in found.draft_because
    draft = put_in_cache("small/same-words", save(tmp_path / "b", layers=1, added=("<pad>",)))
    found = pair(str(target))
    assert found.draft == draft and "small/same-words" in found.draft_because
    assert pair(str(target), "none").draft is None
    with pytest.raises(UnsupportedModel, match="does not use the tokens"):
        pair(str(target), str(save(tmp_path / "c", words=59)))
    assert pair(str(target), str(draft)).draft == draft
    monkeypatch.setattr(loader, "DRAFTS", frozenset())
    assert pair(str(target)).draft is None
    with pytest.raises(UnsupportedModel, match="cannot be moved"):
        pair(str(target), str(draft))


@pytest.mark.parametrize("rows", [(72, 64), (64, 72)])
def test_vocabularies_padded_to_different_sizes_still_pair(tmp_path: Path, rows: tuple[int, int]) -> None:
    """Qwen2.5-7B has 152,064 rows, its draft 151,936, for the same tokens. Greedy text stays plain decoding's."""
    engine = load(save(tmp_path / "t", vocab_size=rows[0]), 512, save(tmp_path / "d", vocab_size=rows[1]))
    prompt = [3 + n % 50 for n in range(100)]
    plain = answer(engine, prompt, "autoregressive", 24).token_ids
    for method in ("triforce", "draft", "triforce-lookup"):
        assert answer(engine, prompt, method, 24).token_ids == plain
