"""What the GGUF files of each family call their sizes and weights, and how llama.cpp's converter laid those out.

Of several names for a size, the one counts that the family's configuration declares. A weight of transformers' model is
filled from one tensor or several: gguf's own table of names says which, except for the weights that a rule here knows.
Each tensor fills a view of the weight, which undoes the converter's new order. A family stands in KINDS once a test
compares logits with those of the same weights in a folder.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedConfig

from core.errors import UnsupportedModel
from core.models.gguf_header import StoredTensor

SAFETENSORS = "Take the model's folder with safetensors instead."
SLIDING, FULL = "sliding_attention", "full_attention"
FREQUENCIES = "rope_freqs.weight"  # what rotary frequencies are divided by, where positions are scaled as in Llama 3.1

ALIKE = """
    arcee cohere2 ernie4_5 exaone4 gemma gemma2 glm4 granite granitemoe lfm2 llama nemotron olmo olmo2 olmoe phi3
    qwen2 qwen3 seed_oss smollm3 stablelm starcoder2
"""
KINDS: Mapping[str, str] = {  # of files, to transformers' names
    **{name: name for name in ALIKE.split()},
    "command-r": "cohere",
    "ernie4_5-moe": "ernie4_5_moe",
    "gemma3": "gemma3_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "hunyuan-dense": "hunyuan_v1_dense",
    "lfm2moe": "lfm2_moe",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe",
}
VARIANTS = {  # by a field that only their headers have
    "granitemoe": ("expert_shared_feed_forward_length", "granitemoeshared"),
    "llama": ("expert_count", "mixtral"),
    "olmo2": ("attention.sliding_window", "olmo3"),
}
SIZES = {  # of every family: the header's names, without the family's, and those of configurations
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
DECLARED: Mapping[str, tuple[str, ...]] = {  # likewise, of those that a configuration declares: the first of these
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_eps", "norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",),
    "attention.clamp_kqv": ("clip_qkv",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "expert_count": ("moe_num_experts", "n_routed_experts", "num_local_experts", "num_experts"),
    "expert_used_count": ("moe_k", "num_experts_per_tok"),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_count": ("moe_num_shared_experts", "n_shared_experts"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "leading_dense_block_count": ("moe_layer_start_index", "first_k_dense_replace", "num_dense_layers"),
    "interleave_moe_layer_step": ("moe_layer_interval",),
    "use_parallel_residual": ("use_parallel_residual",),
    "shortconv.l_cache": ("conv_L_cache",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim",),
    "ssm.state_size": ("linear_key_head_dim",),
    "ssm.group_count": ("linear_num_key_heads",),
    "ssm.time_step_rank": ("linear_num_value_heads",),
}
FLAGS = {  # fields that say whether there are such tensors
    "attention_bias": ("attn_q.bias", "attn_qkv.bias"),
    "use_bias": ("attn_q.bias",),
    "use_qkv_bias": ("attn_q.bias",),
    "attention_out_bias": ("attn_output.bias",),
    "mlp_bias": ("ffn_up.bias",),
    "use_qk_norm": ("attn_q_norm.weight",),
    "use_expert_bias": ("exp_probs_b.bias",),
}
UNSTATED: Mapping[str, Mapping[str, Any]] = {  # by no header, and alike in all models of a kind
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "mixtral": {"sliding_window": None},
    "olmoe": {"norm_topk_prob": False},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "starcoder2": {"sliding_window": 4096},
}
# Kinds whose positions may turn a part of each head
IN_PART = ("glm4", "glm4_moe", "gpt_neox", "nemotron", "phi", "phi3", "qwen3_5_moe_text", "qwen3_5_text", "stablelm")
PERMUTED = ("arcee", "granite", "granitemoe", "llama", "olmo", "smollm3")  # by converters that derive from Llama's
SHIFTED = ("gemma", "gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe")  # norms multiply by 1 + weight


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a file says."""

    path: Path
    family: str
    said: Mapping[str, Any]
    ends: tuple[int, ...]  # the tokens that end a text
    tensors: Mapping[str, StoredTensor]

    @property
    def kind(self) -> str:
        """transformers' name of the family."""
        field, variant = VARIANTS.get(self.family, ("", ""))
        return variant if field and self.get(field) else KINDS[self.family]

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the family's; of a list, the number of every layer that has one. Raises UnsupportedModel."""
        value = self.said.get(f"{self.family}.{name}", default)
        if not isinstance(value, tuple):
            return value
        if len(numbers := set(value) - {0} or {0}) > 1:
            raise self.unknown(f"layers that differ in {name}")
        return numbers.pop()

    def has(self, tensor: str) -> bool:
        """Whether there is a weight of this name, in some layer."""
        return any(re.fullmatch(rf"(blk\.\d+\.)?{re.escape(tensor)}", name) for name in self.tensors)

    def unknown(self, what: str) -> UnsupportedModel:
        """The error for a file that has something which its family is not known to have."""
        return UnsupportedModel(f"{self.path.name} has {what}, untested in files of {self.family!r}.", hint=SAFETENSORS)


