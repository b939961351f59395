"""What the GGUF files of each family call their sizes and weights, and how llama.cpp's converter laid those out.

A weight of transformers' model is filled from one tensor or several: gguf's own table of names says which, except for
the weights that `Family.parts` names. Each tensor fills a view of the weight, which undoes the converter's new order.
A family stands in FAMILIES once a test compares logits with those of the same weights in a folder.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedConfig

SIZES = {  # of every family: the header's names, without the family's, and those of configurations
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
FREQUENCIES = "rope_freqs.weight"  # what rotary frequencies are divided by, where positions are scaled as in Llama 3.1
CONTROL = 3  # the type of tokens that are no text
ENDS_OF_TEXT = frozenset(
    word.encode()
    for word in (
        *("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "[|endofturn|]"),
        *("<|END_OF_TURN_TOKEN|>", "<|return|>", "<|call|>", "<end_of_utterance>"),
    )
)
LENGTHS = tuple(1 << power for power in range(5, 21))  # of texts before positions were scaled


class Unknown(Exception):
    """A file has something that its family is not known to have; the message names it."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header's fields, and the shapes of its tensors."""

    family: str
    said: Mapping[str, Any]
    ends: tuple[int, ...]  # the tokens that end a text
    shapes: Mapping[str, tuple[int, ...]]

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the family's; of a list with the same number for every layer, the number."""
        value = self.said.get(f"{self.family}.{name}", default)
        return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value

    def has(self, tensor: str) -> bool:
        """Whether there is a weight of this name, in some layer."""
        return any(re.fullmatch(rf"(blk\.\d+\.)?{re.escape(tensor)}", name) for name in self.shapes)


class Part(NamedTuple):
    """The tensor that fills a weight, or a view of it, and how its numbers are changed back."""

    tensor: str
    view: Callable[[Tensor], Tensor] | None = None
    number: Callable[[Tensor], Tensor] | None = None
    whole: Callable[[Tensor], Tensor] | None = (
        None  # of the tensor in the shape of the view, where no view puts it right
    )


# For weights whose name matches: the match, the configuration and the tensor in gguf's table, to what fills them
Rule = tuple[str, Callable[[re.Match[str], Any, str], list[Part]]]
LAYER = r"model\.layers\.(\d+)\."


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family's files."""

    kind: str  # transformers' name
    fields: Mapping[str, str] = field(default_factory=dict)  # besides SIZES
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what no header states
    flags: Mapping[str, str] = field(default_factory=dict)  # fields that say whether there are such tensors
    more: Callable[[Header, dict[str, Any]], dict[str, Any]] | None = None  # by the fields that were found
    partial: bool = False  # whether positions may turn a part of each head
    rules: tuple[Rule, ...] = ()  # the first that matches counts
    variants: Mapping[str, "Family"] = field(default_factory=dict)  # by a field that only their headers have


def _halves(found: re.Match[str], config: Any, _usual: str) -> list[Part]:
    """Rows of queries and keys, which llama.cpp rotates as neighbours and transformers as halves of a head."""
    heads = config.num_attention_heads if found[2] == "q" else config.num_key_value_heads
    return [
        Part(
            f"blk.{found[1]}.attn_{found[2]}.{found[3]}",
            lambda weight: weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).transpose(1, 2),
        )
    ]


def _gate_up(names: str, dim: int) -> Callable[[re.Match[str], Any, str], list[Part]]:
    """Rows of gates, and those they multiply, which transformers has in one weight."""

    def parts(found: re.Match[str], _config: Any, _usual: str) -> list[Part]:
        return [
            Part(names.format(found[1], name), lambda weight, at=at: weight.chunk(2, dim)[at])  # type: ignore[misc]
            for at, name in enumerate(("gate", "up"))
        ]

    return parts


def _neighbours(found: re.Match[str], _config: Any, _usual: str) -> list[Part]:
    """Of gpt-oss, which has gates and what they multiply as neighbours, and weights input by input."""
    kind = "bias" if found[2] else "weight"

    def view(weight: Tensor, at: int) -> Tensor:
        return weight[..., at::2] if found[2] else weight[..., at::2].transpose(1, 2)

    return [
        Part(f"blk.{found[1]}.ffn_{name}_exps.{kind}", lambda weight, at=at: view(weight, at))  # type: ignore[misc]
        for at, name in enumerate(("gate", "up"))
    ]


