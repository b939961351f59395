"""The size of a model from its configuration alone: parameters are counted, none is loaded or allocated.

transformers builds the module without memory (torch's meta device), so the count is exact for every family.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from core.errors import UnsupportedModel
from core.models.experts import Experts, experts_of
from core.models.layer_reach import reaches_of
from core.models.loader import MISREAD, NOTHING, ModelDims, dims_of, read_config

Cut = Literal["outputs", "inputs"]
# Families whose shares are compared with the whole model (tests/core/parallel/test_shard.py iterates over them).
# Others state a plan, too, but have further layers or norms that cannot be divided by heads.
COMPARED = """
    apertus arcee cohere ernie4_5 gemma granite helium llama ministral3 mistral nemotron olmo qwen2 qwen3 seed_oss
    smollm3 starcoder2
"""
SHARED = frozenset(COMPARED.split())
CUTS: dict[str, Cut | None] = {"colwise": "outputs", "rowwise": "inputs", "replicated_with_grad_allreduce": None}


def division_of(config: PreTrainedConfig) -> dict[str, Cut]:
    """Which linear layers are cut, and how: by name within the base model, numbers as `*`.

    Raises:
        UnsupportedModel: shares of the family were never compared with the whole; it states nothing, or states
            something that cannot be divided by heads (fused projections, norms over all heads, experts).
    """
    stated = cast("dict[str, str] | None", getattr(cast(Any, config), "base_model_tp_plan", None))
    windowed = bool(reaches_of(config))
    norms_of_heads = getattr(config, "use_qk_norm", False)  # Cohere's: a weight for every head
    tested = config.model_type in SHARED and not norms_of_heads and not windowed
    if not tested or not stated or not set(stated.values()) <= set(CUTS):
        raise UnsupportedModel(
            f"Models of the family {config.model_type!r} cannot be shared between GPUs by heads.",
            hint="Leave out --gpus.",
        )
    return {name: cut for name, style in stated.items() if (cut := CUTS[style]) is not None}


def is_divisible(config: PreTrainedConfig) -> bool:
    """Whether `division_of` supports the model."""
    try:
        division_of(config)
    except UnsupportedModel:
        return False
    return True


def generic_name(name: str) -> str:
    """layers.3.mlp.up_proj -> layers.*.mlp.up_proj"""
    return re.sub(r"\d+", "*", name)


# Bits that one quantised parameter takes. 8: one scale a row is under 0.1%; 4: NF4 keeps a float32 for every 64
# parameters (arXiv 2305.14314, section 3, without its double quantisation).
STORED_BITS: dict[float, float] = {32: 32.0, 16: 16.0, 8: 8.0, 4: 4.5}
UNQUANTISED_BITS = 16  # of the parameters that are not quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a model, with its parameters grouped by how quantisation and several GPUs treat them."""

    dims: ModelDims  # where nothing is on disk with the bytes of all parameters in the type of the configuration
    layer_parameters: int  # linear weights of the layers: quantised, and divided between GPUs
    other_parameters: int  # embeddings, output layer, norms, biases: kept whole on every GPU
    divisible: bool = True  # whether the layers can be divided between GPUs by heads
    experts: Experts | None = None  # of a mixture, counted among the parameters above

    @property
    def num_parameters(self) -> int:
        """Number of all parameters."""
        return self.layer_parameters + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that a token passes through: of a mixture's experts, those that it uses."""
        idle = self.experts.parameters - self.experts.active if self.experts else 0
        return self.num_parameters - idle

    @property
    def output_parameters(self) -> int:
        """Parameters of the output layer, which may share them with the embeddings."""
        return self.dims.vocab_size * self.dims.hidden_size

    def weight_bytes(self, bits: float, rest: int = UNQUANTISED_BITS) -> int:
        """Bytes of the weights with so many bits; what is not quantised has at least `rest`."""
        layers = self.layer_parameters * STORED_BITS.get(bits, bits) / 8
        return int(layers + self.other_parameters * max(bits, rest) / 8)


def size_of(config: PreTrainedConfig, name: str) -> ModelSize:
    """Count the parameters that a configuration describes.

    Raises:
        UnsupportedModel: as `dims_of`, or sizes that make no model.
    """
    try:
        dims = dims_of(config, name, weight_bytes=0)
        with torch.device("meta"):
            # In the default type: transformers makes that of the model the default of all threads meanwhile, and the
            # engine may be computing in another one
            alone = copy.deepcopy(config)
            built = cast(Any, AutoModelForCausalLM).from_config(alone, dtype=torch.float32, trust_remote_code=False)
            module = cast(nn.Module, built)
    except (*MISREAD, RuntimeError) as error:
        raise UnsupportedModel(
            f"{name} is no text model that can be planned for.", hint="Choose a decoder-only text model."
        ) from error
    total = sum(parameter.numel() for parameter in module.parameters())
    return counted(module, config, replace(dims, weight_bytes=dims.disk_dtype.itemsize * total))


def counted(module: nn.Module, config: PreTrainedConfig, dims: ModelDims) -> ModelSize:
    """The parameters of a module by kind."""
    output = cast(Any, module).get_output_embeddings()
    layers = sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear) and part is not output)
    return ModelSize(
        dims=dims,
        layer_parameters=layers,
        other_parameters=sum(parameter.numel() for parameter in module.parameters()) - layers,
        divisible=is_divisible(config),
        experts=experts_of(module, config),
    )


def size_in(folder: Path, overrides: Mapping[str, Any] = NOTHING) -> ModelSize:
    """Count the parameters of the model whose config.json is in `folder`.

    Raises:
        DamagedAssets: config.json is unreadable.
        UnsupportedModel: as `size_of`.
    """
    return size_of(read_config(folder, overrides), folder.name)
