"""What a model is before its weights: sizes, refusals with their reasons, and how a draft's keys move."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig
from core.errors import DamagedAssets, NotEnoughMemory, UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.hub import catalog
from core.models.loader import dims_of, load_tokenizer, read_dims, same_tokens
from core.models.param_count import size_in, size_of
from core.models.rotary import KeyShift
from core.models.weights import load_model
from tests.core.toys import CPU, FAMILIES, loaded, random_prompt, tiny_config, tiny_model
from tests.thinkers import tokenizer


def written(folder: Path, **fields: Any) -> Path:
    """A model's folder, with these fields in its config.json."""
    model = AutoModelForCausalLM.from_config(tiny_config(kv_heads=2), dtype=torch.float32)
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


def test_weights_in_a_quantised_format_are_refused_though_no_field_says_so(tmp_path: Path) -> None:
    """As of NVIDIA's modelopt, whose scales transformers drops, and of AutoGPTQ and MLX."""
    (file,) = written(tmp_path).glob("*.safetensors")
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    for kind, told in ((torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.uint32, "U32")):
        save_file({**weights, name: weights[name].to(kind), "mask": torch.zeros(2, 2, dtype=torch.bool)}, file)
        with pytest.raises(UnsupportedModel, match=f"quantised weights .{told}."):
            read_dims(tmp_path)
    save_file({**weights, "mask": torch.zeros(2, 2, dtype=torch.bool)}, file)
    assert read_dims(tmp_path).num_layers == 2


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_attention_that_a_file_names_is_not_looked_for(field: str, tmp_path: Path) -> None:
    folder = written(tmp_path, **{field: "flash_attention_2"})
    assert size_in(folder).num_parameters > 0
    assert load_model(folder, read_dims(folder), torch.float32, CPU).weight_bytes > 0


def test_a_padding_token_beyond_the_vocabulary_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = written(tmp_path, pad_token_id=10_000)
    with pytest.raises(UnsupportedModel, match="no text model"):
        size_in(folder)


