"""The census of families: a part of it here, all of it in the slow suite."""

import pytest
from torch import nn
from transformers import CONFIG_MAPPING

from core.models.families import FAMILIES
from tests.core.models.census import judged
from tests.core.models.tiny_families import families, tiny_family

REFUSED = ["bert", "bloom", "deepseek_v3", "jamba", "mamba", "nemotron_h"]
SERVED = ["cohere2", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "llama", "llama4_text"]
SERVED += ["ministral", "mistral", "mixtral", "olmo3", "phi3", "phimoe", "qwen2", "qwen3_moe", "smollm3"]
SERVED += ["falcon_h1", "gemma", "glm4", "lfm2", "olmo2", "qwen3_next", "starcoder2"]
PART = [*REFUSED, *SERVED]


@pytest.mark.parametrize("family", PART)
def test_a_family_is_the_same_as_in_transformers_or_refused(family: str) -> None:
    found = judged(family)
    assert found.verdict != "WRONG", found.about
    assert found.verdict == ("same" if family in SERVED else "refused") and found.about


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in families() if family not in PART])
def test_every_family_is_the_same_as_in_transformers_or_refused(family: str) -> None:
    found = judged(family)
    assert found.verdict != "WRONG", found.about


def test_of_a_family_that_nobody_compared_nothing_is_said_about_its_windows() -> None:
    assert "does not have" not in judged("mimo_v2_flash").about


def test_every_family_that_loads_is_a_causal_family_of_transformers() -> None:
    """So the census judges it; families that this transformers does not have yet are left out."""
    assert set(FAMILIES) & set(CONFIG_MAPPING) <= set(families())


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("mistral", {"sliding_window": 17}),
        ("mistral", {"sliding_window": None}),
        ("gemma3_text", {"sliding_window": 15}),
        ("qwen2", {"layer_types": ["full_attention", "full_attention"]}),
        ("llama4_text", {"attention_chunk_size": 15}),
        ("gemma2", {"attn_logit_softcapping": 40.0}),
        ("gemma2", {"attn_logit_softcapping": None}),
    ],
)
def test_the_census_would_notice_another_window_chunk_or_soft_cap(family: str, fields: dict[str, object]) -> None:
    """Negative controls: transformers' model has another one, the weights are the same."""
    found = judged(family, other=tiny_family(family, **fields))
    assert found.verdict == "WRONG" and "logits off" in found.about


def test_the_census_would_notice_a_sink_that_is_left_out() -> None:
    def without(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.data.fill_(-100.0)

    found = judged("gpt_oss", change=without)
    assert found.verdict == "WRONG" and "logits off" in found.about
    assert judged("gpt_oss", change=lambda model: None).verdict == "same"


def test_other_windows_are_served_too() -> None:
    """As long as the text, longer, and two tokens."""
    for window in (2, 90, 150, 4096):
        assert judged("mistral", tiny_family("mistral", sliding_window=window)).verdict == "same"


MOE = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gemma4_text", {"num_kv_shared_layers": 0, **MOE}),
        ("gemma4_text", {"attention_k_eq_v": False, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}),
        ("gemma4_text", {"use_bidirectional_attention": "vision", "final_logit_softcapping": 30.0}),
        ("gemma3n_text", {"num_kv_shared_layers": 0}),
    ],
)
def test_the_switches_of_families_that_share_keys(family: str, fields: dict[str, object]) -> None:
    found = judged(family, tiny_family(family, **fields))
    assert found.verdict == "same", found.about


def test_the_census_would_notice_layers_that_read_the_keys_of_another_one() -> None:
    def changed(model: nn.Module) -> None:
        for layer in model.model.layers:  # type: ignore[union-attr]
            if layer.self_attn.is_kv_shared_layer and not layer.self_attn.is_sliding:
                layer.self_attn.layer_type = "sliding_attention"

    fields = {"global_head_dim": 16, "attention_k_eq_v": False}
    assert judged("gemma4_text", tiny_family("gemma4_text", **fields)).verdict == "same"
    found = judged("gemma4_text", tiny_family("gemma4_text", **fields), change=changed)
    assert found.verdict == "WRONG" and "logits off" in found.about
