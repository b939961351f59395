"""Which model families run here exactly as in transformers, and why others are refused. Knows configurations only.

A family is listed once the census (tests/core/models/census.py) has compared it with transformers' own attention
through every cache; the census judges every causal family, so one that is listed and differs fails it. Whether a family
has windows, chunks or shared keys, its configuration's class says: it declares the fields that its code reads.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from core.models.layer_reach import FULL as FULL_KIND
from core.models.layer_reach import (
    KINDS,
    RECURRENT,
    WITHOUT_BOTH,
    attending_layers,
    kinds_of,
    layer_heads,
    rope_parts,
)

# Some layers, which `layer_types` names, keep a running state (`core.models.recurrent`)
RUNNING = "bamba falcon_h1 granitemoehybrid lfm2 lfm2_moe olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next"
# Keys that one rotation does not move to other positions, as a draft's must be: their pairs are neighbours, or layers
# rotate differently or not at all, or keys are scaled dimension by dimension after the rotation
STAYING = """
    afmoe cohere cohere2 cohere2_moe ernie4_5 ernie4_5_moe exaone4 exaone_moe gemma3_text gemma3n_text gemma4_text
    gemma4_unified_text glm glm4 helium hunyuan_v1_dense hunyuan_v1_moe llama4_text mellum modernbert-decoder nanochat
    olmo3 smollm3
"""
MOVING = """
    apertus arcee bitnet cwm dots1 flex_olmo gemma gemma2 glm4_moe gpt_neox gpt_oss granite granite_swa granitemoe
    granitemoe_swa granitemoeshared hy_v3 hyperclovax internlm3 iquestcoder jais2 llama minimax_m2 ministral ministral3
    mistral mixtral nemotron olmo olmo2 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss
    solar_open stablelm starcoder2 vaultgemma
"""
HYBRIDS, DRAFTS = frozenset(RUNNING.split()), frozenset(MOVING.split())
FAMILIES = HYBRIDS | DRAFTS | set(STAYING.split())
WITH_SINKS = ("gpt_oss", "granite_swa", "granitemoe_swa")
FIXED_ROPE = ("default", "linear", "llama3", "yarn", "proportional")
ROPE_THAT_MOVES = ("dynamic", "longrope")  # they change with the length of the text

FULL = "Choose a model with full attention."
OTHER = "Choose a model of another family, such as Llama, Mistral or Qwen."
FIXED = "Choose a model with fixed ones (default, linear, llama3 or YaRN)."
UNUSED = "names a part of the context that its layers attend to, which its family does not have"
STATE = "keeps a running state beside keys and values, in a way that was not tested"
CLAMPED = "computes a token alone otherwise than in a pass of several (time_step_min), so guesses cannot be verified"
HYBRIDS_REFUSED = {  # what transformers' code for the family does, in the versions that were tested
    "jamba": "cannot go on from a running state with several tokens at once",
    "minimax": "keeps running states in a cache of its own, which cannot go back to where a guess was rejected",
    "nemotron_h": CLAMPED,
    "zamba2": CLAMPED,
}
HEADS = frozenset({"head_dim", "num_key_value_heads"})  # fields that may differ between types of layers
MOST_LAYERS = 1_000  # the deepest model has 126; building that many empty layers takes seconds


class Refusal(NamedTuple):
    """Why a model does not run here; `problem` continues a sentence that begins with the model's name."""

    problem: str
    hint: str


def is_hybrid(config: object) -> bool:
    """Whether some layers keep a running state, of a family where they may: if all attend, the model is a plain one."""
    return getattr(config, "model_type", "") in HYBRIDS and set(kinds_of(config)) != {FULL_KIND}


QUANTISED, SIXTEEN = "has quantised weights ({}), which are not read here", "Fetch the 16-bit model, and use --bits 4."


def refusal(config: object) -> Refusal | None:
    """Why a decoder's configuration (as transformers reads it) would not run exactly; None if it does."""
    for rule in (_stored, _layers, _state, _partial, _rope):  # after the first, fields can be read
        if (found := rule(config)) is not None:
            return found
    family = getattr(config, "model_type", "")
    if family not in FAMILIES:
        return Refusal(f"is of the family {family!r}, which was not tested against transformers' own attention", OTHER)
    return None


