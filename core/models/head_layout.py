"""How the linear layers of a family are divided between processes by heads and MLP columns.

transformers states this for every family (`base_model_tp_plan`: "colwise" layers produce a share of their outputs,
"rowwise" ones take a share of inputs, and their results are summed). Its own loading of such shares differs between the
supported versions (tensors and hooks up to 5.17, DTensors later), so we use only the statement and cut ourselves.
"""

import re
from typing import Any, Literal, cast

from transformers import PreTrainedConfig

from core.errors import UnsupportedModel
from core.models.layer_reach import reaches_of

Cut = Literal["outputs", "inputs"]
# Families whose shares are compared with the whole model (tests/core/parallel/test_shard.py iterates over them).
# Others state a plan, too, but have further layers or norms that cannot be divided by heads.
COMPARED = """
    apertus arcee cohere ernie4_5 gemma granite helium llama ministral3 mistral nemotron olmo qwen2 qwen3 seed_oss
    smollm3 starcoder2
"""
SHARED = frozenset(COMPARED.split())
CUTS: dict[str, Cut | None] = {"colwise": "outputs", "rowwise": "inputs", "replicated_with_grad_allreduce": None}


def division_of(config: PreTrainedConfig) -> dict[str, Cut]:
    """Which linear layers are cut, and how: by name within the base model, numbers as `*`.

    Raises:
        UnsupportedModel: shares of the family were never compared with the whole; it states nothing, or states
            something that cannot be divided by heads (fused projections, norms over all heads, experts).
    """
    stated = cast("dict[str, str] | None", getattr(cast(Any, config), "base_model_tp_plan", None))
    windowed = bool(reaches_of(config))
    norms_of_heads = getattr(config, "use_qk_norm", False)  # Cohere's: a weight for every head
    tested = config.model_type in SHARED and not norms_of_heads and not windowed
    if not tested or not stated or not set(stated.values()) <= set(CUTS):
        raise UnsupportedModel(
            f"Models of the family {config.model_type!r} cannot be shared between GPUs by heads.",
            hint="Leave out --gpus.",
        )
    return {name: cut for name, style in stated.items() if (cut := CUTS[style]) is not None}


def is_divisible(config: PreTrainedConfig) -> bool:
    """Whether `division_of` supports the model."""
    try:
        division_of(config)
    except UnsupportedModel:
        return False
    return True


def generic_name(name: str) -> str:
    """layers.3.mlp.up_proj -> layers.*.mlp.up_proj"""
    return re.sub(r"\d+", "*", name)
