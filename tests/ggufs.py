"""Tiny models as GGUF files, as llama.cpp's converter lays them out, and the same weights as a folder. Needs gguf."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.core.models.tiny_families import random_model, tiny_family
from tests.thinkers import MERGES, ROLES, tokenizer

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
PERMUTED = ("llama", "arcee", "granite", "granitemoe", "olmo", "smollm3")  # converters that derive from Llama's
SHIFTED = ("qwen35", "qwen35moe", "gemma", "gemma2", "gemma3", "nemotron")  # norms that multiply by 1 + weight
F32 = gguf.GGMLQuantizationType.F32


def write_pair(folder: Path, family: str, kind: str) -> tuple[Path, Path]:
    """A file, and a folder with exactly the weights that it holds: rounded as the file's type rounds them."""
    fields: dict[str, Any] = {"vocab_size": 288, "num_key_value_heads": 2, "bos_token_id": None, "pad_token_id": None}
    fields |= {"rope_parameters": {**PLAIN, "rope_theta": 500_000.0}, "rms_norm_eps": 1e-5}
    fields |= NO_WINDOW if family == "qwen2" else {"tie_word_embeddings": False}
    model = random_model(tiny_family(family, **fields))
    words = tokenizer(TEMPLATE)
    model.config.eos_token_id = model.generation_config.eos_token_id = words.eos_token_id
    file, held = folder / f"tiny-{family}-{kind}.gguf", gguf.GGMLQuantizationType[kind]
    for value in model.state_dict().values():
        if value.ndim == 2:
            value.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(value.numpy(), held), held).copy()))
    write(file, family, model, held)
    whole = folder / f"{family}-{kind}"
    model.save_pretrained(whole)
    words.save_pretrained(whole)
    return file, whole


Held = gguf.GGMLQuantizationType | Callable[[str, Tensor], tuple["np.ndarray[Any, Any]", gguf.GGMLQuantizationType]]