def _stored(config: object) -> Refusal | None:
    """Weights in a quantised format, which other packages would unpack, and sizes that no model has."""
    if quantised := getattr(config, "quantization_config", None):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised.quant_method
        kind = str(getattr(method, "value", method))[:40]
        return Refusal(QUANTISED.format(kind), SIXTEEN)
    if getattr(config, "vocab_size", 1) == 0:
        return Refusal("says that its vocabulary is empty", OTHER)
    if (layers := getattr(config, "num_hidden_layers", 0) or 0) > MOST_LAYERS:
        return Refusal(f"says that it has {layers:,} layers, more than {MOST_LAYERS:,}", OTHER)
    return None


def _layers(config: object) -> Refusal | None:
    """Layers that differ in more than the heads of their type, or read other layers' keys."""
    if getattr(config, "is_heterogeneous", False):
        heads = layer_heads(config)
        kinds = dict.fromkeys(zip(kinds_of(config) or [FULL_KIND] * len(heads), heads, strict=False))
        alike = len({kind for kind, _ in kinds}) == len(kinds)
        if not alike or not set(getattr(config, "per_layer_attributes", ("unknown",))) <= HEADS:
            return Refusal("has layers of different kinds or sizes (per_layer_config), which is not implemented", OTHER)
    if getattr(config, "num_kv_shared_layers", 0) and not _declares(config, "num_kv_shared_layers"):
        return Refusal("says that layers read the keys of others, which its family does not have", OTHER)
    return None


def _declares(config: object, field: str) -> bool:
    """Whether the code of a family knows a field, rather than a file alone."""
    return hasattr(type(config), field)


def _state(config: object) -> Refusal | None:
    """Running states in another way than those that were compared."""
    family, kinds = getattr(config, "model_type", ""), set(kinds_of(config))
    if is_hybrid(config):
        if not kinds & RECURRENT or not attending_layers(config):
            return Refusal("has recurrent layers alone, or does not name them (layer_types)", FULL)
        least, most = getattr(config, "time_step_limit", None) or (0.0, math.inf)
        return Refusal(CLAMPED.replace("min", "limit"), FULL) if least > 0 or most < math.inf else None
    if family in HYBRIDS_REFUSED:
        return Refusal(HYBRIDS_REFUSED[family], FULL)
    if others := sorted(kind for kind in kinds if not kind.endswith("attention") or kind == "linear_attention"):
        return Refusal(f"{STATE} (layers of the type {others[0]})", FULL)
    return None


def _partial(config: object) -> Refusal | None:
    """Layers that attend to other tokens than a window, a chunk, or all up to their own; values unlike keys."""
    family, kinds = getattr(config, "model_type", ""), set(kinds_of(config))
    hybrid = is_hybrid(config)
    known = {FULL_KIND} | RECURRENT | WITHOUT_BOTH if hybrid else KINDS
    if others := sorted(kinds - known):
        return Refusal(f"does not attend to its whole context in every layer (layers of the type {others[0]})", FULL)
    if family in FAMILIES and (hybrid or not _declares(config, "layer_types")):
        # Whoever wrote a window that the family's code does not know expects it
        if not hybrid and (windowed := kinds - {FULL_KIND}):
            return Refusal(f"{UNUSED} (layers of the type {min(windowed)})", FULL)
        for field, what in (("sliding_window", "a window"), ("attention_chunk_size", "chunks")):
            if (size := getattr(config, field, None)) and not _declares(config, field):
                return Refusal(f"{UNUSED} ({what} of {size} tokens)", FULL)
    both_ways = getattr(config, "use_bidirectional_attention", None)
    if getattr(config, "is_causal", None) is False or (both_ways and both_ways != "vision"):  # text has no pictures
        return Refusal("attends to tokens that follow, which is not implemented", FULL)
    values = getattr(config, "v_head_dim", None)
    if getattr(config, "kv_lora_rank", None) or (values and values != getattr(config, "head_dim", None)):
        return Refusal("has values of another size than its keys (latent attention), which no cache here holds", OTHER)
    return None


def _rope(config: object) -> Refusal | None:
    """Rotary positions that change with the length of the text, or of a kind that was not compared."""
    for kind in (part.get("rope_type", "default") for part in rope_parts(config)):
        if kind in ROPE_THAT_MOVES:
            return Refusal(
                f"changes its rotary frequencies with the length of the text ({kind}), so that keys cannot be kept",
                FIXED,
            )
        if kind not in FIXED_ROPE:
            return Refusal(f"has rotary positions of the kind {kind!r}, which were not tested", OTHER)
    return None
