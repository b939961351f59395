"""A target and its draft as they are on disk and in memory. Several engines may use one loaded pair, one at a time."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from core.config import EngineConfig
from core.models.catalog import ModelEntry
from core.models.census import ModelSize
from core.models.drafting import BITS, drafting_twin
from core.models.loader import LoadedModel, ModelDims, load_model, load_tokenizer, read_dims
from core.models.pairing import pair
from core.models.quantised import FORMATS
from core.models.widen import load_target, target_dims, target_size
from core.ops.backend import Backend, choose_backend
from core.parallel.crew import Crew, load_shared
from core.planner import Plan


def flush_denormals() -> None:
    """Take numbers below 1.2e-38 for zero, in this thread and in those that it starts: before any computation.

    Sharp attention leaves such probabilities, and processors handle each one in microcode: in layer 0 of the bundled
    target they are 18% at 32K and made a pass of 13 rows three times slower.
    """
    torch.set_flush_denormal(True)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """What is known before anything is loaded."""

    entry: ModelEntry
    target: ModelDims
    draft: ModelDims | None

    @classmethod
    def find(cls, name: str, draft: str) -> "PairFiles":
        """The files of a model and of its draft, as `pairing.pair` chooses it.

        Raises:
            UnknownModel, ModelNotHere, IncompleteModel, UnsupportedModel, DamagedAssets: see `core.errors`.
        """
        entry = pair(name, draft)
        return cls(entry, target_dims(entry), read_dims(entry.draft) if entry.draft else None)

    def counted(self, config: EngineConfig) -> ModelSize | None:
        """The target's parameters, counted, where a plan needs them: if any of its weights are to be quantised."""
        return target_size(self.entry) if config.bits in FORMATS or config.drafting_bits == BITS else None


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """Weights on a device, and what computes with them."""

    files: PairFiles
    tokenizer: PreTrainedTokenizerBase
    target: LoadedModel
    draft: LoadedModel | None
    backend: Backend
    crew: Crew | None = None  # the other ranks, where several share the target
    drafting: nn.Module | None = None  # the target with weights of 4 bits, for passes over the retrieval cache

    @classmethod
    def load(cls, files: PairFiles, config: EngineConfig, plan: Plan, device: torch.device) -> "LoadedPair":
        """Load both; the target quantised, and once more in 4 bits, where the settings say so.

        Args:
            device: the plan's, see `core.hardware.resolve_device`.
        Raises:
            InvalidSetting, UnsupportedModel, DamagedAssets, NotEnoughMemory: see `core.errors`.
        """
        flush_denormals()
        dtype = plan.dtype.value
        backend = choose_backend(device, dtype, config.attention)
        tokenizer, draft = _load_draft(files, device, dtype, backend)
        target = load_target(files.entry, files.target, dtype, device, backend, config.bits)
        drafting = drafting_twin(target.module, device) if config.drafting_bits == BITS else None
        return cls(files, tokenizer, target, draft, backend, drafting=drafting)

    @classmethod
    def load_shared(cls, files: PairFiles, config: EngineConfig, plan: Plan, device: torch.device) -> "LoadedPair":
        """Load the draft here, and a share of the target here and in each of the other processes, which it starts.

        Args:
            files: with the share of the target that each rank holds.
            device: of rank 0.
        Raises:
            InvalidSetting, UnsupportedModel, DamagedAssets, WorkerLost: see `core.errors`.
        """
        flush_denormals()
        dtype = plan.dtype.value
        backend = choose_backend(device, dtype, config.attention)
        tokenizer, draft = _load_draft(files, device, dtype, backend)
        crew, target = load_shared(
            files.entry.target, files.target, config, plan, backend, plan.offload, files.entry.overrides
        )
        return cls(files, tokenizer, target, draft, backend, crew)


def _load_draft(
    files: PairFiles, device: torch.device, dtype: torch.dtype, backend: Backend
) -> tuple[PreTrainedTokenizerBase, LoadedModel | None]:
    entry = files.entry
    tokenizer = load_tokenizer(entry.target)
    if not entry.draft or not files.draft:
        return tokenizer, None
    return tokenizer, load_model(entry.draft, files.draft, dtype, device, backend)
