"""The census of families, a part here and all in the slow suite; every row of the catalogue, and further switches.

Weights are random, biases and norms included (fresh ones are 0 and 1, and would hide a part that is left out).
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from core.models.families import FAMILIES, FIXED_ROPE
from core.models.hf_attention import ATTENTION_NAME
from core.models.hub.catalog import entries
from core.models.loader import dims_of
from tests.core.models.census import compare, judged
from tests.core.models.tiny_families import families, tiny_family, twin_models
from tests.core.toys import VOCAB

REFUSED = ["bert", "bloom", "deepseek_v3", "jamba", "mamba", "nemotron_h"]
# Others are rows of the catalogue, or have switches below
SERVED = ["cohere2", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "llama4_text", "ministral"]
SERVED += ["mistral", "olmo3", "phi3", "falcon_h1", "gemma", "glm4", "lfm2", "olmo2", "qwen3_next", "starcoder2"]
PART = [*REFUSED, *SERVED]


CENSUS = [pytest.param(family, marks=() if family in PART else pytest.mark.slow) for family in families()]


@pytest.mark.parametrize("family", CENSUS)
def test_a_family_is_the_same_as_in_transformers_or_refused(family: str) -> None:
    found = judged(family)
    assert found.verdict != "WRONG" and found.about, found.about
    assert family not in PART or (found.verdict == "same") == (family in SERVED)


def test_every_family_that_loads_is_a_causal_family_of_transformers() -> None:
    """So the census judges it; families that this transformers does not have yet are left out."""
    assert set(FAMILIES) & set(CONFIG_MAPPING) <= set(families())
    assert "does not have" not in judged("mimo_v2_flash").about, "of windows nothing is said, nobody compared them"


# -------------------- negative controls: transformers' model has something else, the weights are the same


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("mistral", {"sliding_window": 17}),
        ("qwen2", {"layer_types": ["full_attention", "full_attention"]}),
        ("llama4_text", {"attention_chunk_size": 15}),
        ("gemma2", {"attn_logit_softcapping": 40.0}),
    ],
)
def test_the_census_would_notice_another_window_chunk_or_soft_cap(family: str, fields: dict[str, object]) -> None:
    found = judged(family, other=tiny_family(family, **fields))
    assert found.verdict == "WRONG" and "logits off" in found.about


def without_sinks(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-100.0)


def other_layers_read(model: Any) -> None:
    for layer in model.model.layers:
        if layer.self_attn.is_kv_shared_layer and not layer.self_attn.is_sliding:
            layer.self_attn.layer_type = "sliding_attention"


@pytest.mark.parametrize(
    ("family", "fields", "change"),
    [
        ("gpt_oss", {}, without_sinks),
        ("gemma4_text", {"global_head_dim": 16, "attention_k_eq_v": False}, other_layers_read),
    ],
)
def test_the_census_would_notice_a_sink_left_out_and_keys_of_another_layer(
    family: str, fields: dict[str, Any], change: Callable[[nn.Module], None]
) -> None:
    assert judged(family, tiny_family(family, **fields)).verdict == "same"
    found = judged(family, tiny_family(family, **fields), change=change)
    assert found.verdict == "WRONG" and "logits off" in found.about


# -------------------- rows of the catalogue, and switches

NATIVE = 64  # positions before scaling: the census's texts are longer
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {**PLAIN, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": NATIVE}


def shrunk(row: dict[str, Any]) -> dict[str, Any]:
    """A catalogue row's config with few and small layers."""
    group = row["num_attention_heads"] // row["num_key_value_heads"]
    rope = dict(row.get("rope_parameters") or PLAIN)
    if "original_max_position_embeddings" in rope:
        rope["original_max_position_embeddings"] = NATIVE
    switches: dict[str, Any] = {"no_rope_layers": [1, 0]} if row["model_type"] == "smollm3" else {}
    if row.get("num_experts"):
        switches = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": max(1, 4 // group), "head_dim": 16, "vocab_size": VOCAB}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    rest = {"max_position_embeddings": 4096, "rope_parameters": rope, "dtype": "float32", "initializer_range": 0.4}
    return {**row, **switches, **sizes, **ends, **rest}


