"""The part of a checkpoint that reads and writes text, where the model sees or hears too: it alone is loaded.

transformers has a text model for most of them; for those of Qwen-VL it is the plain one of the same sizes, as text
alone has the same position in all three of their rotary dimensions.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING, PreTrainedConfig

# Kinds of models whose text part is compared with the whole (tests/core/models/test_text_part.py iterates over them)
WHOLES = frozenset(
    {
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "idefics3",
        "internvl",
        "llama4",
        "llava",
        "llava_next",
        "llava_onevision",
        "mistral3",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "smolvlm",
    }
)
PLAIN: Mapping[str, str] = MappingProxyType(
    {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
)
# Names of weights, as they are stored and as the text model calls them; the rest belongs to eyes and ears
NAMES: Mapping[str, str] = MappingProxyType(
    {
        r"^model\.(language_model|text_model)\.": "model.",
        r"^language_model\.model\.": "model.",
        r"^language_model\.lm_head\.": "lm_head.",
    }
)
STORED = (
    "model.language_model.",
    "model.text_model.",
    "language_model.",
    "model.layers.",
    "model.embed",
    "model.norm.",
)


def text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text part; the same one if there is no other part, or none that was compared."""
    whole = cast(Any, config)
    if whole.model_type not in WHOLES:
        return config
    part = whole.get_text_config(decoder=True)
    fields = part.to_dict()
    kind = PLAIN.get(fields.pop("model_type"))
    if kind is not None:
        fields["rope_parameters"] = {
            name: value for name, value in (part.rope_parameters or {}).items() if not name.startswith("mrope")
        }
        part = CONFIG_MAPPING[kind](**fields)
    # The weights decide: transformers ties what is stored once, or twice with the same numbers
    part.tie_word_embeddings = bool(whole.tie_word_embeddings or part.tie_word_embeddings)
    part.dtype = part.dtype or whole.dtype
    if (ends := getattr(whole, "eos_token_id", None)) is not None:
        part.eos_token_id = ends
    if (quantised := getattr(whole, "quantization_config", None)) is not None:
        part.quantization_config = quantised
    return cast(PreTrainedConfig, part)


def text_bytes(files: Sequence[Path]) -> int:
    """Bytes of the weights of the text part; of all weights in files of another format than safetensors."""
    total = 0
    for file in files:
        try:
            with safe_open(file, "pt") as weights:
                total += sum(_bytes(weights, name) for name in weights.keys() if _is_text(name))  # noqa: SIM118
        except (OSError, SafetensorError):  # loading says what is wrong
            total += file.stat().st_size
    return total


class Stored(NamedTuple):
    """How files store weights."""

    narrow: torch.dtype | None  # the 16 bits that all matrices have; None: others, or several types
    packed_bytes: int  # of all weights, matrices in their 16 bits and the rest in 32; 0: not known


UNKNOWN = Stored(None, 0)


def stored_weights(files: Sequence[Path], *, whole: bool, tied: bool) -> Stored:
    """How the weights that are loaded are stored; unknown in files of another format than safetensors.

    Args:
        whole: whether all weights are loaded, or those of the text part alone.
        tied: whether the output layer has the embeddings' weights, even if the files have others for it.
    """
    try:
        stamps = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
        found = [weight for stamp in stamps for weight in _weights(*stamp)]
    except (OSError, SafetensorError):  # damaged: loading says so
        return UNKNOWN
    loaded = [one for one in found if (whole or _is_text(one[0])) and not (tied and one[0].endswith("lm_head.weight"))]
    types = {kind for _, kind, shape in loaded if len(shape) > 1}
    size = sum(prod(shape) * (2 if _is_packed(*weight) else 4) for weight in loaded for shape in weight[2:])
    return Stored(NARROW.get(next(iter(types))) if len(types) == 1 else None, size)


def _is_packed(name: str, kind: str, shape: tuple[int, ...]) -> bool:
    return kind in NARROW and len(shape) == 2 and "experts" not in name.split(".")


@lru_cache(maxsize=256)
def _weights(file: Path, _size: int, _changed: int) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Name, type and shape of the weights in a file."""
    with safe_open(file, "pt") as weights:
        parts = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        return tuple((name, part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items())


NARROW = MappingProxyType({"F16": torch.float16, "BF16": torch.bfloat16})


def _is_text(name: str) -> bool:
    return name.startswith(STORED) or "lm_head." in name


def _bytes(weights: Any, name: str) -> int:
    part = weights.get_slice(name)
    size = SIZES.get(part.get_dtype(), 4)
    for length in part.get_shape():
        size *= length
    return size


SIZES = MappingProxyType({"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1})
