"""Loads models with transformers and our attention function, and reads the sizes that caches need."""

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from core.caches.base import KVShape
from core.errors import DamagedAssets, NotEnoughMemory, UnsupportedModel
from core.models.experts import Experts, experts_of
from core.models.families import FAMILIES, WITH_SINKS, refusal
from core.models.gguf_file import ENDING, GgufFile, load_gguf, require_package
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import restore_hint
from core.models.hub.store import name_of, weight_files
from core.models.layer_reach import attending_layers, layer_heads, reaches_of, read_again
from core.models.layerwise import PLAIN_FAMILIES
from core.models.linear import use_few_rows_norm, use_few_rows_silu, use_packed_linear
from core.models.quantised import FORMATS, quantise
from core.models.state_size import NO_STATE, StateSize, state_size
from core.models.text_part import NAMES, WHOLES, text_bytes, text_part
from core.ops.backend import STOCK, Backend
from core.ops.reach import Reach

NOTHING: Mapping[str, Any] = MappingProxyType({})
MISREAD = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StrictDataclassError)
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
    layerwise: bool = False  # whether its layers can be called one by one (`core.models.layerwise`)
    drafts: bool = True  # whether it can be a draft, whose keys must move (`core.models.rotary`)
    intermediate_size: int = 0  # of an MLP; 0: not known
    reaches: tuple[Reach | None, ...] = ()  # see `KVShape`
    capped: bool = False
    kv_dtype: torch.dtype | None = None  # of keys and values, where it is not the type of computation
    plain: bool = True  # whether attention is the plain causal one in every layer
    again: tuple[int, ...] = ()  # see `KVShape`; as many of the layers, the last ones, have no keys of their own
    windowed_heads: tuple[int, int] | None = None
    attending: tuple[int, ...] = ()  # of a model with recurrent layers: those that attend, see `KVShape`
    state: StateSize = NO_STATE  # of all recurrent layers

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
        others = (self.reaches[:own], self.capped, self.again, self.windowed_heads)
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
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    @property
    def pass_bytes(self) -> int:
        """Bytes of the parameters that a pass reads: all but embeddings that are not the output layer's weights too."""
        module = cast(Any, self.module)
        used = {id(part) for part in module.get_output_embeddings().parameters()}
        apart = [part.nbytes for part in module.get_input_embeddings().parameters() if id(part) not in used]
        return self.weight_bytes - int(sum(apart))

    @property
    def experts(self) -> Experts | None:
        """The experts of a mixture, which are as wide as computation; None: it is none."""
        return experts_of(self.module, cast(PreTrainedConfig, self.module.config))


def read_config(folder: Path, overrides: Mapping[str, Any] = NOTHING) -> PreTrainedConfig:
    """The configuration in a folder's config.json, or in a file of that kind; `overrides` replace its fields.

    Of a model that sees or hears too, the text part's.

    Raises:
        DamagedAssets: it is unreadable.
        UnsupportedModel: transformers does not know this kind of model.
    """
    if folder.suffix == ENDING:
        return _gguf_config(folder)
    try:
        config = cast(PreTrainedConfig, AutoConfig.from_pretrained(folder, local_files_only=True, **overrides))
        part = text_part(config)
        for field, value in overrides.items() if part is not config else ():
            setattr(part, field, value)
        return part
    except MISREAD as error:
        if (kind := _stated_kind(folder)) is not None and kind not in CONFIG_MAPPING:
            raise UnsupportedModel(
                f"{name_of(folder)} is a model of the kind {kind!r}, which transformers does not know.", hint=DECODERS
            ) from error
        which = "config.json in " if folder.is_dir() else "configuration "
        raise DamagedAssets(
            f"The model's {which}{name_of(folder)} is unreadable.", hint=restore_hint(folder)
        ) from error


def _gguf_config(file: Path) -> PreTrainedConfig:
    """The configuration that a file's header stands for. Raises as `GgufFile.read` and `require_package`."""
    held = GgufFile.read(file)
    require_package()
    return copy.deepcopy(_gguf_parsed(file, tuple(held.fields.items()), file.stat().st_mtime_ns))


@functools.lru_cache(maxsize=8)  # a vocabulary takes seconds
def _gguf_parsed(file: Path, fields: tuple[tuple[str, Any], ...], _changed: int) -> PreTrainedConfig:
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in fields}
    try:
        found = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True, **options)
    except MISREAD as error:
        raise DamagedAssets(f"The header of {file.name} is damaged.", hint="Fetch the file again.") from error
    return cast(PreTrainedConfig, found)