def test_a_tokenizer_s_files_are_refused_for_what_they_are_and_its_old_template_is_found(tmp_path: Path) -> None:
    words = tokenizer()
    template, words.chat_template = words.chat_template, None
    words.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).chat_template is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert load_tokenizer(tmp_path).chat_template == template
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unknown"}}')
    with pytest.raises(DamagedAssets, match="unreadable"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    if find_spec("sentencepiece") is None:
        with pytest.raises(UnsupportedModel, match="another package"):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").rename(tmp_path / "tekken.json")
    with pytest.raises(UnsupportedModel, match=r"tekken\.json alone"):
        load_tokenizer(tmp_path)


def test_the_padding_of_gguf_files_makes_no_other_tokens() -> None:
    def of(*words: str) -> Any:
        return Mock(get_vocab=lambda: {word: at for at, word in enumerate(words)}, get_added_vocab=dict)

    few = of("a", "b", "[PAD2]")
    assert same_tokens(few, of("a", "b", "[PAD2]", "[PAD3]")) and same_tokens(few, of("a", "b"))
    assert not same_tokens(few, of("a", "c")) and not same_tokens(few, of("a", "b", "[PAD3]"))


def test_a_folder_is_sized_before_it_is_loaded_and_truncated_weights_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_config(tiny_config(kv_heads=2), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    dims, entry = read_dims(tmp_path), catalog.find(str(tmp_path))
    loaded = load_model(entry.target, dims, torch.float32, CPU)
    assert loaded.eos_ids == {1} and loaded.weight_bytes > 0 and entry.draft is None
    (weights,) = tmp_path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DamagedAssets, match="missing or damaged"):
        load_model(tmp_path, dims, torch.float32, CPU)
    full = RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
    with monkeypatch.context() as patched, pytest.raises(NotEnoughMemory, match="memory that is free"):
        patched.setattr("transformers.LlamaForCausalLM.from_pretrained", Mock(side_effect=full))
        load_model(tmp_path, dims, torch.float32, CPU)
    weights.write_bytes(b"")
    dims = read_dims(tmp_path)  # from the config alone
    assert (dims.num_layers, dims.num_heads, dims.num_kv_heads, dims.head_dim) == (2, 4, 2, 16)


def test_counting_a_16_bit_model_leaves_the_default_type_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on the page's thread, in bfloat16, it made the engine's thread write over memory that was too small."""
    chosen: list[Any] = []
    set_default = torch.set_default_dtype
    monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: (chosen.append(dtype), set_default(dtype)))
    config = tiny_config()
    config.dtype = torch.bfloat16
    size = size_of(config, "tiny")
    assert size.num_parameters > 0 and config.dtype == torch.bfloat16
    assert set(chosen) <= {torch.float32} and torch.get_default_dtype() == torch.float32


LLAMA = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
UNEVEN = {layer: {"head_dim": 32} for layer in (0, 2, 5)}
REASONS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"sliding_window": 16}, "a window of 16 tokens"),
    ("llama", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
    ("llama", {"attention_chunk_size": 64}, "chunks of 64 tokens"),
    ("llama", {"layer_types": ["full_attention", "conv"]}, "running state"),
    ("jamba", {}, "cannot go on from a running state"),
    ("kimi_linear", {}, "running state"),
    ("lfm2", {"layer_types": None}, "does not name them"),
    ("lfm2", {"layer_types": ["conv", "sliding_attention", "full_attention"]}, "layers of the type sliding_attention"),
    ("qwen3_next", {"layer_types": ["linear_attention"] * 2}, "recurrent layers alone"),
    ("falcon_h1", {"time_step_limit": (0.0, 0.05)}, "time_step_limit"),
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
    ("gemma4_text", {"num_hidden_layers": 6, "per_layer_config": UNEVEN}, "different kinds or sizes"),
    ("opt", {}, "the family 'opt'"),
]


@pytest.mark.parametrize(("family", "fields", "reason"), REASONS, ids=[f"{row[0]}, {row[2]}" for row in REASONS])
def test_what_would_not_run_exactly_is_refused_with_its_reason(
    family: str, fields: dict[str, Any], reason: str
) -> None:
    """From the configuration alone, as transformers reads it: nothing is loaded."""
    config = CONFIG_MAPPING[family]()
    if "per_layer_config" in fields:
        config = CONFIG_MAPPING[family](**LLAMA | fields)
    else:
        for name, value in {**LLAMA, **fields}.items():
            setattr(config, name, value)
    with pytest.raises(UnsupportedModel, match=re.escape(reason)) as error:
        dims_of(config, "toy", weight_bytes=0)
    assert error.value.problem.startswith("toy ") and error.value.hint.endswith(".")


@pytest.mark.parametrize(("factor", "longest"), [(4.0, 16_384), (0.5, 4096)])
def test_yarn_that_was_added_to_a_configuration_makes_its_context_longer(factor: float, longest: int) -> None:
    """As model cards advise: the stated context is still that of the training."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": 4096}
    for stated in (yarn, {"full_attention": yarn, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}):
        config = tiny_config()
        config.rope_parameters = stated
        assert dims_of(config, "toy", weight_bytes=0).max_context == longest


def stock_one_layer(family: str, tokens: list[int]) -> torch.Tensor:
    model = tiny_model(tiny_config(family, layers=1), 3, "eager")
    return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_whose_window_has_moved_computes_what_transformers_computes_of_that_window(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer's keys depend on token and slot only. A shift that does nothing is noticed by its own trial."""
    model = loaded(tiny_config(family, layers=1), 3)
    shift, tokens = KeyShift.of(model.module, model.shape), random_prompt(130)
    for right, move in ((True, shift), (False, lambda keys, delta: keys.clone())):
        cache = StreamingCache(model.shape, DraftConfig(num_sink=4, window=100), move)
        judge = CachedModel("draft", model.module, cache, CPU)
        start = judge.logits(Context(tokens[:60]), 5)
        assert torch.allclose(start, stock_one_layer(family, tokens[:60])[-5:], atol=2e-4)
        for index in range(60, 130):
            logits = judge.logits(Context(tokens[: index + 1]), 1)[0]
        rows = cache.nbytes // model.shape.bytes_per_token
        exact = stock_one_layer(family, tokens[:4] + tokens[130 - rows + 4 :])[-1]
        assert rows < 130 and torch.allclose(logits, exact, atol=2e-4 if right else 1e-2) == right
    monkeypatch.setattr(KeyShift, "__call__", lambda self, keys, delta: keys.clone())
    with pytest.raises(UnsupportedModel, match="can be moved"):
        KeyShift.of(model.module, model.shape)
