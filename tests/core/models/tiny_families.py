"""A tiny random model of any family that transformers knows, made from the family's own configuration by rules.

Few layers, one of each kind that the family's own configuration has; small sizes; windows shorter than any test's text.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from core.config import DraftConfig, EngineConfig, PlacementWish, RetrievalConfig
from core.engine import Engine
from core.generation.levels import LoadedModels
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.loader import LoadedModel, dims_of
from core.models.weights import prepared
from core.planning.plan import make_plan
from tests.core.toys import CPU, MACHINE, Letters, sized

VOCAB = 64
WINDOW = 16
FEWEST_LAYERS = 2
FULL = "full_attention"
# The value that a field gets, by its name; a field that a family does not have, or has as None, stays away.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "linear_key_head_dim"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "linear_num_value_heads"), 4),
    **dict.fromkeys(("attention_chunk_size", "sliding_window", "sliding_window_size", "head_dim"), WINDOW),
    **dict.fromkeys(("global_head_dim", "linear_value_head_dim"), 32),
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "eos_token_id", "max_window_layers"), 1),
    **dict.fromkeys(("num_kv_shared_layers", "bos_token_id"), 0),
    "pad_token_id": VOCAB - 1,  # real ones are large
    "max_position_embeddings": 4096,
    "query_pre_attn_scalar": 20,
    "linear_num_key_heads": 2,
    "intermediate_size_mlp": 96,
    "initializer_range": 0.4,  # large enough that attention is sharp and laws differ from one another
    "tie_word_embeddings": True,
    "use_sliding_window": True,  # families that have the switch have it off in their own configuration
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_EXPERTS = ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk", "top_k")
MLP_WIDTHS = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
# The last three layers read the keys and values of the second and the third one
SHARING: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", FULL] * 2,
    "num_kv_shared_layers": 3,
}
OTHER_HEADS: dict[str, Any] = {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
OWN: dict[str, dict[str, Any]] = {  # what no rule finds
    "gemma3n_text": {**SHARING, "intermediate_size": 96, "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0, 0.9, 0.0]},
    "gemma4_text": {**SHARING, **OTHER_HEADS, "use_double_wide_mlp": True},
    "gemma4_unified_text": {**SHARING, **OTHER_HEADS},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "llama4_text": {"floor_scale": 32},  # queries of layers without positions grow with the position
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 8}
    | {"mamba_d_head": 16, "mamba_d_state": 16},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 16}
    | {"ssm_state_size": 16, "num_hidden_layers": 3, "sliding_window": None},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
}


def families() -> list[str]:
    """Every causal family of the installed transformers."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_family(family: str, **fields: Any) -> PreTrainedConfig:
    """The family's own configuration, shrunk; `fields` replace what the rules chose."""
    own = text_part(CONFIG_MAPPING[family]())
    stated = own.to_dict()
    kept = _layers_of_each_kind(own, stated)
    small: dict[str, Any] = {}
    for name, value in stated.items():
        if name == "moe_layers":
            continue  # numbers of layers, which follow from another field
        if isinstance(value, list) and len(value) == own.num_hidden_layers > 0:
            small[name] = [value[layer] for layer in kept]
        elif name in SIZES and (value is not None or name.startswith("sliding_window")):
            small[name] = SIZES[name]
        elif name in ("num_key_value_heads", "num_global_key_value_heads") and value:
            small[name] = 4 if value == stated.get("num_attention_heads") else 2
        elif name in EXPERTS and value:
            small[name] = 4
        elif name in CHOSEN_EXPERTS and value:
            small[name] = min(value, 2)
        elif name.endswith(MLP_WIDTHS) and value:
            small[name] = [96] * len(kept) if isinstance(value, list) else 96
        elif name == "rope_parameters" and isinstance(value, dict):
            small[name] = value
    small["num_hidden_layers"] = len(kept)
    if "use_sliding_window" in stated and set(small.get("layer_types") or ()) == {FULL}:
        small["layer_types"] = ["sliding_attention", *small["layer_types"][1:]]
    config = type(own)(**small | OWN.get(family, {}) | fields)
    config.dtype = torch.float32
    return config