def _stated_kind(folder: Path) -> str | None:
    file = folder / "config.json" if folder.is_dir() else folder
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return kind if isinstance(kind, str) else None


def read_dims(folder: Path, overrides: Mapping[str, Any] = NOTHING) -> ModelDims:
    """Sizes from config.json and of the weights beside it.

    Raises:
        UnsupportedModel: as `dims_of`.
        DamagedAssets: config.json is unreadable.
    """
    config = read_config(folder, overrides)
    if folder.suffix == ENDING:
        held = GgufFile.read(folder)
        dims = dims_of(config, folder.stem, weight_bytes=held.parameters * held.dtype.itemsize)
        return replace(dims, disk_dtype=held.dtype)
    files = weight_files(folder)
    alone = _stated_kind(folder) not in WHOLES
    size = sum(file.stat().st_size for file in files) if alone else text_bytes(files)
    return dims_of(config, name_of(folder), weight_bytes=size)


def dims_of(model_config: PreTrainedConfig, name: str, *, weight_bytes: int) -> ModelDims:
    """Sizes from a configuration.

    Raises:
        UnsupportedModel: not a decoder-only text model, or one that would not run exactly (`core.models.families`).
    """
    config = cast(Any, model_config)
    built_for = [str(part) for part in getattr(config, "architectures", None) or ()]
    writes = not built_for or any(part.endswith(("ForCausalLM", "LMHeadModel")) for part in built_for)
    # If layers differ, there is no single number of heads
    attends = getattr(config, "is_heterogeneous", False) or getattr(config, "num_attention_heads", None)
    if getattr(config, "is_encoder_decoder", False) or not attends or not writes:
        what = f" ({built_for[0]})" if built_for else ""
        if config.model_type in WHOLES:  # of a file or a folder, `read_config` takes the text part
            raise UnsupportedModel(
                f"{name} is a whole model that sees or hears, of which only the text part runs here.",
                hint="Give its folder, or the text part alone.",
            )
        if getattr(config, "text_config", None) is not None:
            raise UnsupportedModel(
                f"{name} sees or hears, and the text part of such models ({config.model_type}) was not compared.",
                hint=DECODERS,
            )
        raise UnsupportedModel(f"{name} is not a decoder-only text model{what}.", hint=DECODERS)
    if (refused := refusal(model_config)) is not None:
        raise UnsupportedModel(f"{name} {refused.problem}.", hint=refused.hint)
    if not isinstance(config.dtype or torch.float32, torch.dtype):
        raise UnsupportedModel(f"{name} names no type of its numbers that is known.", hint=DECODERS)
    heads = int(config.num_attention_heads)
    family = FAMILIES[config.model_type]
    reaches = () if family.recurrent else reaches_of(config, everywhere=family.windows == "all")
    capped = bool(getattr(config, "attn_logit_softcapping", None))
    kv_heads, windowed_heads = _heads(config, reaches)
    again = read_again(config)
    widths = getattr(config, "intermediate_size", None) or 0
    return ModelDims(
        num_layers=int(config.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=kv_heads[0],
        head_dim=kv_heads[1],
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        max_context=int(config.max_position_embeddings),
        weight_bytes=weight_bytes,
        disk_dtype=config.dtype or torch.float32,
        layerwise=config.model_type in PLAIN_FAMILIES and not reaches,
        drafts=family.drafts,
        intermediate_size=int(max(widths) if isinstance(widths, list) else widths),
        reaches=reaches,
        capped=capped,
        plain=not (reaches or capped or again or family.recurrent) and config.model_type not in WITH_SINKS,
        again=again,
        windowed_heads=windowed_heads,
        attending=attending_layers(config) if family.recurrent else (),
        state=state_size(config) if family.recurrent else NO_STATE,
    )


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


def load_model(
    folder: Path,
    dims: ModelDims,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend = STOCK,
    divide: Callable[[nn.Module], None] | None = None,
    overrides: Mapping[str, Any] = NOTHING,
    bits: int | None = None,
) -> LoadedModel:
    """Load a causal language model for inference through our caches; with `bits` 8 or 4, quantised.

    Args:
        divide: keeps one rank's share, in place, before anything is moved to the device; `dims` are the share's.
    Raises:
        DamagedAssets: weights are missing, truncated or do not match the config.
        UnsupportedModel: transformers has no causal language model for it.
        NotEnoughMemory: the device is full.
    """
    return prepared(load_module(folder, dtype, overrides), dims, dtype, device, backend, divide, bits)


def load_module(folder: Path, dtype: torch.dtype, overrides: Mapping[str, Any] = NOTHING) -> nn.Module:
    """The model that transformers loads from a folder, on the CPU, with our attention function.

    Raises:
        DamagedAssets, UnsupportedModel: as `load_model`.
    """
    register()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the app and the commands show their own
    set_verbosity_error()  # type: ignore[no-untyped-call]  # errors in weights are reported below
    config = read_config(folder, overrides)
    try:
        if folder.suffix == ENDING:
            model, lacking = load_gguf(folder, config, dtype, ATTENTION_NAME)
        else:
            model, found = cast(Any, AutoModelForCausalLM).from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                output_loading_info=True,
                key_mapping=None if _stated_kind(folder) not in WHOLES else dict(NAMES),
            )
            lacking = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    except (OSError, KeyError, SafetensorError, RuntimeError) as error:
        raise DamagedAssets(
            f"The weights in {name_of(folder)} are missing or damaged.", hint=restore_hint(folder)
        ) from error
    except ValueError as error:
        raise UnsupportedModel(
            f"{name_of(folder)} cannot be loaded as a text model.", hint="Choose another."
        ) from error
    if lacking:  # transformers would use random numbers instead
        raise DamagedAssets(
            f"The weights in {name_of(folder)} do not fit its config.json: {lacking[0]} is missing or of another size.",
            hint=restore_hint(folder),
        )
    return model