def configuration(header: Header, frequencies: Tensor | None) -> PreTrainedConfig:
    """The configuration that a header stands for; `frequencies`: what the file divides rotary frequencies by.

    Raises:
        ValueError, KeyError: it states no model of its family.
        UnsupportedModel: it states something that is not known of its family.
    """
    kind = header.kind
    made: Any = CONFIG_MAPPING[kind]
    names = dict(SIZES)
    for said, choices in DECLARED.items():
        if (name := next((name for name in choices if hasattr(made, name)), None)) is not None:
            names[said] = name
    found: dict[str, Any] = {name: value for said, name in names.items() if (value := header.get(said)) is not None}
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    found["num_hidden_layers"] -= header.get("nextn_predict_layers", 0)
    found |= {name: any(map(header.has, tensors)) for name, tensors in FLAGS.items() if hasattr(made, name)}
    found["vocab_size"] = header.tensors["token_embd.weight"].shape[0]
    found["tie_word_embeddings"] = "output.weight" not in header.tensors
    found["bos_token_id"], found["pad_token_id"] = header.said.get("tokenizer.ggml.bos_token_id"), None
    found["eos_token_id"] = list(header.ends) or None
    head_dim = found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
    found["rope_parameters"] = _rope(header, head_dim, frequencies, in_part=kind in IN_PART)
    if isinstance(windowed := header.said.get(f"{header.family}.attention.sliding_window_pattern"), tuple):
        found["layer_types"] = [SLIDING if own else FULL for own in windowed]
    found |= UNSTATED.get(kind, {})
    more = MORE[kind](header, found) if kind in MORE else {}
    return cast(PreTrainedConfig, made(**found | more))


