"""Checkpoints of models that see or hear too: the text part alone is loaded, and writes what the whole model writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from core.caches.full import FullCache
from core.caches.tokens import Context
from core.errors import DamagedAssets, UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.families import FAMILIES
from core.models.loader import dims_of, read_dims
from core.models.param_count import size_in
from core.models.text_part import PLAIN, WHOLES
from core.models.weights import load_model, load_module
from tests.core.models.tiny_families import tiny_family, transformers_text
from tests.core.toys import CPU, random_prompt, tiny_config, tiny_model

LENGTH, WRITTEN = 60, 8
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "depth"), 1),
    **dict.fromkeys(("num_attention_heads", "num_heads"), 2),
    **{"image_size": 28, "patch_size": 14},
}
VL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TEXTS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"rope_parameters": VL_ROPE},
    "qwen2_5_vl": {"rope_parameters": VL_ROPE},
    "llava": {"tie_word_embeddings": False},
    "qwen3_vl": {"rope_parameters": {**VL_ROPE, "mrope_interleaved": True}},
}
SERVED = sorted(
    kind
    for kind in WHOLES - {"gemma3n"}  # its eyes need another package
    if (text := CONFIG_MAPPING[kind]().get_text_config(decoder=True).model_type) in FAMILIES or text in PLAIN
)


def checkpoint(kind: str, folder: Path) -> nn.Module:
    """A tiny random model of this kind, saved as transformers saves it."""
    own = CONFIG_MAPPING[kind]()
    text = tiny_family(own.get_text_config(decoder=True).model_type, **TEXTS.get(kind, {}))
    others = {}
    for name in own.sub_configs:
        other = getattr(own, name, None)
        if name != "text_config" and other is not None:
            stated = other.to_dict()
            others[name] = {**stated, **{field: SMALL[field] for field in SMALL if isinstance(stated.get(field), int)}}
    config = type(own)(text_config=text.to_dict(), **others)
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # fresh norms and biases are 1 and 0, and would hide a part that is left out
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model


def renamed(folder: Path, names: dict[str, str]) -> int:
    """Replace beginnings of the names of weights; how many were replaced."""
    file, count = folder / "model.safetensors", 0
    weights = {}
    for name, value in load_file(file).items():
        old = next((old for old in names if name.startswith(old)), None)
        count += old is not None
        weights[name if old is None else names[old] + name.removeprefix(old)] = value
    save_file(weights, file, {"format": "pt"})
    return count


def stock(whole: nn.Module) -> Any:
    """The whole model, or its language model where transformers' own cannot do without a picture (Llama 4 in 5.24)."""
    try:
        whole(input_ids=torch.tensor([[1]]))
    except AttributeError:
        return whole.language_model
    return whole


@torch.inference_mode()
def same_text(whole: nn.Module, folder: Path) -> None:
    dims = read_dims(folder)
    loaded = load_model(folder, dims, torch.float32, CPU)
    tokens = random_prompt(LENGTH)
    ids = torch.tensor([tokens])
    own = stock(whole)
    judge, text = CachedModel("text", loaded.module, FullCache(loaded.shape, 256, 8), CPU), list(tokens)
    logits = judge.logits(Context(tokens), LENGTH)
    judge.cache.truncate(LENGTH - 1)
    for _ in range(WRITTEN):
        text.append(int(judge.logits(Context(text), 1).argmax()))
    assert tuple(text[LENGTH:]) == transformers_text(own, tokens, WRITTEN)
    assert torch.allclose(logits, own(input_ids=ids).logits[0], atol=5e-4, rtol=2e-4)
    assert 0 <= dims.weight_bytes - loaded.weight_bytes < 64, "a few numbers are no parameters"


@pytest.mark.parametrize("kind", SERVED)
def test_the_text_part_writes_what_the_whole_model_writes(kind: str, tmp_path: Path) -> None:
    same_text(checkpoint(kind, tmp_path), tmp_path)


NEW = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
OLD = {new: old for old, new in NEW.items()}


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "internvl", "llama4", "llava", "mistral3"])
def test_old_and_new_names_of_weights_load(kind: str, tmp_path: Path) -> None:
    checkpoint(kind, tmp_path)
    wanted = load_module(tmp_path, torch.float32).state_dict()
    for names in (NEW, OLD):
        if renamed(tmp_path, names):
            found = load_module(tmp_path, torch.float32).state_dict()
            assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_text_part_of_gemma3n_loads(tmp_path: Path) -> None:
    text = tiny_family("gemma3n_text")
    torch.manual_seed(3)
    alone = AutoModelForCausalLM.from_config(text, attn_implementation="eager").float().eval()
    alone.generation_config.eos_token_id = None
    alone.save_pretrained(tmp_path)
    assert renamed(tmp_path, {"model.": "model.language_model."}) > 0
    CONFIG_MAPPING["gemma3n"](text_config=text.to_dict()).save_pretrained(tmp_path)
    same_text(alone, tmp_path)


def test_a_text_part_that_names_the_whole_models_class_loads(tmp_path: Path) -> None:
    whole, file = checkpoint("qwen2_5_vl", tmp_path), tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["architectures"] = config["architectures"] = ["Qwen2_5_VLForConditionalGeneration"]
    file.write_text(json.dumps(config))
    same_text(whole, tmp_path)


@pytest.mark.parametrize("kind", ["mistral3", "internvl", None])
def test_an_output_layer_of_its_own_is_counted_whatever_the_configuration_says(
    kind: str | None, tmp_path: Path
) -> None:
    """transformers does not tie weights that differ; several kinds' own default is to tie."""
    whole = checkpoint(kind, tmp_path) if kind else tiny_model(tiny_config(tie_word_embeddings=True), 3, "eager")
    whole.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    embeddings = next(value for name, value in weights.items() if name.endswith("embed_tokens.weight"))
    assert "lm_head.weight" not in weights and read_dims(tmp_path).tied
    for output, tied in ((embeddings.clone(), True), (embeddings.flip(0).clone(), False)):
        save_file({**weights, "lm_head.weight": output}, file, {"format": "pt"})
        dims, module = read_dims(tmp_path), load_module(tmp_path, torch.float32)
        assert dims.tied == tied == (module.lm_head.weight is module.model.embed_tokens.weight)
        assert torch.equal(module.lm_head.weight, output)
        held = sum(parameter.nbytes for parameter in module.parameters())
        assert size_in(tmp_path).num_parameters == held // 4 and dims.packed_bytes == held


def test_what_cannot_be_taken_out_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = checkpoint("gemma3", tmp_path)
    with pytest.raises(UnsupportedModel, match="only the text part") as error:  # in memory
        dims_of(whole.config, "toy", weight_bytes=0)
    assert "folder" in error.value.hint
    renamed(tmp_path, {"model.language_model.": "other.", "language_model.": "other."})
    with pytest.raises(DamagedAssets, match="missing or of another size"):
        load_model(tmp_path, read_dims(tmp_path), torch.float32, CPU)
    CONFIG_MAPPING["aya_vision"](architectures=["ForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="was not compared") as error:
        read_dims(tmp_path)
    assert error.value.hint and "\n" not in error.value.problem
