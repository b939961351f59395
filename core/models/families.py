"""Which model families run here exactly as in transformers, and why others are refused. Knows configurations only.

A family is listed once the census (tests/core/models/census.py) has compared it with transformers' own attention
through every cache; the census judges every causal family, so one that is listed and differs fails it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from core.models.layer_reach import FULL as FULL_KIND
from core.models.layer_reach import KINDS, RECURRENT, WITHOUT_BOTH, attending_layers, layer_heads

# Where a family has windows and chunks: nowhere, in the layers that `layer_types` names, or, if it is empty, in all
Windows = Literal["none", "some", "all"]


FIXED_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is known of a family, besides its tested parity."""

    windows: Windows = "none"
    drafts: bool = True  # its keys can be rotated to other positions, which a draft's cache needs
    shares: bool = False  # whether its last layers may read the keys and values of earlier ones
    sized: bool = False  # whether its windowed layers may have other heads than its full ones
    recurrent: bool = False  # some layers, which `layer_types` names, keep a running state (`core.models.recurrent`)
    ropes: tuple[str, ...] = FIXED_ROPE  # kinds of rotary positions that were compared


SOME = Family(windows="some")
ALL = Family(windows="all")
INTERLEAVED = Family(drafts=False)  # rotary pairs are neighbours, not halves
NORMED_AFTER = Family(drafts=False)  # keys are scaled, dimension by dimension, after the rotation
HYBRID = Family(recurrent=True, drafts=False)
SEVERAL_ROPES = Family(windows="some", drafts=False)  # layers of different types rotate differently, or not at all
SHARING = replace(SEVERAL_ROPES, shares=True)
GEMMA4 = replace(SHARING, sized=True, ropes=(*FIXED_ROPE, "proportional"))
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "afmoe": SEVERAL_ROPES,
        "apertus": Family(),
        "arcee": Family(),
        "bamba": HYBRID,
        "bitnet": Family(),
        "cohere": INTERLEAVED,
        "cohere2": SEVERAL_ROPES,
        "cohere2_moe": SEVERAL_ROPES,
        "cwm": SOME,
        "dots1": SOME,
        "ernie4_5": INTERLEAVED,
        "ernie4_5_moe": INTERLEAVED,
        "exaone4": SEVERAL_ROPES,
        "exaone_moe": SEVERAL_ROPES,
        "falcon_h1": HYBRID,
        "flex_olmo": Family(),
        "gemma": Family(),
        "gemma2": SOME,
        "gemma3_text": SEVERAL_ROPES,
        "gemma3n_text": SHARING,
        "gemma4_text": GEMMA4,
        "gemma4_unified_text": GEMMA4,
        "glm": INTERLEAVED,
        "glm4": INTERLEAVED,
        "glm4_moe": Family(),
        "gpt_neox": Family(),
        "gpt_oss": SOME,
        "granite": Family(),
        "granite_swa": SOME,
        "granitemoe": Family(),
        "granitemoe_swa": SOME,
        "granitemoehybrid": HYBRID,
        "granitemoeshared": Family(),
        "helium": INTERLEAVED,
        "hy_v3": Family(),
        "hunyuan_v1_dense": NORMED_AFTER,
        "hunyuan_v1_moe": NORMED_AFTER,
        "hyperclovax": Family(),
        "internlm3": Family(),
        "iquestcoder": Family(),
        "jais2": Family(),
        "lfm2": HYBRID,
        "lfm2_moe": HYBRID,
        "llama": Family(),
        "llama4_text": SEVERAL_ROPES,
        "mellum": SEVERAL_ROPES,
        "minimax_m2": Family(),
        "ministral": SOME,
        "ministral3": ALL,
        "mistral": ALL,
        "mixtral": ALL,
        "modernbert-decoder": SEVERAL_ROPES,
        "nanochat": Family(drafts=False),
        "nemotron": Family(),
        "olmo": Family(),
        "olmo2": Family(),
        "olmo3": SEVERAL_ROPES,
        "olmo_hybrid": HYBRID,
        "olmoe": Family(),
        "persimmon": Family(),
        "phi": Family(),
        "phi3": ALL,
        "phimoe": ALL,
        "qwen2": SOME,
        "qwen2_moe": SOME,
        "qwen3": SOME,
        "qwen3_5_moe_text": HYBRID,
        "qwen3_5_text": HYBRID,
        "qwen3_moe": ALL,
        "qwen3_next": HYBRID,
        "seed_oss": Family(),
        "smollm3": Family(windows="some", drafts=False),  # some layers have no positions at all
        "solar_open": Family(),
        "stablelm": Family(),
        "starcoder2": ALL,
        "vaultgemma": SOME,
    }
)
ROPE_THAT_MOVES = ("dynamic", "longrope")  # they change with the length of the text

FULL = "Choose a model with full attention."
OTHER = "Choose a model of another family, such as Llama, Mistral or Qwen."
UNUSED = "names a part of the context that its layers attend to, which its family does not have"
PARTIAL = "does not attend to its whole context in every layer"
STATE = "keeps a running state beside keys and values, in a way that was not tested"
CLAMPED = "computes a token alone otherwise than in a pass of several (time_step_min), so guesses cannot be verified"
HYBRIDS_REFUSED = {  # what transformers' code for the family does, in the versions that were tested
    "jamba": "cannot go on from a running state with several tokens at once",
    "minimax": "keeps running states in a cache of its own, which cannot go back to where a guess was rejected",
    "nemotron_h": CLAMPED,
    "zamba2": CLAMPED,
}
HEADS = frozenset({"head_dim", "num_key_value_heads"})  # fields that may differ between types of layers
WITH_SINKS = ("gpt_oss", "granite_swa", "granitemoe_swa")


