"""A target and its draft as they are on disk and in memory. Several engines may use one loaded pair, one at a time."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from core.config import EngineConfig
from core.errors import UnsupportedModel
from core.models.catalog import ModelEntry, find
from core.models.loader import LoadedModel, ModelDims, load_model, load_tokenizer, read_dims, same_tokens
from core.ops.backend import Backend, choose_backend
from core.parallel.crew import Crew, load_shared
from core.planner import Plan


@dataclass(frozen=True, slots=True)
class PairFiles:
    """What is known before anything is loaded."""

    entry: ModelEntry
    target: ModelDims
    draft: ModelDims | None

    @classmethod
    def find(cls, name: str) -> "PairFiles":
        """The files of a model.

        Raises:
            UnknownModel, UnsupportedModel, DamagedAssets: see `core.errors`.
        """
        entry = find(name)
        return cls(entry, read_dims(entry.target), read_dims(entry.draft) if entry.draft else None)


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """Weights on a device, and what computes with them."""

    files: PairFiles
    tokenizer: PreTrainedTokenizerBase
    target: LoadedModel
    draft: LoadedModel | None
    backend: Backend
    crew: Crew | None = None  # the other ranks, where several share the target

    @classmethod
    def load(cls, files: PairFiles, device: torch.device, dtype: torch.dtype) -> "LoadedPair":
        """Load both.

        Raises:
            UnsupportedModel, DamagedAssets, NotEnoughMemory: see `core.errors`.
        """
        backend = choose_backend(device, dtype)
        tokenizer, draft = _load_draft(files, device, dtype, backend)
        target = load_model(files.entry.target, files.target, dtype, device, backend)
        return cls(files, tokenizer, target, draft, backend)

    @classmethod
    def load_shared(cls, files: PairFiles, config: EngineConfig, plan: Plan) -> "LoadedPair":
        """Load the draft here, and a share of the target here and in each of the other processes, which it starts.

        Args:
            files: with the share of the target that each rank holds.
        Raises:
            UnsupportedModel, DamagedAssets, WorkerLost: see `core.errors`.
        """
        device, dtype = torch.device(plan.device.value), plan.dtype.value
        backend = choose_backend(device, dtype)
        tokenizer, draft = _load_draft(files, device, dtype, backend)
        crew, target = load_shared(files.entry.target, files.target, config, plan, backend, plan.offload)
        return cls(files, tokenizer, target, draft, backend, crew)


def _load_draft(
    files: PairFiles, device: torch.device, dtype: torch.dtype, backend: Backend
) -> tuple[PreTrainedTokenizerBase, LoadedModel | None]:
    entry = files.entry
    tokenizer = load_tokenizer(entry.target)
    if not entry.draft or not files.draft:
        return tokenizer, None
    if not same_tokens(tokenizer, load_tokenizer(entry.draft)):
        raise UnsupportedModel(
            "Target and draft do not use the same tokens.", hint="Choose a draft of the same family."
        )
    return tokenizer, load_model(entry.draft, files.draft, dtype, device, backend)
