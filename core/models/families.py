"""Which model families run here exactly as in transformers, and why others are refused. Knows configurations only.

A family is listed once a parity test compares it with transformers' own attention through every cache. The test
iterates over this list (tests/core/models/test_parity_families.py), so the two cannot differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is known of a family, besides its tested parity."""

    windows_by_layer: bool = False  # a window applies only to layers of the type "sliding_attention", else to all
    drafts: bool = True  # its keys can be rotated to other positions, which a draft's cache needs


BY_LAYER = Family(windows_by_layer=True)
INTERLEAVED = Family(drafts=False)  # rotary pairs are neighbours, not halves
NORMED_AFTER = Family(drafts=False)  # keys are scaled, dimension by dimension, after the rotation
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "apertus": Family(),
        "arcee": Family(),
        "bitnet": Family(),
        "cohere": INTERLEAVED,
        "dots1": BY_LAYER,
        "ernie4_5": INTERLEAVED,
        "ernie4_5_moe": INTERLEAVED,
        "flex_olmo": Family(),
        "gemma": Family(),
        "glm": INTERLEAVED,
        "glm4": INTERLEAVED,
        "glm4_moe": Family(),
        "gpt_neox": Family(),
        "granite": Family(),
        "granitemoe": Family(),
        "granitemoeshared": Family(),
        "helium": INTERLEAVED,
        "hunyuan_v1_dense": NORMED_AFTER,
        "hunyuan_v1_moe": NORMED_AFTER,
        "llama": Family(),
        "minimax_m2": Family(),
        "ministral3": Family(),
        "mistral": Family(),
        "mixtral": Family(),
        "nemotron": Family(),
        "olmo": Family(),
        "olmo2": Family(),
        "olmoe": Family(),
        "phi": Family(),
        "phi3": Family(),
        "phimoe": Family(),
        "qwen2": BY_LAYER,
        "qwen2_moe": BY_LAYER,
        "qwen3": BY_LAYER,
        "qwen3_moe": Family(),
        "seed_oss": Family(),
        "smollm3": Family(windows_by_layer=True, drafts=False),  # some layers have no positions at all
        "stablelm": Family(),
        "starcoder2": Family(),
    }
)
FIXED_ROPE = ("default", "linear", "llama3", "yarn")
ROPE_THAT_MOVES = ("dynamic", "longrope")  # they change with the length of the text

FULL = "Choose a model with full attention."
OTHER = "Choose a model of another family, such as Llama, Mistral or Qwen."
PARTIAL = "does not attend to its whole context in every layer"
STATE = "keeps a running state beside keys and values, which cannot go back to where a guess was rejected"
SINKS = "has attention sinks, which are not implemented"
CONVOLVING = ("lfm2", "lfm2_moe")  # their configurations do not always name the types of their layers
WITH_SINKS = ("gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash")


class Refusal(NamedTuple):
    """Why a model does not run here; `problem` continues a sentence that begins with the model's name."""

    problem: str
    hint: str


def refusal(config: object) -> Refusal | None:
    """Why a decoder's configuration (as transformers reads it) would not run exactly; None if it does."""
    if getattr(config, "is_heterogeneous", False):  # reading a field would raise
        return Refusal("has layers of different kinds or sizes (per_layer_config), which is not implemented", OTHER)
    for found in (_state(config), _partial(config), _altered_scores(config), _rope(config)):
        if found is not None:
            return found
    family = getattr(config, "model_type", "")
    if family not in FAMILIES:
        return Refusal(f"is of the family {family!r}, which was not tested against transformers' own attention", OTHER)
    return None


def _state(config: object) -> Refusal | None:
    kinds = set(getattr(config, "layer_types", None) or ())
    others = sorted(kind for kind in kinds if not kind.endswith("attention") or kind == "linear_attention")
    if others or getattr(config, "model_type", "") in CONVOLVING:
        return Refusal(STATE + (f" (layers of the type {others[0]})" if others else ""), FULL)
    return None


def _partial(config: object) -> Refusal | None:
    """Layers that attend to fewer, or more, than all tokens up to their own."""
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if others:
        return Refusal(f"{PARTIAL} (layers of the type {others[0]})", FULL)
    family = FAMILIES.get(getattr(config, "model_type", ""), Family())
    window = getattr(config, "sliding_window", None)
    if window and not family.windows_by_layer:  # families with `use_sliding_window` have no window if it is false
        return Refusal(f"{PARTIAL} (a window of {window} tokens)", FULL)
    if chunk := getattr(config, "attention_chunk_size", None):
        return Refusal(f"{PARTIAL} (chunks of {chunk} tokens)", FULL)
    if getattr(config, "is_causal", None) is False or getattr(config, "use_bidirectional_attention", None):
        return Refusal("attends to tokens that follow, which is not implemented", FULL)
    return None


def _altered_scores(config: object) -> Refusal | None:
    """Attention other than a softmax of scaled products over keys and values of one size."""
    if getattr(config, "attn_logit_softcapping", None):
        return Refusal("caps its attention scores (softcap), which is not implemented", OTHER)
    if getattr(config, "model_type", "") in WITH_SINKS:
        return Refusal(SINKS, OTHER)
    values, keys = getattr(config, "v_head_dim", None), getattr(config, "head_dim", None)
    if getattr(config, "kv_lora_rank", None) or (values and values != keys):
        return Refusal("has values of another size than its keys (latent attention), which no cache here holds", OTHER)
    return None


def _rope(config: object) -> Refusal | None:
    stated = getattr(config, "rope_parameters", None) or {}
    parts = [part for part in stated.values() if isinstance(part, Mapping)] or [stated]  # one for each type of layer
    for kind in (part.get("rope_type", "default") for part in parts):
        if kind in ROPE_THAT_MOVES:
            return Refusal(
                f"changes its rotary frequencies with the length of the text ({kind}), so that keys cannot be kept",
                "Choose a model with fixed ones (default, linear, llama3 or YaRN).",
            )
        if kind not in FIXED_ROPE:
            return Refusal(f"has rotary positions of the kind {kind!r}, which were not tested", OTHER)
    return None
