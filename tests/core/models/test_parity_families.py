"""Families with their switches on, and every row of the catalogue with its own RoPE, against stock; small but whole.

`test_census` has every family as it comes; `FAMILY_FIELDS` has cases of those with further switches. Weights are
random, biases and norms included (fresh ones are 0 and 1, and would hide a part that is left out).
"""

import json
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, DeepseekV3Config, JambaConfig, PreTrainedConfig

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig, RetrievalConfig
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.families import FAMILIES, FIXED_ROPE
from core.models.hf_attention import ATTENTION_NAME
from core.models.hub.catalog import entries
from core.models.loader import dims_of
from core.models.rotary import KeyShift
from tests.core.toys import CPU, VOCAB, random_prompt, tiny_model

NATIVE = 64  # positions before scaling: texts below are longer
LENGTH = 150
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {**PLAIN, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": NATIVE}


def shrunk(row: dict[str, Any]) -> dict[str, Any]:
    """A catalogue row's config with few and small layers."""
    heads = 4
    group = row["num_attention_heads"] // row["num_key_value_heads"]
    rope = dict(row.get("rope_parameters") or {"rope_type": "default", "rope_theta": 10000.0})
    if "original_max_position_embeddings" in rope:
        rope["original_max_position_embeddings"] = NATIVE
    switches = {"no_rope_layers": [1, 0]} if row["model_type"] == "smollm3" else {}  # every fourth by default
    return {
        **row,
        **switches,
        "hidden_size": 16 * heads,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // group),
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rope_parameters": rope,
        "dtype": "float32",
    }


def cases() -> dict[str, dict[str, Any]]:
    """One for each different shrunk config of the catalogue, and what it does not have yet."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in entries().items():
        if row.config is not None:
            small = shrunk({**row.config, **row.overrides})
            if json.dumps(small) not in map(json.dumps, found.values()):
                found[name] = small
    plain = found["llama-68m"]
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    found["llama, linear RoPE"] = {**plain, "rope_parameters": linear}
    found["llama, biases everywhere"] = {**plain, "attention_bias": True, "mlp_bias": True}
    found["qwen3, biases"] = {**found["qwen3-8b"], "attention_bias": True}
    return found


# Of a family that is no row of the catalogue: fields beside BASE, one case or several.
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
MULTIPLIERS = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "logits_scaling": 0.5,
}
FAMILY_FIELDS: dict[str, list[dict[str, Any]]] = {
    "apertus": [{}],
    "arcee": [{"attention_bias": True, "mlp_bias": True}],
    "bitnet": [{}],
    "cohere": [{"logit_scale": 1.0}, {"logit_scale": 1.0, "use_qk_norm": True}],
    "dots1": [{**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}],
    "ernie4_5": [{"use_bias": True}],
    "ernie4_5_moe": [{**EXPERTS, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1}],
    "flex_olmo": [{**EXPERTS, "num_experts": 4}],
    "gemma": [{}],
    "glm": [{"attention_bias": True}],
    "glm4": [{}],
    "glm4_moe": [{**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1, "use_qk_norm": True}],
    "gpt_neox": [{"num_key_value_heads": None}, {"num_key_value_heads": None, "use_parallel_residual": False}],
    "granite": [MULTIPLIERS],
    "granitemoe": [{**EXPERTS, **MULTIPLIERS, "num_local_experts": 4}],
    "granitemoeshared": [{**EXPERTS, **MULTIPLIERS, "num_local_experts": 4, "shared_intermediate_size": 32}],
    "helium": [{}],
    "hunyuan_v1_dense": [{}],
    "hunyuan_v1_moe": [{"num_experts": 4, "moe_topk": 2}],
    "llama": [{}],
    "minimax_m2": [{**EXPERTS, "num_local_experts": 4}],
    "ministral3": [{"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}}],
    "mistral": [{"sliding_window": None}],
    "mixtral": [{**EXPERTS, "num_local_experts": 4, "output_router_logits": True}],
    "nemotron": [{"attention_bias": True, "mlp_bias": True}],
    "olmo": [{"clip_qkv": 1.0}],
    "olmo2": [{}],
    "olmoe": [{**EXPERTS, "num_experts": 4, "norm_topk_prob": True}],
    "phi": [{}, {"qk_layernorm": True}],
    "phi3": [{}, {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}],
    "phimoe": [{**EXPERTS, "num_local_experts": 4, "lm_head_bias": True, "attention_bias": True}],
    "qwen2": [{"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}],  # first layer with one: 2
    "qwen2_moe": [{**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32}],
    "qwen3": [{"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}],
    "qwen3_moe": [{**EXPERTS, "num_experts": 4, "norm_topk_prob": True}],
    "seed_oss": [{"attention_out_bias": True}],
    "smollm3": [{"no_rope_layers": [1, 0]}],
    "stablelm": [{"use_qkv_bias": True}, {"qk_layernorm": True, "use_parallel_residual": True}],
    "starcoder2": [{}],
}
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "dtype": "float32",
}


def family_cases() -> dict[str, dict[str, Any]]:
    """By name. Families without one have no other switch than those of the census (`test_census`)."""
    found = {}
    for family, several in FAMILY_FIELDS.items():
        for number, fields in enumerate(several):
            found[family + (f", {number + 1}" if number else "")] = {**BASE, "model_type": family, **fields}
    return found


CASES = cases()
FAMILY_CASES = family_cases()


def config_of(fields: dict[str, Any]) -> PreTrainedConfig:
    fields = dict(fields)
    if fields["model_type"] not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {fields['model_type']}")
    config = cast(Any, AutoConfig).for_model(fields.pop("model_type"), **fields)
    config.initializer_range, config.bos_token_id, config.eos_token_id, config.pad_token_id = 0.4, None, None, None
    return cast(PreTrainedConfig, config)


def twins(
    fields: dict[str, Any], other: dict[str, Any] | None = None, attention: str = ATTENTION_NAME
) -> list[nn.Module]:
    """The same weights twice: in transformers' own attention, and in ours; the second with other fields if given."""
    stock = tiny_model(config_of(fields), 5, "eager")
    generator = torch.Generator().manual_seed(6)
    for name, parameter in stock.named_parameters():
        if parameter.ndim == 1 or "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    second = tiny_model(config_of(fields | (other or {})), 5, attention)
    second.load_state_dict(stock.state_dict())
    return [stock, second]


def pair_of(fields: dict[str, Any]) -> tuple[nn.Module, nn.Module, KVShape]:
    """The same weights in transformers' own attention and in ours, and what the loader says of them."""
    shape = dims_of(config_of(fields), "toy", weight_bytes=0).shape(torch.float32, CPU)
    stock, ours = twins(fields)
    return stock, ours, shape


def logits_of(model: nn.Module, tokens: list[int]) -> Tensor:
    return cast(Tensor, cast(Any, model)(torch.tensor([tokens])).logits[0])


def close(ours: Tensor, stock: Tensor) -> bool:
    return torch.allclose(ours, stock, atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*CASES, *FAMILY_CASES])