def _turned(found: re.Match[str], _config: Any, _usual: str) -> list[Part]:
    return [Part(f"blk.{found[1]}.ffn_down_exps.weight", lambda weight: weight.transpose(1, 2))]


def _named(name: str) -> Callable[[re.Match[str], Any, str], list[Part]]:
    return lambda found, _config, _usual: [Part(name.format(*found.groups()))]


def _shifted(_found: re.Match[str], _config: Any, usual: str) -> list[Part]:
    """Norms that transformers multiplies by 1 + weight."""
    return [Part(usual, number=lambda weight: weight - 1)]


def _three(found: re.Match[str], config: Any, usual: str) -> list[Part]:
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
    number = (lambda stored: torch.log(-stored)) if leaf == "A_log" else None
    return [Part(tensor, None, number, (lambda rows: grouped(rows.t()).t()) if leaf == "out_proj.weight" else grouped)]


def _qwen3_5(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    values = header.get("ssm.time_step_rank")
    rope = {"mrope_section": [size for size in header.said[f"{header.family}.rope.dimension_sections"] if size]}
    return {
        "num_hidden_layers": found["num_hidden_layers"] - header.get("nextn_predict_layers", 0),
        "linear_num_value_heads": values,
        "linear_value_head_dim": header.get("ssm.inner_size") // values,
        "rope_parameters": found["rope_parameters"] | rope | {"mrope_interleaved": True},
    }


def _attention_scale(large: int) -> Callable[[Header, dict[str, Any]], dict[str, Any]]:
    """Gemma's scale of scores, which no header states: its largest model, of so many layers, has another one."""

    def more(header: Header, found: dict[str, Any]) -> dict[str, Any]:
        by_heads = found["hidden_size"] // found["num_attention_heads"]
        scale = by_heads if found["num_hidden_layers"] == large else found["head_dim"]
        return {"query_pre_attn_scalar": scale} | _layers(header)

    return more


def _layers(header: Header) -> dict[str, Any]:
    """Which layers have a window, where the header says it of each."""
    stated = header.said.get(f"{header.family}.attention.sliding_window_pattern")
    if not isinstance(stated, tuple):
        return {}
    return {"layer_types": [SLIDING if windowed else FULL for windowed in stated]}


def _gemma3(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    more = _attention_scale(62)(header, found)
    if header.get("attention.sliding_window") is None:
        more["layer_types"] = [FULL] * found["num_hidden_layers"]
    sliding = {"rope_type": "default", "rope_theta": header.get("rope.freq_base_swa", 10_000.0)}
    return more | {"rope_parameters": {"full_attention": found["rope_parameters"], "sliding_attention": sliding}}


def _olmo3(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": found["rope_parameters"]["rope_theta"]}
    ropes = {"full_attention": found["rope_parameters"], "sliding_attention": plain}
    return _layers(header) | {"rope_parameters": ropes}


def _exaone4(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    if header.get("attention.sliding_window"):
        return _layers(header)
    return {"sliding_window": None, "layer_types": [FULL] * found["num_hidden_layers"]}


def _phi3(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "original_max_position_embeddings": header.get(
            "rope.scaling.original_context_length", found["max_position_embeddings"]
        ),
        "sliding_window": header.get("attention.sliding_window") or None,
    }


def _lfm2(header: Header, found: dict[str, Any]) -> dict[str, Any]:
    heads = header.said[f"{header.family}.attention.head_count_kv"]
    return {"num_key_value_heads": max(heads), "layer_types": [FULL if count else "conv" for count in heads]}


SLIDING, FULL = "sliding_attention", "full_attention"
HALVES: Rule = (LAYER + r"self_attn\.([qk])_proj\.(weight|bias)", _halves)
EXPERTS: tuple[Rule, ...] = (
    (LAYER + r".*experts\.gate_up_proj", _gate_up("blk.{0}.ffn_{1}_exps.weight", 1)),
    (LAYER + r".*experts\.down_proj", _named("blk.{0}.ffn_down_exps.weight")),
)
SHIFTED: Rule = (r".*norm\.weight", _shifted)
ROUTED: tuple[Rule, ...] = (
    (LAYER + r".*(?:e_score_correction_bias|expert_bias)", _named("blk.{0}.exp_probs_b.bias")),
    *EXPERTS,
)
LAYER_NORM = "attention.layer_norm_epsilon"
WINDOW = {"attention.sliding_window": "sliding_window"}
MIXTURE = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
MIXTURE |= {"expert_feed_forward_length": "moe_intermediate_size"}
LOCAL_MIXTURE = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
SCALES = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier"}
SCALES |= {"residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}
BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}
SHARED_MIXTURE = Family(
    kind="granitemoeshared",
    fields={**LOCAL_MIXTURE, **SCALES, "expert_shared_feed_forward_length": "shared_intermediate_size"},
    flags=BIASES,
    rules=(
        HALVES,
        *EXPERTS,
        (LAYER + r"block_sparse_moe\.router\.weight", _named("blk.{0}.ffn_gate_inp.weight")),
        (LAYER + r"shared_mlp\.input_linear\.weight", _gate_up("blk.{0}.ffn_{1}_shexp.weight", 0)),
        (LAYER + r"shared_mlp\.output_linear\.weight", _named("blk.{0}.ffn_down_shexp.weight")),
    ),
)
LINEAR = {
    "full_attention_interval": "full_attention_interval",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
}
LINEAR_RULES: tuple[Rule, ...] = (
    (LAYER + r"linear_attn\.norm\.weight", lambda _found, _config, usual: [Part(usual)]),
    (LAYER + r"linear_attn\.(A_log|dt_bias|(?:in_proj_\w+|conv1d|out_proj)\.weight)", _values),
    SHIFTED,
)
FAMILIES: Mapping[str, Family] = {
    "arcee": Family(kind="arcee", flags=BIASES, rules=(HALVES,)),
    "cohere2": Family(
        kind="cohere2",
        fields={LAYER_NORM: "layer_norm_eps", "logit_scale": "logit_scale", **WINDOW},
        more=lambda header, _: _layers(header),
    ),
    "command-r": Family(
        kind="cohere",
        fields={LAYER_NORM: "layer_norm_eps", "logit_scale": "logit_scale"},
        flags={"use_qk_norm": "attn_q_norm.weight"},
    ),
    "ernie4_5": Family(kind="ernie4_5", flags={"use_bias": "attn_q.bias"}),
    "ernie4_5-moe": Family(
        kind="ernie4_5_moe",
        fields={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "moe_num_shared_experts",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
        flags={"use_bias": "attn_q.bias"},
        rules=ROUTED,
    ),
    "exaone4": Family(kind="exaone4", fields=WINDOW, more=_exaone4),
    "gemma": Family(kind="gemma", rules=(SHIFTED,)),
    "gemma2": Family(
        kind="gemma2",
        fields={
            **WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        more=_attention_scale(46),
        rules=(SHIFTED,),
    ),
    "gemma3": Family(
        kind="gemma3_text",
        fields={**WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        more=_gemma3,
        rules=(SHIFTED,),
    ),
    "glm4": Family(kind="glm4", partial=True),
    "glm4moe": Family(
        kind="glm4_moe",
        fields={
            **MIXTURE,
            "expert_count": "n_routed_experts",
            "expert_shared_count": "n_shared_experts",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            "leading_dense_block_count": "first_k_dense_replace",
        },
        flags={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        more=lambda header, found: {
            "num_hidden_layers": found["num_hidden_layers"] - header.get("nextn_predict_layers", 0)
        },
        partial=True,
        rules=ROUTED,
    ),
    "gpt-oss": Family(
        kind="gpt_oss",
        fields={**LOCAL_MIXTURE, **WINDOW, "expert_feed_forward_length": "intermediate_size"},
        rules=(
            (LAYER + r"mlp\.experts\.gate_up_proj(_bias)?", _neighbours),
            (LAYER + r"mlp\.experts\.down_proj", _turned),
            (LAYER + r"mlp\.experts\.down_proj_bias", _named("blk.{0}.ffn_down_exps.bias")),
        ),
        more=lambda _, found: {"rope_parameters": found["rope_parameters"] | {"truncate": False}},
    ),
    "gptneox": Family(
        kind="gpt_neox",
        fields={LAYER_NORM: "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
        flags={"attention_bias": "attn_qkv.bias"},
        partial=True,
        rules=((r".*query_key_value\.(weight|bias)", _three),),
    ),
    "granite": Family(kind="granite", fields=SCALES, flags=BIASES, rules=(HALVES,)),
    "granitemoe": Family(
        kind="granitemoe",
        fields={**LOCAL_MIXTURE, **SCALES},
        flags=BIASES,
        rules=SHARED_MIXTURE.rules,
        variants={"expert_shared_feed_forward_length": SHARED_MIXTURE},
    ),
    "hunyuan-dense": Family(kind="hunyuan_v1_dense", flags={"attention_bias": "attn_q.bias"}),
    "jais2": Family(kind="jais2", fields={LAYER_NORM: "layer_norm_eps"}, flags=BIASES),
    "lfm2": Family(
        kind="lfm2",
        fields={"shortconv.l_cache": "conv_L_cache", "attention.layer_norm_rms_epsilon": "norm_eps"},
        fixed={"block_auto_adjust_ff_dim": False},
        more=_lfm2,
    ),
    "lfm2moe": Family(
        kind="lfm2_moe",
        fields={
            **MIXTURE,
            "shortconv.l_cache": "conv_L_cache",
            "attention.layer_norm_rms_epsilon": "norm_eps",
            "leading_dense_block_count": "num_dense_layers",
        },
        flags={"use_expert_bias": "exp_probs_b.bias"},
        more=_lfm2,
        rules=ROUTED,
    ),
    "llama": Family(
        kind="llama",
        flags=BIASES,
        rules=(HALVES,),
        variants={
            "expert_count": Family(
                kind="mixtral", fields=LOCAL_MIXTURE, fixed={"sliding_window": None}, rules=(HALVES, *EXPERTS)
            )
        },
    ),
    "nemotron": Family(kind="nemotron", fields={LAYER_NORM: "norm_eps"}, flags=BIASES, partial=True, rules=(SHIFTED,)),
    "olmo": Family(kind="olmo", fields={"attention.clamp_kqv": "clip_qkv"}, rules=(HALVES,)),
    "olmo2": Family(
        kind="olmo2",
        variants={"attention.sliding_window": Family(kind="olmo3", fields=WINDOW, more=_olmo3)},
    ),
    "olmoe": Family(kind="olmoe", fields=MIXTURE, fixed={"norm_topk_prob": False}, rules=EXPERTS),
    "phi2": Family(kind="phi", fields={LAYER_NORM: "layer_norm_eps"}, partial=True),
    "phi3": Family(kind="phi3", more=_phi3, partial=True),
    "qwen2": Family(kind="qwen2"),
    "qwen2moe": Family(
        kind="qwen2_moe",
        fields={**MIXTURE, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        fixed={"norm_topk_prob": False},
        rules=EXPERTS,
    ),
    "qwen3": Family(kind="qwen3", flags={"attention_bias": "attn_q.bias"}),
    "qwen3moe": Family(kind="qwen3_moe", fields=MIXTURE, fixed={"norm_topk_prob": True}, rules=EXPERTS),
    "qwen35": Family(kind="qwen3_5_text", fields=LINEAR, more=_qwen3_5, partial=True, rules=LINEAR_RULES),
    "qwen35moe": Family(
        kind="qwen3_5_moe_text",
        fields={
            **LINEAR,
            **MIXTURE,
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        more=_qwen3_5,
        partial=True,
        rules=(*LINEAR_RULES, *EXPERTS),
    ),
    "seed_oss": Family(kind="seed_oss", flags={**BIASES, "attention_out_bias": "attn_output.bias"}),
    "smollm3": Family(kind="smollm3", flags=BIASES, rules=(HALVES,)),
    "starcoder2": Family(  # no header states the window, which all of its models have
        kind="starcoder2",
        fields={LAYER_NORM: "norm_epsilon"},
        fixed={"sliding_window": 4096},
        flags={"use_bias": "attn_q.bias"},
    ),
    "stablelm": Family(
        kind="stablelm",
        fields={LAYER_NORM: "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
        flags={"use_qkv_bias": "attn_q.bias"},
        partial=True,
    ),
}


def family_of(header: Header) -> Family:
    """The family that a header is of, or the variant of it."""
    family = FAMILIES[header.family]
    return next((other for said, other in family.variants.items() if header.get(said)), family)


def configuration(header: Header, frequencies: Tensor | None) -> PreTrainedConfig:
    """The configuration that a header stands for; `frequencies`: what the file divides rotary frequencies by.

    Raises:
        ValueError, KeyError: it states no model of its family.
        Unknown: it states something that is not known of its family.
    """
    family = family_of(header)
    found: dict[str, Any] = {name: header.get(said) for said, name in {**SIZES, **family.fields}.items()}
    found = {name: value for name, value in found.items() if value is not None}
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    found |= {name: header.has(tensor) for name, tensor in family.flags.items()}
    found["vocab_size"] = header.shapes["token_embd.weight"][0]
    found["tie_word_embeddings"] = "output.weight" not in header.shapes
    found["bos_token_id"], found["pad_token_id"] = header.said.get("tokenizer.ggml.bos_token_id"), None
    found["eos_token_id"] = list(header.ends) or None
    head_dim = found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
    found["rope_parameters"] = _rope(header, head_dim, frequencies, partial=family.partial)
    found |= dict(family.fixed)
    return CONFIG_MAPPING[family.kind](**found | (family.more(header, found) if family.more else {}))


def _rope(header: Header, head_dim: int, frequencies: Tensor | None, *, partial: bool) -> dict[str, Any]:
    """Rotary positions, as transformers states them."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": header.get("rope.freq_base", 10_000.0)}
    turned = header.get("rope.dimension_count", head_dim)
    if partial:
        found["partial_rotary_factor"] = turned / head_dim
    elif turned != head_dim:
        raise Unknown("positions in a part of each head")
    kind = header.get("rope.scaling.type", "linear")
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear", 1.0)) or 1.0  # the latter: of 2023
    if kind in ("none", "linear"):
        if kind == "linear" and factor != 1:
            found |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        found |= _yarn(header, factor)
    else:
        raise Unknown(f"positions scaled as {kind!r}")
    if frequencies is not None:
        if found["rope_type"] != "default":
            raise Unknown(f"rotary frequencies of its own, and positions scaled as {kind!r}")
        found |= _llama3(found["rope_theta"], turned, frequencies)
    return found


def _yarn(header: Header, factor: float) -> dict[str, Any]:
    said = {name: header.get(f"rope.scaling.{name}") for name in ("yarn_ext_factor", "yarn_log_multiplier")}
    if said["yarn_ext_factor"] not in (None, 1) or said["yarn_log_multiplier"]:
        raise Unknown("positions scaled as a variant of YaRN")
    length = header.get("rope.scaling.original_context_length")
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    attention = header.get("rope.scaling.yarn_attn_factor")
    if attention is None and (usual := header.get("rope.scaling.attn_factor", 1.0)) != 1:
        attention = usual * (1 + 0.1 * math.log(factor))
    others = (
        ("attention_factor", attention),
        *((name, header.get(f"rope.scaling.yarn_{name}")) for name in ("beta_fast", "beta_slow")),
    )
    return found | {name: value for name, value in others if value is not None}


def _llama3(theta: float, turned: int, frequencies: Tensor) -> dict[str, Any]:
    """What Llama 3.1 and later state, of which a file has the result alone: a divisor for each frequency."""
    factor = float(frequencies.max())
    waves = 2 * math.pi * theta ** (torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    for length in LENGTHS:
        share = ((length / waves - 1) / 3).clamp(0, 1)  # low_freq_factor 1, high_freq_factor 4
        if waves.shape == frequencies.shape and torch.allclose(
            ((1 - share) / factor + share).reciprocal(), frequencies.double(), rtol=1e-4
        ):
            return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": length} | {
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
    raise Unknown("rotary frequencies of its own")


def parts_of(name: str, config: Any, header: Header, usual: str | None) -> list[Part]:
    """The tensors that fill one of transformers' weights; `usual`: by gguf's table, None: it has none.

    Raises:
        Unknown: the family's files are not known to hold it.
    """
    for pattern, parts in family_of(header).rules:
        if found := re.fullmatch(pattern, name):
            return parts(found, config, usual or "")
    if usual is None:
        raise Unknown(f"the weight {name}")
    return [Part(usual)]


def unused(header: Header, config: PreTrainedConfig) -> set[str]:
    """The tensors that fill no weight: layers that guess further tokens, and rotary frequencies."""
    layers = {name: int(name.split(".")[1]) for name in header.shapes if name.startswith("blk.")}
    guessing = header.get("nextn_predict_layers", 0)
    return {FREQUENCIES} | {name for name, layer in layers.items() if guessing and layer >= config.num_hidden_layers}


def ends_of_text(said: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text: those that the header names, and known ones of the vocabulary."""
    named = (said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    ends: set[int] = {end for end in named if end is not None}
    words, types = said["tokenizer.ggml.tokens"], said.get("tokenizer.ggml.token_type", ())
    known = {words[number]: number for number, kind in enumerate(types) if kind == CONTROL}
    found = {known[end] for end in ENDS_OF_TEXT & set(known)}
    return tuple(sorted(ends | found))
