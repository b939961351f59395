"""The part of a checkpoint that reads and writes text, where the model sees or hears too: it alone is loaded.

transformers has a text model for most of them; for those of Qwen-VL it is the plain one of the same sizes, as text
alone has the same position in all three of their rotary dimensions.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

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


def matrix_dtype(files: Sequence[Path], *, whole: bool) -> torch.dtype | None:
    """The type of 16 bits that all matrices have; None: they have others or several, or it is not known.

    Args:
        whole: whether all weights are loaded, or those of the text part alone.
    """
    try:
        stamps = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
        types = frozenset().union(*(_matrix_types(*stamp, whole) for stamp in stamps))
    except (OSError, SafetensorError):  # of another format than safetensors, or damaged: loading says so
        return None
    return NARROW.get(next(iter(types))) if len(types) == 1 else None


@lru_cache(maxsize=256)
def _matrix_types(file: Path, _size: int, _changed: int, whole: bool) -> frozenset[str]:
    with safe_open(file, "pt") as weights:
        parts = [weights.get_slice(name) for name in weights.keys() if whole or _is_text(name)]  # noqa: SIM118
        return frozenset(part.get_dtype() for part in parts if len(part.get_shape()) > 1)


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