class Refusal(NamedTuple):
    """Why a model does not run here; `problem` continues a sentence that begins with the model's name."""

    problem: str
    hint: str


def refusal(config: object) -> Refusal | None:
    """Why a decoder's configuration (as transformers reads it) would not run exactly; None if it does."""
    for rule in (_sizes, _state, _partial, _altered_scores, _rope):  # after the first, fields can be read
        if (found := rule(config)) is not None:
            return found
    family = getattr(config, "model_type", "")
    if family not in FAMILIES:
        return Refusal(f"is of the family {family!r}, which was not tested against transformers' own attention", OTHER)
    return None


def _sizes(config: object) -> Refusal | None:
    """Layers that differ in more than the heads of windowed and full ones, or that read other layers' keys."""
    family = FAMILIES.get(getattr(config, "model_type", ""))
    if getattr(config, "is_heterogeneous", False):
        differing = set(getattr(config, "per_layer_attributes", ("unknown",)))
        kinds = dict.fromkeys(zip(getattr(config, "layer_types", None) or (), layer_heads(config), strict=False))
        alike = len({kind for kind, _ in kinds}) == len(kinds)
        if family is None or not family.sized or not alike or not differing <= HEADS:
            return Refusal("has layers of different kinds or sizes (per_layer_config), which is not implemented", OTHER)
    if getattr(config, "num_kv_shared_layers", 0) and family is not None and not family.shares:
        return Refusal("says that layers read the keys of others, which its family does not have", OTHER)
    return None


def _state(config: object) -> Refusal | None:
    kinds = set(getattr(config, "layer_types", None) or ())
    if _is_hybrid(config):
        if not kinds & RECURRENT or not attending_layers(config):
            return Refusal("has recurrent layers alone, or does not name them (layer_types)", FULL)
        least, most = getattr(config, "time_step_limit", None) or (0.0, math.inf)
        return Refusal(CLAMPED.replace("min", "limit"), FULL) if least > 0 or most < math.inf else None
    if (why := HYBRIDS_REFUSED.get(getattr(config, "model_type", ""))) is not None:
        return Refusal(why, FULL)
    others = sorted(kind for kind in kinds if not kind.endswith("attention") or kind == "linear_attention")
    if others:
        return Refusal(f"{STATE} (layers of the type {others[0]})", FULL)
    return None


def _is_hybrid(config: object) -> bool:
    family = FAMILIES.get(getattr(config, "model_type", ""))
    return family is not None and family.recurrent


def _partial(config: object) -> Refusal | None:
    """Layers that attend to other tokens than a window, a chunk, or all up to their own."""
    known = {FULL_KIND} | RECURRENT | WITHOUT_BOTH if _is_hybrid(config) else KINDS
    others = sorted(set(getattr(config, "layer_types", None) or ()) - known)
    if others:
        return Refusal(f"{PARTIAL} (layers of the type {others[0]})", FULL)
    if (found := _unused_window(config)) is not None:
        return found
    both_ways = getattr(config, "use_bidirectional_attention", None)
    if getattr(config, "is_causal", None) is False or (both_ways and both_ways != "vision"):  # text has no pictures
        return Refusal("attends to tokens that follow, which is not implemented", FULL)
    return None


def _unused_window(config: object) -> Refusal | None:
    """A window or chunks that transformers' code for the family does not have: whoever wrote it expects them."""
    family = FAMILIES.get(getattr(config, "model_type", ""))
    if family is None:  # nothing is known of it
        return None
    windows = family.windows
    kinds = set(getattr(config, "layer_types", None) or ())
    if windows == "none" and not family.recurrent and (others := sorted(kinds - {FULL_KIND})):
        return Refusal(f"{UNUSED} (layers of the type {others[0]})", FULL)
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    if window and windows == "none":  # families with `use_sliding_window` have no window if it is false
        return Refusal(f"{UNUSED} (a window of {window} tokens)", FULL)
    if chunk and windows == "none":
        return Refusal(f"{UNUSED} (chunks of {chunk} tokens)", FULL)
    return None


def _altered_scores(config: object) -> Refusal | None:
    """Attention over keys and values of different sizes."""
    values = getattr(config, "v_head_dim", None)
    if getattr(config, "kv_lora_rank", None) or (values and values != getattr(config, "head_dim", None)):
        return Refusal("has values of another size than its keys (latent attention), which no cache here holds", OTHER)
    return None


def _rope(config: object) -> Refusal | None:
    stated, family = getattr(config, "rope_parameters", None) or {}, FAMILIES.get(getattr(config, "model_type", ""))
    parts = [part for part in stated.values() if isinstance(part, Mapping)] or [stated]  # one for each type of layer
    for kind in (part.get("rope_type", "default") for part in parts):
        if kind in ROPE_THAT_MOVES:
            return Refusal(
                f"changes its rotary frequencies with the length of the text ({kind}), so that keys cannot be kept",
                "Choose a model with fixed ones (default, linear, llama3 or YaRN).",
            )
        if kind not in (family.ropes if family else FIXED_ROPE):
            return Refusal(f"has rotary positions of the kind {kind!r}, which were not tested", OTHER)
    return None
