"""Loads the weights of models with transformers and our attention function, and brings them to a device."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from core.errors import DamagedAssets, NotEnoughMemory, UnsupportedModel
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import restore_hint
from core.models.hub.store import GGUF, name_of
from core.models.linear import (
    PackedLinear,
    RowsInBits,
    pack,
    places,
    use_few_rows,
    use_fewer_launches,
)
from core.models.loader import NOTHING, LoadedModel, ModelDims, read_config, stated_kind, stored_as
from core.models.loading import load_meter
from core.models.quantised import FORMATS, quantise
from core.models.self_draft import quantised_linear
from core.models.text_part import NAMES, WHOLES
from core.ops import streams
from core.ops.backend import STOCK, Backend
from core.ops.host_memory import trim_heap
from core.ops.native import SmallRows

UNPACKING = 0.9  # of the time that weights of a GGUF file take that are widened; the rest packs them for the kernel


def load_model(
    folder: Path,
    dims: ModelDims,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend = STOCK,
    divide: Callable[[nn.Module], None] | None = None,
    overrides: Mapping[str, Any] = NOTHING,
    bits: int | None = None,
    *,
    embeds_from_host: bool = False,
) -> LoadedModel:
    """Load a causal language model for inference through our caches; with `bits` 8 or 4, quantised.

    Args:
        embeds_from_host: as of `prepared`.
        divide: keeps one rank's share, in place, before anything is moved to the device; `dims` are the share's.
    Raises:
        DamagedAssets: weights are missing, truncated or do not match the config.
        UnsupportedModel: transformers has no causal language model for it.
        NotEnoughMemory: the device or host memory is full. LoadingStopped: the user has stopped it.
    """
    in_bits = device.type == "cpu" and dtype == torch.float32 and divide is None
    in_bits &= bits not in FORMATS or backend.kernel is not None
    meter, as_stored = load_meter(), in_bits and backend.kernel is not None
    before, told = meter.done, dims.weight_bytes * UNPACKING
    module = load_module(folder, dtype, overrides, in_bits=in_bits, as_stored=as_stored, told_bytes=told)
    left = dims.weight_bytes - (meter.done - before)
    host = embeds_from_host
    return prepared(module, dims, dtype, device, backend, divide, bits, file_bytes=left, embeds_from_host=host)


def load_module(
    folder: Path,
    dtype: torch.dtype,
    overrides: Mapping[str, Any] = NOTHING,
    *,
    in_bits: bool = False,
    as_stored: bool = False,
    told_bytes: float = 0,
) -> nn.Module:
    """The model that transformers loads from a folder, on the CPU, with our attention function.

    Args:
        in_bits: matrices keep the 16 bits that the files have, and of a folder take no memory before they are used.
        as_stored, told_bytes: as of `load_gguf`.
    Raises:
        DamagedAssets, UnsupportedModel, NotEnoughMemory, LoadingStopped: as `load_model`.
    """
    register()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the app and the commands show their own
    set_verbosity_error()  # type: ignore[no-untyped-call]  # errors in weights are reported below
    config = read_config(folder, overrides)
    try:
        if folder.suffix == GGUF:
            from core.models.gguf_file import load_gguf

            kept = None if in_bits else dtype
            return load_gguf(folder, config, kept, ATTENTION_NAME, as_stored=as_stored, told_bytes=told_bytes)
        family, narrow = _family(config), stored_as(folder, config).narrow if in_bits else None
        with load_meter().stops_transformers():
            model, found = (family if narrow is None else _declaring(family, narrow)).from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                key_mapping=dict(NAMES) if stated_kind(folder) in WHOLES else None,
            )
    except (OSError, KeyError, SafetensorError, RuntimeError) as error:
        if "memory" in str(error):  # torch's and the system's words for too little of it
            raise _too_large("") from error
        raise DamagedAssets(
            f"The weights in {name_of(folder)} are missing or damaged.", hint=restore_hint(folder)
        ) from error
    except ValueError as error:
        raise UnsupportedModel(
            f"{name_of(folder)} cannot be loaded as a text model.", hint="Choose another."
        ) from error
    model.__class__ = family
    lacking = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    if lacking:  # transformers would use random numbers instead
        raise DamagedAssets(
            f"The weights in {name_of(folder)} do not fit its config.json: {lacking[0]} is missing or of another size.",
            hint=restore_hint(folder),
        )
    return cast(nn.Module, model)


def _too_large(where: str) -> NotEnoughMemory:
    return NotEnoughMemory(
        f"The weights do not fit into the memory that is free{where}.",
        hint="Close other programs that use it, or choose a smaller model.",
    )


def _family(config: PreTrainedConfig) -> Any:
    """transformers' class of causal language models of a configuration."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"no causal language model for {type(config).__name__}")
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _declaring(family: Any, narrow: torch.dtype) -> Any:
    """A class of the same name, whose models declare matrices in another type than their own.

    transformers converts every weight of a checkpoint to the type that the model declares for it. So matrices stay as
    they lie in the files (mapped, not read), while everything else is computed and converted in the model's type.
    """

    def declare(self: Any, *args: Any, **kwargs: Any) -> None:
        family.__init__(self, *args, **kwargs)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                parameter.data = parameter.data.to(narrow)

    return type(family.__name__, (family,), {"__init__": declare, "__module__": family.__module__})