def text_part(config: PreTrainedConfig) -> Any:
    """The part that says how text is written, of families that see and hear too."""
    return config.get_text_config(decoder=True)


def _layers_of_each_kind(own: Any, stated: dict[str, Any]) -> list[int]:
    """Layer numbers with one of each kind that a list of the configuration tells apart, the last layer among them."""
    count = getattr(own, "num_hidden_layers", None) or 2
    lists = [value for value in stated.values() if isinstance(value, list) and len(value) == count]
    lists = [value for value in lists if len(set(map(repr, value))) < count]  # else numbers of layers
    kinds = {repr([value[layer] for value in lists]): layer for layer in range(count)}  # the last of its kind
    kept = sorted(kinds.values())
    more = [layer for layer in range(count - 1, -1, -1) if layer not in kept]
    return sorted(kept + more[: max(0, FEWEST_LAYERS - len(kept))])


def twin_models(config: PreTrainedConfig, attention: str, seed: int = 5) -> tuple[nn.Module, nn.Module]:
    """The same random weights twice: in transformers' own attention, and in another implementation."""
    stock, other = random_model(config, seed, spread=0.3), _model(config, attention, seed)
    other.load_state_dict(stock.state_dict())
    return stock, other


def random_model(config: PreTrainedConfig, seed: int = 5, *, spread: float = 0.1) -> Any:
    """In transformers' own attention. Fresh norms, biases and sinks are 1 and 0, and would hide what is left out."""
    model, generator = _model(config, "eager", seed), torch.Generator().manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or "norm" in name or name.endswith(("bias", "sinks")):
            parameter.data += spread * torch.randn(parameter.shape, generator=generator)
        parameter.data.nan_to_num_(nan=0.1)  # some families leave memory as it was
    return model


def _model(config: PreTrainedConfig, attention: str, seed: int) -> nn.Module:
    register()
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(type(config)(**config.to_dict()), attn_implementation=attention)
    model.generation_config.eos_token_id = None  # texts have the length that a test asks for
    model = model.to(torch.float32).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not math.isfinite(float(parameter.abs().max())):
            parameter.data.normal_(0, 0.1)
    return model


def family_target(family: str) -> tuple[LoadedModel, nn.Module]:
    """A family's tiny model as an engine loads it, and the same model in transformers' own attention."""
    config = tiny_family(family)
    stock, ours = twin_models(config, ATTENTION_NAME)
    dims = dims_of(config, family, weight_bytes=1 << 20)
    return prepared(ours, dims, torch.float32, CPU), stock


def family_engine(family: str, placement: PlacementWish = "auto", draft: str | None = None) -> tuple[Engine, nn.Module]:
    """An engine over it, and the same model in transformers' own attention."""
    target, stock = family_target(family)
    small = family_target(draft)[0] if draft else None
    wanted = EngineConfig(
        context=2048,
        prefill_chunk=64,
        placement=placement,
        gpu_memory_gib=None if placement == "auto" else 1.0,
        retrieval=RetrievalConfig(budget=128, chunk_size=8, local_window=64, query_window=8),
        draft=DraftConfig(window=128),
    )
    plan = make_plan(sized(target.dims), small.dims if small else None, wanted, MACHINE)
    return Engine(wanted, plan, Letters(), LoadedModels(target=target, draft=small)), stock


def transformers_text(stock: Any, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """What transformers writes, greedily, past any end-of-text token."""
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": num_tokens, "do_sample": False}
    ends = {"eos_token_id": None, "pad_token_id": 0}
    return tuple(stock.generate(ids, **options, **ends)[0].tolist()[len(prompt) :])
