"""A target and its draft as they are on disk and in memory. Several engines may use one loaded pair, one at a time."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from core.errors import UnsupportedModel
from core.models.catalog import ModelEntry, find
from core.models.loader import LoadedModel, ModelDims, load_model, load_tokenizer, read_dims, same_tokens
from core.ops.backend import Backend, choose_backend


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

    @classmethod
    def load(cls, files: PairFiles, device: torch.device, dtype: torch.dtype) -> "LoadedPair":
        """Load both.

        Raises:
            UnsupportedModel, DamagedAssets, NotEnoughMemory: see `core.errors`.
        """
        entry, backend = files.entry, choose_backend(device, dtype)
        tokenizer = load_tokenizer(entry.target)
        draft = None
        if entry.draft and files.draft:
            if not same_tokens(tokenizer, load_tokenizer(entry.draft)):
                raise UnsupportedModel(
                    "Target and draft do not use the same tokens.", hint="Choose a draft of the same family."
                )
            draft = load_model(entry.draft, files.draft, dtype, device, backend)
        target = load_model(entry.target, files.target, dtype, device, backend)
        return cls(files, tokenizer, target, draft, backend)