def prepared(
    model: nn.Module,
    dims: ModelDims,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend = STOCK,
    divide: Callable[[nn.Module], None] | None = None,
    bits: int | None = None,
    *,
    file_bytes: float | None = None,
    embeds_from_host: bool = False,
) -> LoadedModel:
    """Prepare a module of transformers to compute on a device.

    Args:
        file_bytes: what is left of the weights' bytes, for the progress; None: all.
        embeds_from_host: the embeddings, which have weights of their own, stay in host memory, where a GPU reads them.
    Raises:
        NotEnoughMemory: the device is full. LoadingStopped.
    """
    module = model.eval().requires_grad_(False)
    if divide is not None:
        divide(module)
    bits = bits if bits in FORMATS else None
    try:
        if embeds_from_host:
            embeddings = module.get_input_embeddings()  # type: ignore[operator]
            rows = streams.of(device).mapped(embeddings.weight.to(dtype))
            embeddings.weight = nn.Parameter(rows, requires_grad=False)
        if bits is not None and backend.kernel is None:
            quantise(module, quantised_linear(bits, device))
        left = dims.weight_bytes if file_bytes is None else file_bytes
        _place(module, dtype, device, backend.kernel, bits, left)
    except torch.OutOfMemoryError as error:
        raise _too_large(" on the device") from error
    if device.type != "cpu":
        use_fewer_launches(module)
    if backend.kernel is not None:
        use_few_rows(module, backend.kernel)
    eos: Any = getattr(cast(Any, model).generation_config, "eos_token_id", None)
    eos = cast(Any, model).config.eos_token_id if eos is None else eos
    ids = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return LoadedModel(module, dims, dims.shape(dtype, device), ids)


def _place(
    module: nn.Module,
    dtype: torch.dtype,
    device: torch.device,
    kernel: SmallRows | None,
    bits: int | None,
    file_bytes: float,
) -> None:
    """Bring weights to their device, type and layout, part by part: none is there twice but those of one part.

    Args:
        bits: as of `pack`; the output layer's are not rounded.
    """
    output = module.get_output_embeddings()  # type: ignore[operator]
    meter, total = load_meter(), sum(parameter.nbytes for parameter in module.parameters()) or 1
    for together in places(module):
        parent, name = together[0]
        size = sum(own.nbytes for own in getattr(parent, name).parameters(recurse=False))
        if kernel is not None:
            pack(together, kernel, None if any(getattr(*place) is output for place in together) else bits)
        for parent, name in together:
            _place_part(getattr(parent, name), dtype, device)
        trim_heap()
        meter.add(file_bytes * size / total)
    module.to(device)  # what the module itself holds


def _place_part(part: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """As `_place`, of what the kernel has not packed.

    On a processor linear weights lie input by input: passes of few rows get faster (2 cores, float32, the bundled
    output layer: 0.22 to 0.13 ms for 1 row, 0.37 to 0.24 ms for 3), long ones stay as fast.
    """
    if device.type != "cpu":
        part.to(device)
    elif not isinstance(part, PackedLinear | RowsInBits):
        for name, own in part.named_parameters(recurse=False):
            here = dtype if own.is_floating_point() else own.dtype
            if type(part) is nn.Linear and name == "weight":
                own.data = torch.empty(own.T.shape, dtype=here).copy_(own.T).T
            else:
                own.data = torch.empty(own.shape, dtype=here).copy_(own)
