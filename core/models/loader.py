"""Models as transformers loads them, with our attention function, and what caches must know of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from core.caches.base import KVShape
from core.errors import DamagedAssets, UnsupportedModel
from core.models.catalog import restore_hint
from core.models.linear import use_few_rows_linear
from core.models.seam import ATTENTION_NAME, register
from core.ops.backend import STOCK, Backend


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

    def shape(self, dtype: torch.dtype, device: torch.device) -> KVShape:
        """What a cache must know."""
        return KVShape(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim, dtype, device)


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


def read_config(folder: Path) -> PreTrainedConfig:
    """What the config.json in a folder says, or a file of that kind.

    Raises:
        DamagedAssets: it is unreadable.
    """
    try:
        return cast(PreTrainedConfig, AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        which = "config.json in " if folder.is_dir() else "configuration "
        raise DamagedAssets(f"The model's {which}{folder.name} is unreadable.", hint=restore_hint(folder)) from error


def read_dims(folder: Path) -> ModelDims:
    """Sizes from config.json and of the weights beside it.

    Raises:
        UnsupportedModel: not a decoder-only text model, or one with windowed layers.
        DamagedAssets: config.json is unreadable.
    """
    config = read_config(folder)
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    return dims_of(config, folder.name, weight_bytes=sum(file.stat().st_size for file in files))


def dims_of(model_config: PreTrainedConfig, name: str, *, weight_bytes: int) -> ModelDims:
    """Sizes from a configuration.

    Raises:
        UnsupportedModel: not a decoder-only text model, or one with windowed layers.
    """
    config = cast(Any, model_config)
    hint = "Choose a decoder-only text model such as Llama, Mistral or Qwen."
    if getattr(config, "is_encoder_decoder", False) or not getattr(config, "num_attention_heads", None):
        raise UnsupportedModel(f"{name} is not a decoder-only text model.", hint=hint)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = "sliding_attention" in kinds or (
        getattr(config, "model_type", "") == "mistral" and getattr(config, "sliding_window", None)
    )
    if windowed or kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(
            f"{name} does not attend to its whole context in every layer.",
            hint="Choose a model with full attention.",
        )
    heads = int(config.num_attention_heads)
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
    )


def load_model(
    folder: Path, dims: ModelDims, dtype: torch.dtype, device: torch.device, backend: Backend = STOCK
) -> LoadedModel:
    """Load a causal language model for inference through our caches.

    Raises:
        DamagedAssets: weights are missing, truncated or do not match the config.
        UnsupportedModel: transformers has no causal language model for it.
    """
    return prepared(load_module(folder, dtype), dims, dtype, device, backend)


def load_module(folder: Path, dtype: torch.dtype) -> nn.Module:
    """What transformers loads from a folder, on the CPU, with our attention function.

    Raises:
        DamagedAssets, UnsupportedModel: as `load_model`.
    """
    register()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the app and the commands show their own
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=ATTENTION_NAME, local_files_only=True
        )
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DamagedAssets(
            f"The weights in {folder.name} are missing or damaged.", hint=restore_hint(folder)
        ) from error
    except ValueError as error:
        raise UnsupportedModel(f"{folder.name} cannot be loaded as a text model.", hint="Choose another.") from error
    return cast(nn.Module, model)


def prepared(
    model: nn.Module, dims: ModelDims, dtype: torch.dtype, device: torch.device, backend: Backend = STOCK
) -> LoadedModel:
    """A module of transformers made ready to compute on a device."""
    module = model.to(device).eval().requires_grad_(False)
    if backend.linear is not None:
        use_few_rows_linear(module, backend.linear)
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
    try:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError) as error:
        raise DamagedAssets(f"The tokenizer in {folder.name} is unreadable.", hint=restore_hint(folder)) from error


def same_tokens(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    """True where both tokenizers give every token the same number, so that a draft can guess for a target."""
    return a.get_vocab() == b.get_vocab()