def _gemma(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    """Gemma's scale of scores, which no header states: its largest model has another one."""
    is_largest = found["num_hidden_layers"] == (46 if header.family == "gemma2" else 62)
    by_heads = found["hidden_size"] // found["num_attention_heads"]
    return {"query_pre_attn_scalar": by_heads if is_largest else found["head_dim"]}


def _gemma3(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    more = _gemma(header, found)
    if header.get("attention.sliding_window") is None:
        more["layer_types"] = [FULL] * found["num_hidden_layers"]
    sliding = {"rope_type": "default", "rope_theta": header.get("rope.freq_base_swa", 10_000.0)}
    return more | {"rope_parameters": {FULL: found["rope_parameters"], SLIDING: sliding}}


def _olmo3(_: Header, found: dict[str, Any]) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": found["rope_parameters"]["rope_theta"]}
    return {"rope_parameters": {FULL: found["rope_parameters"], SLIDING: plain}}


def _exaone4(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    if header.get("attention.sliding_window"):
        return {}
    return {"sliding_window": None, "layer_types": [FULL] * found["num_hidden_layers"]}


def _phi3(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    length = header.get("rope.scaling.original_context_length", found["max_position_embeddings"])
    window = header.get("attention.sliding_window") or None
    return {"original_max_position_embeddings": length, "sliding_window": window}


def _lfm2(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    heads = header.said[f"{header.family}.attention.head_count_kv"]
    return {"layer_types": [FULL if count else "conv" for count in heads]}


def _qwen3_5(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    sections = [size for size in header.said[f"{header.family}.rope.dimension_sections"] if size]
    rope = found["rope_parameters"] | {"mrope_section": sections, "mrope_interleaved": True}
    width = header.get("ssm.inner_size") // found["linear_num_value_heads"]
    every = header.get("full_attention_interval")
    return {"linear_value_head_dim": width, "full_attention_interval": every, "rope_parameters": rope}


MORE: Mapping[str, Callable[[Header, dict[str, Any]], dict[str, Any]]] = {  # by the fields that were found
    "exaone4": _exaone4,
    "gemma2": _gemma,
    "gemma3_text": _gemma3,
    "gpt_oss": lambda _, found: {"rope_parameters": found["rope_parameters"] | {"truncate": False}},
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "olmo3": _olmo3,
    "phi3": _phi3,
    "qwen3_5_moe_text": _qwen3_5,
    "qwen3_5_text": _qwen3_5,
}


def _rope(header: Header, head_dim: int, frequencies: Tensor | None, *, in_part: bool) -> dict[str, Any]:
    """Rotary positions, as transformers states them."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": header.get("rope.freq_base", 10_000.0)}
    turned = header.get("rope.dimension_count", head_dim)
    if in_part:
        found["partial_rotary_factor"] = turned / head_dim
    elif turned != head_dim:
        raise header.unknown("positions in a part of each head")
    kind = header.get("rope.scaling.type", "linear")
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear", 1.0)) or 1.0  # the latter: of 2023
    if kind in ("none", "linear"):
        if kind == "linear" and factor != 1:
            found |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        found |= _yarn(header, factor)
    else:
        raise header.unknown(f"positions scaled as {kind!r}")
    if frequencies is not None:
        if found["rope_type"] != "default":
            raise header.unknown(f"rotary frequencies of its own, and positions scaled as {kind!r}")
        found |= _llama3(header, found["rope_theta"], turned, frequencies)
    return found


def _yarn(header: Header, factor: float) -> dict[str, Any]:
    if header.get("rope.scaling.yarn_ext_factor", 1) != 1 or header.get("rope.scaling.yarn_log_multiplier"):
        raise header.unknown("positions scaled as a variant of YaRN")
    length = header.get("rope.scaling.original_context_length")
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    attention = header.get("rope.scaling.yarn_attn_factor")
    if attention is not None and attention < 1:  # config.json's `attn_factor`, which transformers ignores
        attention = None
    elif attention is None and (usual := header.get("rope.scaling.attn_factor", 1.0)) != 1:
        attention = usual if header.family == "olmo2" else usual * (1 + 0.1 * math.log(factor))
    others = {name: header.get(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    others["attention_factor"] = attention
    return found | {name: value for name, value in others.items() if value is not None}


def _llama3(header: Header, theta: float, turned: int, frequencies: Tensor) -> dict[str, Any]:
    """What Llama 3.1 and later state, of which a file has the result alone: a divisor for each frequency."""
    factor = float(frequencies.max())
    waves = 2 * math.pi * theta ** (torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    for length in (1 << power for power in range(5, 21)):  # of texts before positions were scaled
        share = ((length / waves - 1) / 3).clamp(0, 1)  # low_freq_factor 1, high_freq_factor 4
        if waves.shape == frequencies.shape and torch.allclose(
            ((1 - share) / factor + share).reciprocal(), frequencies.double(), rtol=1e-4
        ):
            stated = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": length}
            return stated | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    raise header.unknown("rotary frequencies of its own")


class Part(NamedTuple):
    """The tensor that fills a weight, or a view of it, and how it is changed back."""

    tensor: str
    view: Callable[[Tensor], Tensor] | None = None
    whole: Callable[[Tensor], Tensor] | None = None  # of the tensor in the view's shape, where no view puts it right


# The match of a weight's name, the configuration and the tensor in gguf's table, to what fills the weight
Filled = Callable[[re.Match[str], Any, str], list[Part]]


def _halves(found: re.Match[str], config: Any, usual: str) -> list[Part]:
    """Rows of queries and keys, which llama.cpp rotates as neighbours and transformers as halves of a head."""
    heads = config.num_attention_heads if found[2] == "q" else config.num_key_value_heads
    return [
        Part(usual, lambda weight: weight.view(heads, 2, len(weight) // heads // 2, *weight.shape[1:]).transpose(1, 2))
    ]


def _gate_up(names: str, view: Callable[..., Tensor]) -> list[Part]:
    """Gates, and what they multiply, which transformers has in one weight."""
    return [Part(names.format(name), partial(view, at=at)) for at, name in enumerate(("gate", "up"))]


def _experts(found: re.Match[str], _config: Any, _usual: str) -> list[Part]:
    return _gate_up(f"blk.{found[1]}.ffn_{{}}_exps.weight", lambda weight, at: weight.chunk(2, 1)[at])


def _shared(found: re.Match[str], _config: Any, _usual: str) -> list[Part]:
    return _gate_up(f"blk.{found[1]}.ffn_{{}}_shexp.weight", lambda weight, at: weight.chunk(2, 0)[at])


def _neighbours(found: re.Match[str], _config: Any, _usual: str) -> list[Part]:
    """Of gpt-oss, which has both as neighbours, and weights input by input."""
    if found[2]:
        return _gate_up(f"blk.{found[1]}.ffn_{{}}_exps.bias", lambda weight, at: weight[..., at::2])
    return _gate_up(f"blk.{found[1]}.ffn_{{}}_exps.weight", lambda weight, at: weight[..., at::2].transpose(1, 2))


def _named(name: str, view: Callable[[Tensor], Tensor] | None = None) -> Filled:
    return lambda found, _config, _usual: [Part(name.format(*found.groups()), view)]


def _shifted(_found: re.Match[str], _config: Any, usual: str) -> list[Part]:
    return [Part(usual, whole=lambda weight: weight.float() - 1)]


def _three(_found: re.Match[str], config: Any, usual: str) -> list[Part]:
    """Queries, keys and values, which GPT-NeoX has head by head."""
    heads = config.num_attention_heads
    return [Part(usual, lambda weight: weight.view(heads, 3, -1, *weight.shape[1:]).transpose(0, 1))]


def _values(found: re.Match[str], config: Any, usual: str) -> list[Part]:
    """Of Qwen3.5, rows or columns of value heads: files have the first one of every key head first."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    leaf, passed = found[2], 0
    if leaf in ("in_proj_qkv.weight", "conv1d.weight"):
        passed = 2 * config.linear_key_head_dim * keys

    def grouped(rows: Tensor) -> Tensor:
        kept, reordered = rows[:passed], rows[passed:]
        parts = reordered.view(values // keys, keys, -1, *reordered.shape[1:]).transpose(0, 1)
        return torch.cat((kept, parts.reshape(reordered.shape)))

    tensor = {"A_log": f"blk.{found[1]}.ssm_a", "dt_bias": f"blk.{found[1]}.ssm_dt.bias"}.get(leaf, usual)
    others = {"A_log": lambda rows: grouped(torch.log(-rows)), "out_proj.weight": lambda rows: grouped(rows.t()).t()}
    return [Part(tensor, whole=others.get(leaf, grouped))]


LAYER = r"model\.layers\.(\d+)\."
NORMS = r".*(?<!linear_attn\.)norm\.weight"  # the norm inside linear attention multiplies by its weight
OSS = ("gpt-oss",)
RULES: tuple[tuple[str, Filled, tuple[str, ...]], ...] = (  # the first that matches counts, of these families or of all
    (LAYER + r"self_attn\.([qk])_proj\.(?:weight|bias)", _halves, PERMUTED),
    (LAYER + r"mlp\.experts\.gate_up_proj(_bias)?", _neighbours, OSS),
    (LAYER + r"mlp\.experts\.down_proj", _named("blk.{0}.ffn_down_exps.weight", lambda weight: weight.mT), OSS),
    (LAYER + r"mlp\.experts\.down_proj_bias", _named("blk.{0}.ffn_down_exps.bias"), OSS),
    (LAYER + r"self_attn\.sinks", _named("blk.{0}.attn_sinks.weight"), OSS),
    (NORMS, _shifted, SHIFTED),
    (LAYER + r".*experts\.gate_up_proj", _experts, ()),
    (LAYER + r".*experts\.down_proj", _named("blk.{0}.ffn_down_exps.weight"), ()),
    (LAYER + r".*(?:e_score_correction_bias|expert_bias)", _named("blk.{0}.exp_probs_b.bias"), ()),
    (LAYER + r"block_sparse_moe\.router\.weight", _named("blk.{0}.ffn_gate_inp.weight"), ()),
    (LAYER + r"shared_mlp\.input_linear\.weight", _shared, ()),
    (LAYER + r"shared_mlp\.output_linear\.weight", _named("blk.{0}.ffn_down_shexp.weight"), ()),
    (LAYER + r"linear_attn\.(A_log|dt_bias|(?:in_proj_\w+|conv1d|out_proj)\.weight)", _values, ()),
    (r".*query_key_value\.(?:weight|bias)", _three, ()),
)


def parts_of(name: str, config: Any, header: Header, usual: str | None) -> list[Part]:
    """The tensors that fill one of transformers' weights; `usual`: by gguf's table, None: it has none.

    Raises:
        UnsupportedModel: the family's files are not known to hold it.
    """
    for pattern, filled, families in RULES:
        if (not families or header.family in families) and (found := re.fullmatch(pattern, name)):
            return filled(found, config, usual or "")
    if usual is None:
        raise header.unknown(f"the weight {name}")
    return [Part(usual)]


def unused(header: Header, config: PreTrainedConfig) -> set[str]:
    """The tensors that fill no weight: layers that guess further tokens, and rotary frequencies."""
    layers = {name: int(name.split(".")[1]) for name in header.tensors if name.startswith("blk.")}
    guessing = header.get("nextn_predict_layers", 0)
    return {FREQUENCIES} | {name for name, layer in layers.items() if guessing and layer >= config.num_hidden_layers}
