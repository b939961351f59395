"""Reads what a model is before its weights: configuration, the sizes that caches and plans need, tokenizer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from core.caches.base import KVShape
from core.errors import CoreError, DamagedAssets, UnsupportedModel
from core.models.experts import Experts, experts_of
from core.models.families import DRAFTS, QUANTISED, SIXTEEN, WITH_SINKS, is_hybrid, refusal
from core.models.hub.catalog import restore_hint
from core.models.hub.store import GGUF, TOKENIZERS, name_of, weight_files
from core.models.layer_reach import (
    NO_STATE,
    StateSize,
    attending_layers,
    layer_heads,
    reaches_of,
    read_again,
    rope_parts,
    state_size,
    stretched,
)
from core.models.layerwise import PLAIN_FAMILIES
from core.models.text_part import WHOLES, Stored, has_own_output, stored_weights, text_part
from core.ops.reach import Reach

NOTHING: Mapping[str, Any] = MappingProxyType({})
MISREAD = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, ImportError,
    StrictDataclassError,
)  # fmt: skip
OWN_CODE = "needs Python code that comes with it, which never runs here."
DECODERS = "Choose a decoder-only text model such as Llama, Mistral or Qwen."


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Sizes of a model as its config.json states them; enough to plan memory before anything is loaded."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_context: int
    weight_bytes: int  # on disk
    disk_dtype: torch.dtype
    packed_bytes: int = 0  # of weights that a processor keeps in the bits of their file; 0: not known
    narrow: int = 0  # numbers of linear layers that are in no more bits there than a self-draft's
    layerwise: bool = False  # whether its layers can be called one by one (`core.models.layerwise`)
    drafts: bool = True  # whether it can be a draft, whose keys must move (`core.models.rotary`)
    intermediate_size: int = 0  # of an MLP; 0: not known
    reaches: tuple[Reach | None, ...] = ()  # see `KVShape`
    kv_dtype: torch.dtype | None = None  # of keys and values, where it is not the type of computation
    plain: bool = True  # whether attention is the plain causal one in every layer
    again: tuple[int, ...] = ()  # see `KVShape`; as many of the layers, the last ones, have no keys of their own
    windowed_heads: tuple[int, int] | None = None
    attending: tuple[int, ...] = ()  # of a model with recurrent layers: those that attend, see `KVShape`
    state: StateSize = NO_STATE  # of all recurrent layers
    tied: bool = True  # whether the embeddings are the output layer's weights, too

    def pass_share(self, num_parameters: int) -> float:
        """Share of so many parameters that a pass reads: all but embeddings that are not the output layer's, too."""
        return 1.0 if self.tied else 1 - self.vocab_size * self.hidden_size / num_parameters

    @property
    def num_kv_layers(self) -> int:
        """Layers with keys and values of their own."""
        return (len(self.attending) or self.num_layers) - len(self.again)

    @property
    def full_layers(self) -> int:
        """Number of layers with keys of their own that attend to all tokens."""
        own = self.num_kv_layers
        return own - sum(map(bool, self.reaches[:own]))

    def shape(self, dtype: torch.dtype, device: torch.device) -> KVShape:
        """The shape that a cache needs."""
        own = self.num_kv_layers
        heads = (own, self.num_heads, self.num_kv_heads, self.head_dim)
        others = (self.reaches[:own], self.again, self.windowed_heads)
        return KVShape(*heads, dtype, device, *others, attending=self.attending, narrow=self.kv_dtype)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on a device."""

    module: nn.Module
    dims: ModelDims
    shape: KVShape
    eos_ids: frozenset[int]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters in memory."""
        return sum(p.nbytes for p in self.module.parameters())

    @property
    def experts(self) -> Experts | None:
        """The experts of a mixture, which are as wide as computation; None: it is none."""
        return experts_of(self.module, cast(PreTrainedConfig, self.module.config))