def write(
    file: Path,
    family: str,
    model: Any,
    held: Held = F32,
    *,
    words: int | None = None,
    more: Mapping[str, Tensor] = {},
    **fields: Any,
) -> None:
    """A file with a model's weights.

    Args:
        held: the type of matrices, or what makes the numbers and the type of each tensor.
        words: the number of tokens; None: as many as there are weights for.
        more: tensors that transformers' model has not.
        fields: replace the header's, with `__` for a dot; None leaves one out.
    """
    writer = gguf.GGUFWriter(file, family)
    write_header(writer, family, model.config)
    write_words(writer, words or model.config.vocab_size)
    for name, value in fields.items():
        said = f"{family}.{name.replace('__', '.')}"
        writer.kv_data[0].pop(said, None)
        if value is not None:
            kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
            kinds[type(value)](said, value)
    for name, tensor in [*tensors(family, model.config, model), *more.items()]:
        if callable(held):
            rows, kind = held(name, tensor)
        else:
            kind = held if tensor.ndim > 1 else F32
            rows = gguf.quantize(np.ascontiguousarray(tensor.numpy()), kind)
        writer.add_tensor(name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(family: str, config: Any, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What the converter writes of transformers' weights."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[family], config.num_hidden_layers)
    state = model.state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name, value in state.items():
        for renamed, part in in_parts(family, config, name, value):
            if family in SHIFTED and renamed.endswith("norm.weight") and "linear_attn" not in renamed:
                part = part + 1
            if family in PERMUTED and re.search(r"[qk]_proj\.(weight|bias)$", renamed):
                heads = config.num_attention_heads if "q_proj" in renamed else config.num_key_value_heads
                halves = part.reshape(heads, 2, -1, *part.shape[1:])  # of a head, which llama.cpp has as neighbours
                part = halves.transpose(1, 2).reshape(part.shape)
            found = renamed if renamed.startswith("blk.") else names.get_name(renamed, (".weight", ".bias"))
            assert found, f"gguf has no name for {renamed}"
            yield found, part.squeeze()
    rope = (config.rope_parameters or {}).get("full_attention") or config.rope_parameters or {}
    if rope.get("rope_type") == "llama3":
        plain = rope["rope_theta"] ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
        yield "rope_freqs.weight", plain / ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]


RENAMED = {  # ends of transformers' names, and the tensors that hold them
    "e_score_correction_bias": "exp_probs_b.bias",
    "expert_bias": "exp_probs_b.bias",
    "experts.down_proj": "ffn_down_exps.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
}
MERGED = {"experts.gate_up_proj": ("exps", 1), "shared_mlp.input_linear.weight": ("shexp", 0)}  # gates, and the rest


def in_parts(family: str, config: Any, name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A weight as the original models name and split it, before transformers merged it; or as the converter does."""
    block = f"blk.{next(iter(re.findall(r'layers.([0-9]+)', name)), '')}"
    renamed = next((said for end, said in RENAMED.items() if name.endswith(end)), None)
    merged = next((said for end, said in MERGED.items() if name.endswith(end)), None)
    if family == "gpt-oss" and "mlp.experts." in name:  # gates and the rest are neighbours
        leaf, value = ("bias", value) if name.endswith("_bias") else ("weight", value.mT)
        parts = {"gate": value[:, ::2], "up": value[:, 1::2]} if "gate_up" in name else {"down": value}
        yield from ((f"{block}.ffn_{part}_exps.{leaf}", rows) for part, rows in parts.items())
    elif renamed:
        yield f"{block}.{renamed}", value
    elif merged:
        for part, rows in zip(("gate", "up"), value.chunk(2, merged[1]), strict=True):
            yield f"{block}.ffn_{part}_{merged[0]}.weight", rows
    elif ".linear_attn." in name:
        yield from _linear(config, name.replace("dt_bias", "dt_proj.bias"), value)
    elif family == "gptneox" and "query_key_value" in name:
        rows = value.reshape(config.num_attention_heads, 3, -1, *value.shape[1:])
        yield name, torch.cat([rows[:, part].flatten(0, 1) for part in range(3)])
    else:
        yield name, value


def _linear(config: Any, name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Qwen3.5's value heads, which llama.cpp has tiled over the key heads."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads

    def tiled(rows: Tensor) -> Tensor:
        size = rows.shape[0] // values
        order = [value for first in range(values // keys) for value in range(first, values, values // keys)]
        return torch.cat([rows[size * head : size * (head + 1)] for head in order])

    passed = 2 * keys * config.linear_key_head_dim
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        value = torch.cat([value[:passed], tiled(value[passed:])])
    elif name.endswith("out_proj.weight"):
        value = tiled(value.t()).t()
    elif not name.endswith("linear_attn.norm.weight"):
        value = tiled(value)
    yield name, -torch.exp(value) if name.endswith("A_log") else value


def write_header(writer: "gguf.GGUFWriter", family: str, config: Any) -> None:
    """Sizes, as the converter's base and the family's own part write them."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if family != "qwen35moe":
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    writer.add_head_count_kv(
        kv_heads
        if not family.startswith("lfm2")
        else [0 if kind == "conv" else kv_heads for kind in config.layer_types]
    )
    for name in ("rms_norm_eps", "norm_eps"):
        if family != "nemotron" and (eps := getattr(config, name, None)) is not None:
            writer.add_layer_norm_rms_eps(eps)
    for name in ("layer_norm_eps", "norm_epsilon", *(["norm_eps"] if family == "nemotron" else [])):
        if (eps := getattr(config, name, None)) is not None:
            writer.add_layer_norm_eps(eps)
    stated = config.rope_parameters
    rope, local = stated.get("full_attention", stated), stated.get("sliding_attention")
    writer.add_rope_freq_base(rope["rope_theta"])
    if local and family == "gemma3":
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name, add in {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }.items():
            if rope.get(name) is not None:
                add(rope[name])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if family not in ("granite", "granitemoe", "qwen2", "phi2", "phi3", "stablelm", "gptneox"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if (part := rope.get("partial_rotary_factor")) is not None or family in ("llama", "stablelm"):
        writer.add_rope_dimension_count(int(head_dim * (part or 1)))
    _own(writer, family, config)


OWN = {  # what only some families' parts of the converter write: the writer's methods, and the fields that they get
    "expert_count": ("num_local_experts", "num_experts", "moe_num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_k"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "interleave_moe_layer_step": ("moe_layer_interval",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention_scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "clamp_kqv": ("clip_qkv",),
    "shortconv_l_cache": ("conv_L_cache",),
    "parallel_residual": ("use_parallel_residual",),
    "ssm_conv_kernel": ("linear_conv_kernel_dim",),
    "ssm_state_size": ("linear_key_head_dim",),
    "ssm_group_count": ("linear_num_key_heads",),
    "ssm_time_step_rank": ("linear_num_value_heads",),
}


def _own(writer: "gguf.GGUFWriter", family: str, config: Any) -> None:
    for said, names in OWN.items():
        for name in names:
            if (value := getattr(config, name, None)) is not None:
                getattr(writer, f"add_{said}")(value)
    if family in ("qwen35", "qwen35moe"):
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)
        writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    if family == "glm4moe":
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    window = getattr(config, "sliding_window", None)
    if family in ("cohere2", "gemma2", "gemma3", "gpt-oss", "olmo2", "exaone4") and window:
        writer.add_sliding_window(window)
    if family == "phi3":
        writer.add_sliding_window(window or 0)
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if family in ("olmo2", "exaone4") and window:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if family == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)


def write_words(writer: "gguf.GGUFWriter", size: int) -> None:
    """The tokenizer, of as many tokens as the weights have rows."""
    words = tokenizer(TEMPLATE)
    known = {number: word for word, number in words.get_vocab().items()}
    tokens = [known.get(number, f"[PAD{number}]") for number in range(size)]
    kinds = [
        gguf.TokenType.CONTROL if token in ROLES else gguf.TokenType.UNUSED if token.startswith("[PAD") else 1
        for token in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(words.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
LLAMA3 = {**PLAIN, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
YARN = {**PLAIN, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
NO_WINDOW: dict[str, Any] = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}
SLIDING, FULL = "sliding_attention", "full_attention"
SIX, FOUR, FULLS = [*[SLIDING] * 5, FULL], [*[SLIDING] * 3, FULL], [FULL] * 4
GEMMA3: dict[str, Any] = {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": SIX}
GEMMA3["rope_parameters"] = {"full_attention": PLAIN, "sliding_attention": {**PLAIN, "rope_theta": 500.0}}
LFM2 = {"num_hidden_layers": 3, "num_dense_layers": 1, "layer_types": ["conv", FULL, "conv"]}
QWEN3_5: dict[str, Any] = {"rope_parameters": {**PLAIN, "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
QWEN3_5["rope_parameters"] |= {"partial_rotary_factor": 0.5}
SCALES = {"attention_multiplier": 0.3, "embedding_multiplier": 1.5, "residual_multiplier": 0.7, "logits_scaling": 0.5}
SCALES |= {"attention_bias": False}
# By a name: the file's family, transformers', and fields that replace those of `tiny_family`
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "arcee": ("arcee", "arcee", {"attention_bias": True, "mlp_bias": True}),
    "cohere": ("command-r", "cohere", {"logit_scale": 0.8}),
    "cohere with norms": ("command-r", "cohere", {"logit_scale": 0.8, "use_qk_norm": True}),
    "cohere2": ("cohere2", "cohere2", {"logit_scale": 0.8, "num_hidden_layers": 4, "layer_types": FOUR}),
    "ernie": ("ernie4_5", "ernie4_5", {"use_bias": True}),
    "ernie, experts": ("ernie4_5-moe", "ernie4_5_moe", {"moe_intermediate_size": 48, "moe_num_shared_experts": 1}),
    "exaone4": ("exaone4", "exaone4", {"num_hidden_layers": 4, "layer_types": FOUR}),
    "exaone4 without windows": ("exaone4", "exaone4", {"sliding_window": None, "layer_types": [FULL] * 2}),
    "gemma": ("gemma", "gemma", {}),
    "gemma2": ("gemma2", "gemma2", {"query_pre_attn_scalar": 16, "final_logit_softcapping": 20.0}),
    "gemma3": ("gemma3", "gemma3_text", GEMMA3),
    "glm4": ("glm4", "glm4", {"tie_word_embeddings": False}),
    "glm4moe": ("glm4moe", "glm4_moe", {"routed_scaling_factor": 1.5, "use_qk_norm": True, "attention_bias": True}),
    "gpt-oss": ("gpt-oss", "gpt_oss", {"rope_parameters": {**YARN, "beta_fast": 16.0, "truncate": False}}),
    "gptneox": ("gptneox", "gpt_neox", {"tie_word_embeddings": False}),
    "gptneox, one after the other": ("gptneox", "gpt_neox", {"use_parallel_residual": False}),
    "granite": ("granite", "granite", SCALES),
    "granitemoe": ("granitemoe", "granitemoe", SCALES),
    "granitemoeshared": ("granitemoe", "granitemoeshared", {**SCALES, "shared_intermediate_size": 32}),
    "hunyuan": ("hunyuan-dense", "hunyuan_v1_dense", {}),
    "lfm2": ("lfm2", "lfm2", {"block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("lfm2moe", "lfm2_moe", LFM2),
    "llama": ("llama", "llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "llama, positions of 3.1": ("llama", "llama", {"rope_parameters": LLAMA3}),
    "llama, linear positions": ("llama", "llama", {"rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 4.0}}),
    "mistral": ("llama", "mistral", {"sliding_window": None, "head_dim": 32}),
    "mixtral": ("llama", "mixtral", {"sliding_window": None}),
    "nemotron": ("nemotron", "nemotron", {}),
    "olmo": ("olmo", "olmo", {"clip_qkv": 1.0}),
    "olmo2": ("olmo2", "olmo2", {}),
    "olmo3": ("olmo2", "olmo3", {}),
    "olmo3, YaRN": ("olmo2", "olmo3", {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}}),
    "olmoe": ("olmoe", "olmoe", {"norm_topk_prob": False}),
    "phi": ("phi2", "phi", {"tie_word_embeddings": False}),
    "phi3": ("phi3", "phi3", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
    "phi3 without a window": ("phi3", "phi3", {"sliding_window": None}),
    "qwen2, YaRN": ("qwen2", "qwen2", {**NO_WINDOW, "rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "qwen2moe": ("qwen2moe", "qwen2_moe", {**NO_WINDOW, "shared_expert_intermediate_size": 32}),
    "qwen3": ("qwen3", "qwen3", NO_WINDOW),
    "qwen3moe": ("qwen3moe", "qwen3_moe", {**NO_WINDOW, "norm_topk_prob": True}),
    "qwen35": ("qwen35", "qwen3_5_text", QWEN3_5),
    "qwen35moe": ("qwen35moe", "qwen3_5_moe_text", {**QWEN3_5, "shared_expert_intermediate_size": 32}),
    "seed_oss": ("seed_oss", "seed_oss", {"attention_out_bias": True}),
    "smollm3": ("smollm3", "smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "layer_types": FULLS}),
    "starcoder2": ("starcoder2", "starcoder2", {"sliding_window": 4096, "use_bias": True}),
    "stablelm": ("stablelm", "stablelm", {"use_qkv_bias": True}),
    "stablelm, both at once": ("stablelm", "stablelm", {"use_parallel_residual": True}),
}


def case(name: str) -> tuple[str, Any]:
    """The family of a case's files, and a random model."""
    family, kind, fields = CASES[name]
    config: Any = tiny_family(kind, bos_token_id=None, pad_token_id=None, **fields)
    return family, random_model(config)
