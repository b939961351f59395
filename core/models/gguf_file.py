"""A model in one GGUF file, as llama.cpp's tools write it: what its header says, and its weights through transformers.

Only families are loaded for which a test compares text with the same weights as safetensors (TESTED). What transformers
leaves out of a header is refused here, because the text would be another model's. Weights are unpacked to
the type that is computed with. Needs the package of requirements-gguf.txt.
"""

import functools
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from packaging.version import Version
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from core.errors import DamagedAssets, IncompleteModel, UnsupportedModel
from core.models.hub import store

ENDING = store.GGUF
TESTED = ("llama", "qwen2", "qwen3")  # general.architecture
ROOT = Path(__file__).parents[2]
PYTHON = str(Path(".venv", *(("Scripts",) if sys.platform == "win32" else ("bin",)), "python"))
LEAST_TRANSFORMERS = Version("5.19.0")  # 5.17 reads their tokenizers wrong, as the comparison with it shows
INSTALL = f"{PYTHON if Path(sys.prefix) == ROOT / '.venv' else 'python'} -m pip install -r requirements-gguf.txt"
PARTS = {"clip": "the part of a model that sees pictures (mmproj)", "whisper": "a model that hears speech"}
KINDS = {"mmproj": PARTS["clip"], "adapter": "an adapter, not a whole model", "imatrix": "a table for quantising"}
SAFETENSORS = "Take the model's folder with safetensors instead."
UNREADABLE = (struct.error, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file's header says."""

    path: Path
    architecture: str
    parameters: int
    dtype: torch.dtype  # of the weights once they are unpacked, unless another one is computed with
    fields: Mapping[str, Any]  # of the configuration, which transformers' loader does not set

    @classmethod
    def read(cls, path: Path) -> "GgufFile":
        """Read the header, once for every state of the file; cost: a second for a vocabulary of 150,000 tokens.

        Raises:
            UnsupportedModel: it holds something else, or a model that would not be loaded exactly.
            DamagedAssets, IncompleteModel: it cannot be read, or its end is missing.
        """
        status = path.stat()
        return _read(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _read(path: Path, size: int, _changed: int) -> GgufFile:
    with path.open("rb") as file:
        begins = file.read(4)
    if begins != b"GGUF":
        raise UnsupportedModel(f"{path.name} is no GGUF file.", hint="Choose another file, or a model's folder.")
    try:
        from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata
    except ImportError as error:
        raise UnsupportedModel("GGUF files need a newer transformers.", hint=SAFETENSORS) from error
    try:
        said, names = read_gguf_metadata(str(path))
        refuse_others(path.name, said, names)
        header = GgufHeader.from_file(str(path))
        end = max((header.data_start + one.offset + one.nbytes for one in header.tensors), default=0)
        count = sum(prod(one.shape) for one in header.tensors)
        fields = _fields(said, str(said["general.architecture"]))
    except UNREADABLE as error:
        if "not supported yet" in str(error):
            problem = f"{path.name} has weights of a type that cannot be unpacked here."
            raise UnsupportedModel(problem, hint=SAFETENSORS) from error
        raise DamagedAssets(f"The header of {path.name} is damaged.", hint="Fetch the file again.") from error
    if not header.tensors or end > size:
        problem = f"{path.name} is cut short: it has {size:,} of {max(end, size + 1):,} bytes."
        raise IncompleteModel(problem, hint="Finish its download, or fetch it again.")
    return GgufFile(path, header.architecture, count, header.dtype or torch.bfloat16, fields)


def refuse_others(name: str, said: Mapping[str, Any], tensors: tuple[str, ...]) -> None:
    """Refuse what is no whole text model of a tested family.

    Raises:
        UnsupportedModel: says what it is.
    """
    kind, family = str(said.get("general.type", "model")), str(said["general.architecture"])
    if found := KINDS.get(kind) or PARTS.get(family):
        raise UnsupportedModel(f"{name} is {found}.", hint="Choose the file with the text model.")
    if (parts := said.get("split.count", 1)) > 1:
        raise UnsupportedModel(
            f"{name} is one of {parts} parts of a file.", hint="Join them first: llama-gguf-split --merge PART1 WHOLE"
        )
    if family not in TESTED:
        raise UnsupportedModel(
            f"{name} holds a model of the family {family!r}; of GGUF files {', '.join(TESTED)} are tested.",
            hint=SAFETENSORS,
        )
    scaled = said.get(f"{family}.rope.scaling.type", "none") != "none"
    # Without a type the factor counts too, by today's name and the one of 2023
    scaled |= any(said.get(f"{family}.rope.{name}", 1) not in (0, 1) for name in ("scaling.factor", "scale_linear"))
    if scaled or any(tensor.startswith("rope_") for tensor in tensors):
        raise UnsupportedModel(
            f"{name} scales its positions, which is lost when a GGUF file is loaded (Llama 3.1 and later, YaRN).",
            hint=SAFETENSORS,
        )
    heads = said.get(f"{family}.attention.head_count", 0) or 1
    length = said.get(f"{family}.attention.key_length", said.get(f"{family}.embedding_length", 0) // heads)
    if said.get(f"{family}.expert_count", 0) or said.get(f"{family}.rope.dimension_count", length) != length:
        raise UnsupportedModel(
            f"{name} is a variant of {family} that is not tested (experts, or positions in a part of each head).",
            hint=SAFETENSORS,
        )


def _fields(said: Mapping[str, Any], family: str) -> dict[str, Any]:
    ends = [said[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in said]
    found: dict[str, Any] = {"eos_token_id": tuple(sorted(set(ends))) or None, "_name_or_path": ""}
    if (head := said.get(f"{family}.attention.key_length")) is not None:
        found["head_dim"] = head
    return found


def require_package() -> None:
    """Check that weights can be unpacked.

    Raises:
        UnsupportedModel: the optional package is not installed, or transformers is too old.
    """
    try:
        metadata.version("gguf")
    except metadata.PackageNotFoundError as error:
        raise UnsupportedModel("Models in GGUF files need one more package.", hint=f"Install it: {INSTALL}") from error
    if Version(metadata.version("transformers")) < LEAST_TRANSFORMERS:
        raise UnsupportedModel(
            f"Models in GGUF files need transformers {LEAST_TRANSFORMERS} or newer.", hint=f"Install it: {INSTALL}"
        )


def load_gguf(path: Path, config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> tuple[nn.Module, list[str]]:
    """The model on the CPU, and the names of weights that the file lacks.

    Raises:
        ValueError, KeyError, RuntimeError: the weights do not fit the configuration.
    """
    from transformers import modeling_gguf_pytorch_utils as unpacking  # not before a file needs it

    cast(Any, unpacking).tqdm = functools.partial(
        cast(Any, unpacking).tqdm, disable=True
    )  # the commands show their own progress
    family = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    with torch.device("meta"):
        named = family(config)
    held = cast(Any, unpacking).load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=named, torch_dtype=dtype
    )
    model, found = family.from_pretrained(
        None,
        config=config,
        state_dict=held["tensors"],
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
    )
    model.config.name_or_path = str(path)
    return cast(nn.Module, model), [*sorted(found["missing_keys"]), *map(str, found["mismatched_keys"])]
