"""The part of a checkpoint that reads and writes text, where the model sees or hears too: it alone is loaded.

transformers has a text model for most of them; for those of Qwen-VL it is the plain one of the same sizes, as text
alone has the same position in all three of their rotary dimensions.
"""

import re
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
COMPARED = """
    gemma3 gemma3n gemma4 gemma4_unified idefics3 internvl llama4 llava llava_next llava_onevision mistral3 qwen2_5_vl
    qwen2_vl qwen3_5 qwen3_5_moe qwen3_vl smolvlm
"""
WHOLES = frozenset(COMPARED.split())
PLAIN = MappingProxyType({"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"})
# Names of weights, as they are stored and as the text model calls them; the rest belongs to eyes and ears
NAMES: Mapping[str, str] = MappingProxyType(
    {
        r"^model\.(language_model|text_model)\.": "model.",
        r"^language_model\.model\.": "model.",
        r"^language_model\.lm_head\.": "lm_head.",
    }
)
TEXT = re.compile(r"(model\.)?language_model\.|model\.(text_model\.|layers\.|embed|norm\.)|.*lm_head\.")
FIRST = 256  # rows of the vocabulary that tell an output layer from the embeddings
FRACTIONS = {"F64", "F32", "F16", "BF16"}
NARROW = MappingProxyType({"F16": torch.float16, "BF16": torch.bfloat16})


def text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text part; the same one if there is no other part, or none that was compared."""
    whole = cast(Any, config)
    if whole.model_type not in WHOLES:
        return config
    part = whole.get_text_config(decoder=True)
    part.architectures = None  # some checkpoints name the whole's
    fields = part.to_dict()
    kind = PLAIN.get(fields.pop("model_type"))
    if kind is not None:
        fields["rope_parameters"] = {
            name: value for name, value in (part.rope_parameters or {}).items() if not name.startswith("mrope")
        }
        part = CONFIG_MAPPING[kind](**fields)
    # The weights decide (`has_own_output`); several kinds' own default is to tie
    part.tie_word_embeddings = bool(whole.tie_word_embeddings or part.tie_word_embeddings)
    part.dtype = part.dtype or whole.dtype
    for name in ("eos_token_id", "quantization_config"):
        if (stated := getattr(whole, name, None)) is not None:
            setattr(part, name, stated)
    return cast(PreTrainedConfig, part)


class Stored(NamedTuple):
    """How files store the weights that are loaded."""

    narrow: torch.dtype | None = None  # the 16 bits that all matrices have; None: others, or several types
    packed_bytes: int = 0  # of all weights, matrices in their 16 bits and the rest in 32; 0: not known
    num_bytes: int = 0  # in the files
    quantised: str = ""  # the type of a matrix that is not stored as a fraction; "": there is none


def stored_weights(files: Sequence[Path], *, whole: bool, tied: bool) -> Stored:
    """How the weights that are loaded are stored; in files of another format than safetensors, nothing is known.

    Args:
        whole: whether all weights are loaded, or those of the text part alone.
        tied: whether the output layer has the embeddings' weights, even if the files have others for it.
    """
    try:
        stamps = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        found = [weight for stamp in stamps for weight in _weights(*stamp) if whole or TEXT.match(weight[0])]
    except (OSError, SafetensorError):  # damaged: loading says so
        return Stored()
    held = sum(prod(shape) * _bytes(kind) for _, kind, shape in found)
    loaded = [weight for weight in found if not (tied and weight[0].endswith("lm_head.weight"))]
    types = {kind for _, kind, shape in loaded if len(shape) > 1}
    size = sum(prod(shape) * (2 if _is_packed(name, kind, shape) else 4) for name, kind, shape in loaded)
    weights = {kind for name, kind, shape in loaded if len(shape) > 1 and name.endswith("weight")}
    quantised = next(iter(sorted(weights - FRACTIONS)), "")
    return Stored(NARROW.get(types.pop()) if len(types) == 1 else None, size, held, quantised)


def has_own_output(files: Sequence[Path]) -> bool:
    """Whether files store an output layer that differs from the embeddings in its first rows.

    transformers ties what is stored once, or twice with the same numbers, and only where the configuration says so.
    """
    try:
        held = {
            part: (file, name)
            for file in files
            for name, _, _ in _weights(file, file.stat().st_size, file.stat().st_mtime_ns)
            for part in ("embed_tokens", "lm_head")
            if name.endswith(f"{part}.weight") and TEXT.match(name)
        }
        return len(held) == 2 and not torch.equal(*(_first_rows(*place) for place in held.values()))
    except (OSError, SafetensorError):  # damaged: loading says so
        return False


def _first_rows(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, "pt") as weights:
        return cast(torch.Tensor, weights.get_slice(name)[:FIRST]).float()


def _bytes(kind: str) -> int:
    """Of one number; the type says its bits, such as BF16 or F8_E4M3."""
    bits = re.search(r"\d+", kind)
    return int(bits[0]) // 8 if bits else 1


def _is_packed(name: str, kind: str, shape: tuple[int, ...]) -> bool:
    return kind in NARROW and len(shape) == 2 and "experts" not in name.split(".")


@lru_cache(maxsize=256)
def _weights(file: Path, _size: int, _changed: int) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Name, type and shape of the weights in a file."""
    with safe_open(file, "pt") as weights:
        parts = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        return tuple((name, part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items())
