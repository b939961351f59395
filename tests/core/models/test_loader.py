import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from core.caches.base import KVShape
from core.errors import DamagedAssets, UnsupportedModel
from core.models.hub import catalog
from core.models.loader import dims_of, load_tokenizer, read_dims, same_tokens
from core.models.rotary import KeyShift
from core.models.weights import load_model
from tests.core.toys import CPU, tiny_config, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = AutoModelForCausalLM.from_config(tiny_config(kv_heads=2), dtype=torch.float32)
    cast(Any, model).save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_sizes_come_from_the_config_alone(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.write_bytes(b"")
    dims = read_dims(folder)
    assert (dims.num_layers, dims.num_heads, dims.num_kv_heads, dims.head_dim) == (2, 4, 2, 16)


def test_a_local_folder_loads(folder: Path) -> None:
    entry = catalog.find(str(folder))
    model = load_model(entry.target, read_dims(entry.target), torch.float32, CPU)
    assert model.eos_ids == {1} and model.weight_bytes > 0 and entry.draft is None


def test_truncated_weights_are_named_as_damage(folder: Path) -> None:
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DamagedAssets, match="missing or damaged"):
        load_model(folder, read_dims(folder), torch.float32, CPU)


LLAMA = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
REASONS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"sliding_window": 16}, "a window of 16 tokens"),
    ("llama", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
    ("llama", {"attention_chunk_size": 64}, "chunks of 64 tokens"),
    ("llama", {"layer_types": ["full_attention", "conv"]}, "running state"),
    ("jamba", {}, "cannot go on from a running state"),
    ("kimi_linear", {}, "running state"),
    ("lfm2", {"layer_types": ["full_attention", "full_attention"]}, "does not name them"),
    ("gemma", {"use_bidirectional_attention": True}, "tokens that follow"),
    ("llama", {"is_causal": False}, "tokens that follow"),
    ("deepseek_v3", {}, "latent attention"),
    ("llama", {"v_head_dim": 8}, "values of another size"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "longrope"),
    ("llama", {"rope_parameters": {"rope_type": "another", "rope_theta": 1e4}}, "the kind 'another'"),
    ("mistral", {"per_layer_config": {1: {"sliding_window": 16}}}, "layers of different kinds"),
    ("llama", {"num_kv_shared_layers": 1}, "layers read the keys of others"),
    ("llama", {"per_layer_config": {1: {"num_key_value_heads": 2}}}, "layers of different kinds"),
    ("opt", {}, "the family 'opt'"),
]


@pytest.mark.parametrize(("family", "fields", "reason"), REASONS, ids=[f"{row[0]}, {row[2]}" for row in REASONS])
def test_what_would_not_run_exactly_is_refused_with_its_reason(
    family: str, fields: dict[str, Any], reason: str
) -> None:
    """From the configuration alone, as transformers reads it: nothing is loaded."""
    config = CONFIG_MAPPING[family]()
    if "per_layer_config" in fields:
        config = CONFIG_MAPPING[family](**LLAMA, **fields)
    else:
        for name, value in {**LLAMA, **fields}.items():
            setattr(config, name, value)
    with pytest.raises(UnsupportedModel, match=re.escape(reason)) as error:
        dims_of(config, "toy", weight_bytes=0)
    assert error.value.problem.startswith("toy ") and error.value.hint.endswith(".")


def test_missing_bundled_files_are_named_with_the_command_that_restores_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    with pytest.raises(DamagedAssets) as error:
        catalog.find("harbour")
    assert "git checkout -- " in error.value.hint


def test_the_bundled_pair_shares_its_tokens_and_plans_before_loading() -> None:
    entry = catalog.find("harbour")
    assert entry.draft is not None
    assert same_tokens(load_tokenizer(entry.target), load_tokenizer(entry.draft))
    assert read_dims(entry.target).num_kv_heads == read_dims(entry.target).num_heads


def test_a_draft_whose_keys_do_not_move_as_expected_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shift is tried on the model itself: one that does nothing is noticed."""
    model = tiny_model(tiny_config(), 0)
    shape = KVShape(2, 4, 4, 16, torch.float32, CPU)
    assert isinstance(KeyShift.of(model, shape), KeyShift)
    monkeypatch.setattr(KeyShift, "__call__", lambda self, keys, delta: keys.clone())
    with pytest.raises(UnsupportedModel):
        KeyShift.of(model, shape)