def test_parity_of_logits_and_greedy_text_through_all_caches(name: str) -> None:
    fields = CASES.get(name) or FAMILY_CASES[name]
    stock, model, shape = pair_of(fields)
    tokens = random_prompt(LENGTH)
    context, expected = Context(tokens), logits_of(stock, tokens)
    rejected = Context(tokens[:140] + random_prompt(6, seed=1))

    full = FullCache(shape, 256, 8)
    judge = CachedModel("full", model, full, CPU)
    for start, stop in ((0, 90), (90, 120), (120, 127)):  # prefill in chunks
        assert close(judge.feed(context, range(start, stop), 1)[0], expected[stop - 1])
    for index in range(127, 140):  # decoding
        assert close(judge.feed(context, range(index, index + 1), 1)[0], expected[index])

    retrieval = RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=256, local_window=64)))
    retrieval.select()
    judges = [CachedModel("retrieval", model, retrieval, CPU), judge]
    assert FAMILIES[fields["model_type"]].drafts == shifts(model, shape), "what pairing believes of its keys"
    if shifts(model, shape):
        streaming = StreamingCache(shape, DraftConfig(num_sink=4, window=200), KeyShift.of(model, shape))
        judges.insert(0, CachedModel("draft", model, streaming, CPU))
    for one in judges:
        one.logits(rejected, 6)  # guesses behind 140 tokens, all of them rejected
        one.cache.truncate(140)
        assert close(one.logits(context, 10), expected[-10:]), one.name

    full.truncate(LENGTH - 1)
    text = list(tokens)
    for _ in range(12):
        text.append(int(judge.logits(Context(text), 1).argmax()))
    ids = torch.tensor([tokens])
    written = cast(Any, stock).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert text == written[0].tolist()


