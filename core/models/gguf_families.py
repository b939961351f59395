"""What the GGUF files of each family call their sizes and weights, and how llama.cpp's converter laid those out.

A weight of transformers' model is filled from one tensor or several: gguf's own table of names says which, except for
the weights that `Family.parts` names. Each tensor fills a view of the weight, which undoes the converter's new order.
A family stands in FAMILIES once a test compares logits with those of the same weights in a folder.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedConfig

SIZES = {  # of every family: the header's names, without the family's, and those of configurations
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
CONTROL = 3  # the type of tokens that are no text
ENDS_OF_TEXT = frozenset(
    word.encode()
    for word in (
        *("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "[|endofturn|]"),
        *("<|END_OF_TURN_TOKEN|>", "<|return|>", "<|call|>", "<end_of_utterance>"),
    )
)
LENGTHS = tuple(1 << power for power in range(5, 21))  # of texts before positions were scaled


class Unknown(Exception):
    """A file has something that its family is not known to have; the message names it."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header's fields, and the shapes of its tensors."""

    family: str
    said: Mapping[str, Any]
    ends: tuple[int, ...]  # the tokens that end a text
    shapes: Mapping[str, tuple[int, ...]]

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the family's; of a list with the same number for every layer, the number."""
        value = self.said.get(f"{self.family}.{name}", default)
        return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value

    def has(self, tensor: str) -> bool:
        """Whether there is a weight of this name, in some layer."""
        return any(re.fullmatch(rf"(blk\.\d+\.)?{re.escape(tensor)}", name) for name in self.shapes)


class Part(NamedTuple):
    """The tensor that fills a weight, or a view of it, and how its numbers are changed back."""

    tensor: str
    view: Callable[[Tensor], Tensor] | None = None
    number: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family's files."""

    kind: str  # transformers' name
    partial: bool = False  # whether positions may turn a part of each head
    fields: Mapping[str, str] = field(default_factory=dict)  # besides SIZES
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what no header states
    more: Callable[[Header], dict[str, Any]] | None = None
    parts: Callable[[str, Any, Header], list[Part] | None] | None = None  # by transformers' name of a weight


def _halves(name: str, config: Any, header: Header) -> list[Part] | None:
    """Rows of queries and keys, which llama.cpp rotates as neighbours and transformers as halves of a head."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.([qk])_proj\.(weight|bias)", name)
    if not found:
        return None
    heads = config.num_attention_heads if found[2] == "q" else config.num_key_value_heads

    def view(weight: Tensor) -> Tensor:
        return weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).transpose(1, 2)

    return [Part(f"blk.{found[1]}.attn_{found[2]}.{found[3]}", view)]


FAMILIES: Mapping[str, Family] = {
    "llama": Family(kind="llama", parts=_halves),
    "qwen2": Family(kind="qwen2"),
    "qwen3": Family(kind="qwen3"),
}


def configuration(header: Header, frequencies: Tensor | None) -> PreTrainedConfig:
    """The configuration that a header stands for; `frequencies`: what the file divides rotary frequencies by.

    Raises:
        ValueError, KeyError: it states no model of its family.
        Unknown: it states something that is not known of its family.
    """
    family = FAMILIES[header.family]
    kind = CONFIG_MAPPING[family.kind]
    found: dict[str, Any] = {name: header.get(said) for said, name in ({**SIZES, **family.fields}).items()}
    found = {name: value for name, value in found.items() if value is not None}
    if hasattr(kind, "attention_bias"):
        found["attention_bias"] = header.has("attn_q.bias")
    found["vocab_size"] = header.shapes["token_embd.weight"][0]
    found["tie_word_embeddings"] = "output.weight" not in header.shapes
    found["bos_token_id"], found["pad_token_id"] = header.said.get("tokenizer.ggml.bos_token_id"), None
    found["eos_token_id"] = list(header.ends) or None
    head_dim = found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
    found["rope_parameters"] = _rope(header, head_dim, frequencies, partial=family.partial)
    found |= dict(family.fixed) | (family.more(header) if family.more else {})
    return kind(**found)


def _rope(header: Header, head_dim: int, frequencies: Tensor | None, *, partial: bool) -> dict[str, Any]:
    """Rotary positions, as transformers states them."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": header.get("rope.freq_base", 10_000.0)}
    turned = header.get("rope.dimension_count", head_dim)
    if turned != head_dim:
        if not partial:
            raise Unknown("positions in a part of each head")
        found["partial_rotary_factor"] = turned / head_dim
    kind = header.get("rope.scaling.type", "linear")
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear", 1.0)) or 1.0  # the latter: of 2023
    if kind in ("none", "linear"):
        if kind == "linear" and factor != 1:
            found |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        found |= _yarn(header, factor)
    else:
        raise Unknown(f"positions scaled as {kind!r}")
    if frequencies is not None:
        if found["rope_type"] != "default":
            raise Unknown(f"rotary frequencies of its own, and positions scaled as {kind!r}")
        found |= _llama3(found["rope_theta"], turned, frequencies)
    return found


def _yarn(header: Header, factor: float) -> dict[str, Any]:
    said = {name: header.get(f"rope.scaling.{name}") for name in ("yarn_ext_factor", "yarn_log_multiplier")}
    if said["yarn_ext_factor"] not in (None, 1) or said["yarn_log_multiplier"]:
        raise Unknown("positions scaled as a variant of YaRN")
    length = header.get("rope.scaling.original_context_length")
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    attention = header.get("rope.scaling.yarn_attn_factor")
    if attention is None and (usual := header.get("rope.scaling.attn_factor", 1.0)) != 1:
        attention = usual * (1 + 0.1 * math.log(factor))
    others = (
        ("attention_factor", attention),
        *((name, header.get(f"rope.scaling.yarn_{name}")) for name in ("beta_fast", "beta_slow")),
    )
    return found | {name: value for name, value in others if value is not None}


def _llama3(theta: float, turned: int, frequencies: Tensor) -> dict[str, Any]:
    """What Llama 3.1 and later state, of which a file has the result alone: a divisor for each frequency."""
    factor = float(frequencies.max())
    waves = 2 * math.pi * theta ** (torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    for length in LENGTHS:
        share = ((length / waves - 1) / 3).clamp(0, 1)  # low_freq_factor 1, high_freq_factor 4
        if waves.shape == frequencies.shape and torch.allclose(
            ((1 - share) / factor + share).reciprocal(), frequencies.double(), rtol=1e-4
        ):
            return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": length} | {
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
    raise Unknown("rotary frequencies of its own")


def parts_of(name: str, config: Any, header: Header, usual: str | None) -> list[Part]:
    """The tensors that fill one of transformers' weights; `usual`: by gguf's table, None: it has none.

    Raises:
        Unknown: the family's files are not known to hold it.
    """
    family = FAMILIES[header.family]
    if family.parts and (found := family.parts(name, config, header)) is not None:
        return found
    if usual is None:
        raise Unknown(f"the weight {name}")
    return [Part(usual)]


def ends_of_text(said: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text: those that the header names, and known ones of the vocabulary."""
    named = (said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    ends: set[int] = {end for end in named if end is not None}
    words, types = said["tokenizer.ggml.tokens"], said.get("tokenizer.ggml.token_type", ())
    known = {words[number]: number for number, kind in enumerate(types) if kind == CONTROL}
    found = {known[end] for end in ENDS_OF_TEXT & set(known)}
    return tuple(sorted(ends | found))