def cases() -> dict[str, dict[str, Any]]:
    """One for each different shrunk config of the catalogue, and what it does not have yet."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in entries().items():
        if row.config is not None:
            small = shrunk({**row.config, **row.overrides})
            if json.dumps(small) not in map(json.dumps, found.values()):
                found[name] = small
    plain = found["llama-68m"]
    found["llama, linear RoPE"] = {**plain, "rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 4.0}}
    part = {**PLAIN, "rope_type": "proportional", "partial_rotary_factor": 0.5}
    found["llama, some rotary frequencies"] = {**plain, "rope_parameters": part}
    found["llama, biases everywhere"] = {**plain, "attention_bias": True, "mlp_bias": True}
    found["qwen3, biases"] = {**found["qwen3-8b"], "attention_bias": True}
    return found


CASES = cases()
MULTIPLIERS = {"attention_multiplier": 0.3, "embedding_multiplier": 1.5, "residual_multiplier": 0.7}
BIASES = {"attention_bias": True, "mlp_bias": True}
MOE = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    ("arcee", BIASES),
    ("cohere", {"logit_scale": 1.0, "use_qk_norm": True}),
    ("ernie4_5", {"use_bias": True}),
    ("gemma3n_text", {"num_kv_shared_layers": 0}),
    ("gemma4_text", {"num_kv_shared_layers": 0, "attention_k_eq_v": False, "hidden_size_per_layer_input": 0, **MOE}),
    ("gemma4_text", {"use_bidirectional_attention": "vision", "final_logit_softcapping": 30.0}),
    ("glm", {"attention_bias": True}),
    ("glm4_moe", {"use_qk_norm": True}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("granite", {**MULTIPLIERS, "logits_scaling": 0.5}),
    ("granitemoe", {**MULTIPLIERS, "logits_scaling": 0.5}),
    ("granitemoeshared", {**MULTIPLIERS, "logits_scaling": 0.5, "shared_intermediate_size": 32}),
    ("ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}}),
    *(("mistral", {"sliding_window": window}) for window in (None, 2, 150)),  # two tokens; as long as the text
    ("mixtral", {"output_router_logits": True}),
    ("nemotron", BIASES),
    ("olmo", {"clip_qkv": 1.0}),
    ("olmoe", {"norm_topk_prob": True}),
    ("phi", {"qk_layernorm": True}),
    ("phi3", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
    ("phimoe", {"lm_head_bias": True, "attention_bias": True}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),  # first layer with one: 2
    ("qwen2_moe", {"shared_expert_intermediate_size": 32}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),
    ("qwen3_moe", {"norm_topk_prob": True}),
    ("seed_oss", {"attention_out_bias": True}),
    ("smollm3", {"no_rope_layers": [1, 0]}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
]


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_the_catalogue_is_the_same_as_in_transformers(name: str) -> None:
    fields = CASES[name]
    config: PreTrainedConfig = AutoConfig.for_model(**fields)
    found = judged(fields["model_type"], config)
    assert found.verdict == "same", found.about
    if name in ("llama2-7b-128k", "llama-3.1-8b", "llama, linear RoPE"):  # a scaling that is left out is noticed
        plain = {"rope_type": "default", "rope_theta": fields["rope_parameters"]["rope_theta"]}
        other = AutoConfig.for_model(**{**fields, "rope_parameters": plain})
        assert judged("llama", config, other=other).verdict == "WRONG"


@pytest.mark.parametrize(("family", "fields"), SWITCHES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_family_with_its_switches_is_the_same(family: str, fields: dict[str, Any]) -> None:
    found = judged(family, tiny_family(family, **fields))
    assert found.verdict == "same", found.about


@pytest.mark.parametrize(
    ("family", "fields"),
    [("granitemoehybrid", {"position_embedding_type": "rope", "num_local_experts": 0}), ("lfm2", {})],
)
def test_a_hybrid_whose_layers_all_attend_is_a_plain_model(family: str, fields: dict[str, Any]) -> None:
    config = tiny_family(family, layer_types=["full_attention"] * 2, **fields)
    dims = dims_of(config, family, weight_bytes=0)
    assert dims.plain and not dims.attending and not dims.state.layers
    compare(*twin_models(config, ATTENTION_NAME), dims)


def test_every_kind_of_rope_has_a_case() -> None:
    ropes = [fields.get("rope_parameters") or PLAIN for fields in (*CASES.values(), *(one for _, one in SWITCHES))]
    assert {rope["rope_type"] for rope in ropes} == set(FIXED_ROPE)
