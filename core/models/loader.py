"""Loads models with transformers and our attention function, and reads the sizes that caches need."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
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
from core.models.families import FAMILIES, WITH_SINKS, refusal
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import restore_hint
from core.models.hub.store import weight_files
from core.models.layer_reach import reaches_of
from core.models.layerwise import PLAIN_FAMILIES
from core.models.linear import use_few_rows_linear, use_few_rows_norm, use_few_rows_silu
from core.models.quantised import FORMATS, quantise
from core.ops.backend import STOCK, Backend
from core.ops.reach import Reach

NOTHING: Mapping[str, Any] = MappingProxyType({})
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

    def shape(self, dtype: torch.dtype, device: torch.device) -> KVShape:
        """The shape that a cache needs."""
        heads = (self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)
        return KVShape(*heads, dtype, device, self.reaches, self.capped, self.kv_dtype)


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


def read_config(folder: Path, overrides: Mapping[str, Any] = NOTHING) -> PreTrainedConfig:
    """The configuration in a folder's config.json, or in a file of that kind; `overrides` replace its fields.

    Raises:
        DamagedAssets: it is unreadable.
        UnsupportedModel: transformers does not know this kind of model.
    """
    try:
        return cast(PreTrainedConfig, AutoConfig.from_pretrained(folder, local_files_only=True, **overrides))
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        if (kind := _stated_kind(folder)) is not None and kind not in CONFIG_MAPPING:
            raise UnsupportedModel(
                f"{folder.name} is a model of the kind {kind!r}, which transformers does not know.", hint=DECODERS
            ) from error
        which = "config.json in " if folder.is_dir() else "configuration "
        raise DamagedAssets(f"The model's {which}{folder.name} is unreadable.", hint=restore_hint(folder)) from error


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
    files = weight_files(folder)
    return dims_of(config, folder.name, weight_bytes=sum(file.stat().st_size for file in files))


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
        raise UnsupportedModel(f"{name} is not a decoder-only text model{what}.", hint=DECODERS)
    if (refused := refusal(model_config)) is not None:
        raise UnsupportedModel(f"{name} {refused.problem}.", hint=refused.hint)
    heads = int(config.num_attention_heads)
    family = FAMILIES[config.model_type]
    reaches = reaches_of(config, everywhere=family.windows == "all")
    capped = bool(getattr(config, "attn_logit_softcapping", None))
    return ModelDims(
        num_layers=int(config.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        max_context=int(config.max_position_embeddings),
        weight_bytes=weight_bytes,
        disk_dtype=config.dtype or torch.float32,
        layerwise=config.model_type in PLAIN_FAMILIES and not reaches,
        drafts=family.drafts,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 0),
        reaches=reaches,
        capped=capped,
        plain=not reaches and not capped and config.model_type not in WITH_SINKS,
    )


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
    try:
        model, found = cast(Any, AutoModelForCausalLM).from_pretrained(
            folder,
            config=read_config(folder, overrides),
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DamagedAssets(
            f"The weights in {folder.name} are missing or damaged.", hint=restore_hint(folder)
        ) from error
    except ValueError as error:
        raise UnsupportedModel(f"{folder.name} cannot be loaded as a text model.", hint="Choose another.") from error
    lacking = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    if lacking:  # transformers would use random numbers instead
        raise DamagedAssets(
            f"The weights in {folder.name} do not fit its config.json: {lacking[0]} is missing or of another size.",
            hint=restore_hint(folder),
        )
    return cast(nn.Module, model)


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
    if backend.linear is not None:
        use_few_rows_linear(module, backend.linear)
    elif device.type == "cpu":
        _column_major(module)
    if backend.norm is not None:
        use_few_rows_norm(module, backend.norm)
    if backend.silu is not None:
        use_few_rows_silu(module, backend.silu)
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
    try:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except ImportError as error:
        raise UnsupportedModel(
            f"The tokenizer in {folder.name} is in an old format that needs another package.",
            hint="Install sentencepiece and protobuf into this environment and start again.",
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise DamagedAssets(f"The tokenizer in {folder.name} is unreadable.", hint=restore_hint(folder)) from error


def same_tokens(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    """True if both tokenizers give every token the same number, so that a draft can guess for a target.

    Tokens that only one of them has in addition (padding, for example) do not matter: the text never has them, and a
    wrong guess is rejected.
    """
    words_a, words_b = a.get_vocab(), b.get_vocab()
    only_one = words_a.items() ^ words_b.items()
    added_to_one = set(a.get_added_vocab()) ^ set(b.get_added_vocab())
    return {word for word, _ in only_one} <= added_to_one