def prepared(
    model: nn.Module,
    dims: ModelDims,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend = STOCK,
    divide: Callable[[nn.Module], None] | None = None,
    bits: int | None = None,
) -> LoadedModel:
    """Prepare a module of transformers to compute on a device.

    Raises:
        NotEnoughMemory: the device is full.
    """
    module = model.eval().requires_grad_(False)
    if divide is not None:
        divide(module)
    try:
        if bits in FORMATS:
            quantise(module, bits, device)
        module.to(device)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(
            "The weights do not fit into the memory that is free on the device.",
            hint="Close other programs that use it, or choose a smaller model.",
        ) from error
    if backend.kernel is not None:
        use_packed_linear(module, backend.kernel)
        use_few_rows_norm(module, backend.kernel.norm)
        use_few_rows_silu(module, backend.kernel.silu)
    elif device.type == "cpu":
        _column_major(module)
    eos: Any = getattr(cast(Any, model).generation_config, "eos_token_id", None)
    eos = cast(Any, model).config.eos_token_id if eos is None else eos
    ids = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return LoadedModel(module, dims, dims.shape(dtype, device), ids)


def _column_major(module: nn.Module) -> None:
    """Lay linear weights out input by input. Passes of few rows get faster (2 cores, float32, the bundled output layer:
    0.22 to 0.13 ms for 1 row, 0.37 to 0.24 ms for 3), long ones stay as fast; values and shapes stay the same."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.weight.data = part.weight.data.t().contiguous().t()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Raises:
        DamagedAssets: its files are missing or unreadable.
    """
    place, options = (folder.parent, {"gguf_file": folder.name}) if folder.suffix == ENDING else (folder, {})
    try:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(place, local_files_only=True, **options))
    except ImportError as error:
        raise UnsupportedModel(
            f"The tokenizer in {name_of(folder)} is in an old format that needs another package.",
            hint="Install sentencepiece and protobuf into this environment and start again.",
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise DamagedAssets(f"The tokenizer in {name_of(folder)} is unreadable.", hint=restore_hint(folder)) from error


def same_tokens(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    """True if both tokenizers give every token the same number, so that a draft can guess for a target.

    Tokens that only one of them has in addition (padding, for example) do not matter: the text never has them, and a
    wrong guess is rejected.
    """
    words_a, words_b = a.get_vocab(), b.get_vocab()
    only_one = words_a.items() ^ words_b.items()
    added_to_one = set(a.get_added_vocab()) ^ set(b.get_added_vocab())
    return {word for word, _ in only_one} <= added_to_one
