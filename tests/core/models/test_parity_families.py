"""Every row of the catalogue with its own RoPE, and families with further switches on, as the census judges them.

`test_census` has every family as it comes. Weights are random, biases and norms included (fresh ones are 0 and 1, and
would hide a part that is left out).
"""

import json
from typing import Any, cast

import pytest
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from core.models.families import FIXED_ROPE
from core.models.hub.catalog import entries
from tests.core.models.census import judged
from tests.core.models.tiny_families import tiny_family
from tests.core.toys import VOCAB

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
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    ("arcee", BIASES),
    ("cohere", {"logit_scale": 1.0, "use_qk_norm": True}),
    ("ernie4_5", {"use_bias": True}),
    ("glm", {"attention_bias": True}),
    ("glm4_moe", {"use_qk_norm": True}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("granite", {**MULTIPLIERS, "logits_scaling": 0.5}),
    ("granitemoe", {**MULTIPLIERS, "logits_scaling": 0.5}),
    ("granitemoeshared", {**MULTIPLIERS, "logits_scaling": 0.5, "shared_intermediate_size": 32}),
    ("ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}}),
    ("mistral", {"sliding_window": None}),
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
    ("stablelm", {"use_qkv_bias": True}),
    ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
]


def config_of(fields: dict[str, Any]) -> PreTrainedConfig:
    if fields["model_type"] not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {fields['model_type']}")
    return cast(PreTrainedConfig, cast(Any, AutoConfig).for_model(**fields))


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_the_catalogue_is_the_same_as_in_transformers(name: str) -> None:
    found = judged(CASES[name]["model_type"], config_of(CASES[name]))
    assert found.verdict == "same", found.about


@pytest.mark.parametrize(("family", "fields"), SWITCHES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_family_with_its_switches_is_the_same(family: str, fields: dict[str, Any]) -> None:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    found = judged(family, tiny_family(family, **fields))
    assert found.verdict == "same", found.about


def test_every_kind_of_rope_has_a_case() -> None:
    ropes = [fields.get("rope_parameters") or PLAIN for fields in (*CASES.values(), *(one for _, one in SWITCHES))]
    assert {rope["rope_type"] for rope in ropes} == set(FIXED_ROPE)


@pytest.mark.parametrize("name", ["llama2-7b-128k", "llama-3.1-8b", "llama, linear RoPE"])
def test_a_scaling_that_is_left_out_is_noticed(name: str) -> None:
    plain = {"rope_type": "default", "rope_theta": CASES[name]["rope_parameters"]["rope_theta"]}
    other = config_of({**CASES[name], "rope_parameters": plain})
    assert judged("llama", config_of(CASES[name]), other=other).verdict == "WRONG"