def shifts(model: nn.Module, shape: KVShape) -> bool:
    """Whether its keys can be moved to other positions, tried on the model."""
    try:
        KeyShift.of(model, shape)
    except UnsupportedModel:
        return False
    return True


def test_every_case_is_of_a_family_that_loads_and_every_kind_of_rope_has_one() -> None:
    assert set(FAMILY_FIELDS) <= set(FAMILIES)
    tested = {(fields.get("rope_parameters") or PLAIN)["rope_type"] for fields in (CASES | FAMILY_CASES).values()}
    assert tested == set(FIXED_ROPE)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_attention_to_tokens_that_follow_is_refused_by_the_loader_and_by_attention(family: str) -> None:
    fields = {**FAMILY_CASES[family], "is_causal": False}
    with pytest.raises(UnsupportedModel, match="tokens that follow"):
        dims_of(config_of(fields), "toy", weight_bytes=0)
    stock, ours = twins(fields)
    causal, _ = twins(FAMILY_CASES[family])
    shape = dims_of(config_of(FAMILY_CASES[family]), "toy", weight_bytes=0).shape(torch.float32, CPU)
    tokens = random_prompt(40)
    assert not close(logits_of(stock, tokens)[0], logits_of(causal, tokens)[0])
    with pytest.raises(UnsupportedModel, match=r"is_causal=False|not causal"):
        CachedModel("full", ours, FullCache(shape, 256, 8), CPU).logits(Context(tokens), 1)


@pytest.mark.parametrize("name", ["llama2-7b-128k", "llama-3.1-8b", "llama, linear RoPE"])
def test_parity_would_notice_a_scaling_that_is_left_out(name: str) -> None:
    """Negative control: the same weights with plain RoPE are far off, at positions within the native ones too."""
    stock, _, _ = pair_of(CASES[name])
    plain = {"rope_type": "default", "rope_theta": CASES[name]["rope_parameters"]["rope_theta"]}
    other, _, _ = pair_of({**CASES[name], "rope_parameters": plain})
    tokens = random_prompt(LENGTH)
    assert not torch.allclose(logits_of(stock, tokens)[-10:], logits_of(other, tokens)[-10:], atol=0.05)


def test_parity_would_notice_a_bias_that_is_left_out() -> None:
    stock, _, _ = pair_of(CASES["qwen2.5-7b"])
    tokens = random_prompt(60)
    expected = logits_of(stock, tokens)
    for parameter_name, parameter in stock.named_parameters():
        if parameter_name.endswith("q_proj.bias"):
            parameter.data.zero_()
    assert not torch.allclose(expected, logits_of(stock, tokens), atol=0.05)


@pytest.mark.parametrize(
    "config",
    [
        JambaConfig(),
        DeepseekV3Config(),
        config_of(
            {**CASES["llama-68m"], "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
        ),
    ],
    ids=["recurrent layers", "latent attention", "dynamic RoPE"],
)
def test_parity_that_cannot_be_had_is_refused(config: PreTrainedConfig) -> None:
    with pytest.raises(UnsupportedModel) as error:
        dims_of(config, "toy", weight_bytes=0)
    assert error.value.hint