def read_config(folder: Path, overrides: Mapping[str, Any] = NOTHING) -> PreTrainedConfig:
    """The configuration in a folder's config.json, or in a file of that kind; `overrides` replace its fields.

    Of a model that sees or hears too, the text part's.

    Raises:
        DamagedAssets: it is unreadable.
        UnsupportedModel: transformers does not know this kind of model, or only with code of the model's own.
    """
    if folder.suffix == GGUF:
        from core.models.gguf_file import GgufFile

        return GgufFile.read(folder).config()
    try:
        found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **overrides)
        part = text_part(cast(PreTrainedConfig, found))
        cast(Any, part)._attn_implementation = "eager"  # the file may name one that is not installed; ours is given
        if part is not found:
            for field, value in overrides.items():
                setattr(part, field, value)
        if getattr(part, "tie_word_embeddings", False) and folder.is_dir() and has_own_output(weight_files(folder)):
            cast(Any, part).tie_word_embeddings = False
        return part
    except MISREAD as error:
        name, kind = name_of(folder), stated_kind(folder)
        if "auto_map" in _fields(folder / "config.json" if folder.is_dir() else folder):
            raise UnsupportedModel(f"{name} {OWN_CODE}", hint=DECODERS) from error
        if kind is not None and kind not in CONFIG_MAPPING:
            raise UnsupportedModel(
                f"{name} is a model of the kind {kind!r}, which transformers does not know.", hint=DECODERS
            ) from error
        which = "config.json in " if folder.is_dir() else "configuration "
        raise DamagedAssets(f"The model's {which}{name} is unreadable.", hint=restore_hint(folder)) from error


def _fields(file: Path) -> dict[str, Any]:
    """The fields of a JSON file; none if it is unreadable."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def stated_kind(folder: Path) -> str | None:
    """The family that a folder's config.json names."""
    kind = _fields(folder / "config.json" if folder.is_dir() else folder).get("model_type")
    return kind if isinstance(kind, str) else None


def read_dims(folder: Path, overrides: Mapping[str, Any] = NOTHING) -> ModelDims:
    """Sizes from config.json and of the weights beside it.

    Raises:
        UnsupportedModel: as `dims_of`.
        DamagedAssets: config.json is unreadable.
    """
    config = read_config(folder, overrides)
    if folder.suffix == GGUF:
        from core.models.gguf_file import GgufFile

        held = GgufFile.read(folder)
        dims = dims_of(config, folder.stem, weight_bytes=held.parameters * held.dtype.itemsize)
        return replace(dims, disk_dtype=held.dtype, packed_bytes=held.packed_bytes, narrow=held.narrow)
    stored, size = stored_as(folder, config), sum(file.stat().st_size for file in weight_files(folder))
    if stored.quantised:
        raise UnsupportedModel(f"{name_of(folder)} {QUANTISED.format(stored.quantised)}.", hint=SIXTEEN)
    if stated_kind(folder) in WHOLES and stored.num_bytes:
        size = stored.num_bytes
    return replace(dims_of(config, name_of(folder), weight_bytes=size), packed_bytes=stored.packed_bytes)


def stored_as(folder: Path, config: PreTrainedConfig) -> Stored:
    """How a folder's files store the weights that are loaded."""
    if getattr(config, "quantization_config", None) is not None:
        return Stored()
    tied = bool(getattr(config, "tie_word_embeddings", False))
    return stored_weights(weight_files(folder), whole=stated_kind(folder) not in WHOLES, tied=tied)


def dims_of(model_config: PreTrainedConfig, name: str, *, weight_bytes: int) -> ModelDims:
    """Sizes from a configuration.

    Raises:
        UnsupportedModel: not a decoder-only text model, or one that would not run exactly (`core.models.families`).
    """
    config = cast(Any, model_config)
    _refuse_others(config, name)
    recurrent = is_hybrid(config)
    reaches = () if recurrent else reaches_of(config)
    again = read_again(config)
    heads, windowed_heads = _heads(config, reaches)
    capped = bool(getattr(config, "attn_logit_softcapping", None)) or config.model_type in WITH_SINKS
    widths = getattr(config, "intermediate_size", None) or 0
    return ModelDims(
        num_layers=int(config.num_hidden_layers),
        num_heads=int(config.num_attention_heads),
        num_kv_heads=heads[0],
        head_dim=heads[1],
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        max_context=max(int(config.max_position_embeddings), *map(stretched, rope_parts(config))),
        weight_bytes=weight_bytes,
        disk_dtype=config.dtype or torch.float32,
        layerwise=config.model_type in PLAIN_FAMILIES and not reaches,
        drafts=config.model_type in DRAFTS,
        intermediate_size=int(max(widths) if isinstance(widths, list) else widths),
        reaches=reaches,
        plain=not (reaches or capped or again or recurrent),
        again=again,
        windowed_heads=windowed_heads,
        attending=attending_layers(config) if recurrent else (),
        state=state_size(config) if recurrent else NO_STATE,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )


def _refuse_others(config: Any, name: str) -> None:
    built_for = [str(part) for part in getattr(config, "architectures", None) or ()]
    writes = not built_for or any(part.endswith(("ForCausalLM", "LMHeadModel")) for part in built_for)
    # If layers differ, there is no single number of heads
    attends = getattr(config, "is_heterogeneous", False) or getattr(config, "num_attention_heads", None)
    problem, hint = "", DECODERS
    if getattr(config, "is_encoder_decoder", False) or not attends or not writes:
        problem = "is not a decoder-only text model" + (f" ({built_for[0]})" if built_for else "")
        if config.model_type in WHOLES:  # of a file or a folder, `read_config` takes the text part
            problem = "is a whole model that sees or hears, of which only the text part runs here"
            hint = "Give its folder, or the text part alone."
        elif getattr(config, "text_config", None) is not None:
            problem = f"sees or hears, and the text part of such models ({config.model_type}) was not compared"
    elif (refused := refusal(config)) is not None:
        problem, hint = refused
    elif not isinstance(config.dtype or torch.float32, torch.dtype):
        problem = "names no type of its numbers that is known"
    if problem:
        raise UnsupportedModel(f"{name} {problem}.", hint=hint)


def _heads(config: Any, reaches: Sequence[Reach | None]) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """KV heads and their dimension, and those of windowed layers if they are others."""
    if not (stated := layer_heads(config)):
        heads = int(config.num_attention_heads)
        dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        return (int(getattr(config, "num_key_value_heads", None) or heads), dim), None
    by_kind = {reach is None: own for reach, own in zip(reaches or (None,) * len(stated), stated, strict=True)}
    full = by_kind.get(True, stated[0])
    windowed = by_kind.get(False, full)
    return full, windowed if windowed != full else None


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Raises:
        DamagedAssets: its files are missing or unreadable.
    """
    known = [name for name in TOKENIZERS if (folder / name).is_file()]
    if known == ["tekken.json"]:
        raise UnsupportedModel(
            f"The tokenizer in {name_of(folder)} is tekken.json alone, which has no marks of turns and ends.",
            hint="Choose a copy of the model with tokenizer.json.",
        )
    try:
        if folder.suffix == GGUF:
            from core.models.gguf_file import load_gguf_words

            return load_gguf_words(folder)
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except CoreError:
        raise
    except Exception as error:  # of the tokenizers library, too, which has no other class for them
        if isinstance(error, ImportError) or (known == ["tokenizer.model"] and find_spec("sentencepiece") is None):
            raise UnsupportedModel(
                f"The tokenizer in {name_of(folder)} is in an old format that needs another package.",
                hint="Install sentencepiece and protobuf into this environment and start again.",
            ) from error
        if "auto_map" in _fields(folder / "tokenizer_config.json"):
            raise UnsupportedModel(f"The tokenizer in {name_of(folder)} {OWN_CODE}", hint=DECODERS) from error
        raise DamagedAssets(f"The tokenizer in {name_of(folder)} is unreadable.", hint=restore_hint(folder)) from error
    words = cast(PreTrainedTokenizerBase, found)
    words.chat_template = words.chat_template or _fields(folder / "chat_template.json").get("chat_template")
    return words


def same_tokens(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    """True if both tokenizers give every token the same number, so that a draft can guess for a target.

    Tokens that only one of them has in addition (padding, for example) do not matter: the text never has them, and a
    wrong guess is rejected.
    """
    words_a, words_b = a.get_vocab(), b.get_vocab()
    only_one = words_a.items() ^ words_b.items()
    added_to_one = set(a.get_added_vocab()) ^ set(b.get_added_vocab())
    return {word for word, number in only_one if word != f"[PAD{number}]"} <= added_to_one  # llama.cpp's converter adds
