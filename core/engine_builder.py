"""A target and its draft, on disk and in memory. Several engines may use one loaded pair, one at a time."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.caches.policies import check_policy
from core.config import EngineConfig
from core.errors import InvalidSetting, UnsupportedModel
from core.generation.levels import LoadedModels
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import ModelEntry
from core.models.hub.draft_selection import pair
from core.models.linear import read_in_brain
from core.models.loader import LoadedModel, ModelDims, dims_of, load_tokenizer, read_dims
from core.models.loading import load_meter
from core.models.param_count import ModelSize, counted, size_in
from core.models.self_draft import BITS, self_draft_of
from core.models.trial import kv_type, try_out
from core.models.weights import load_model, prepared
from core.ops.backend import Backend, choose_backend
from core.ops.graphs import Graphs
from core.ops.kernel import kernel_here
from core.planning.choices import KV_AS_COMPUTED, Choice
from core.planning.composition import compose
from core.planning.hardware import Machine, cap_memory, resolve_device, this_machine
from core.planning.plan import Plan, make_plan

log = logging.getLogger(__name__)


def flush_denormals() -> None:
    """Treat numbers below 1.2e-38 as zero, in this thread and in those it starts. Call it before any computation.

    Sharp attention produces such probabilities, and processors handle each one in microcode: in layer 0 of the bundled
    target they are 18% at 32K and made a pass of 13 rows three times slower.
    """
    torch.set_flush_denormal(True)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """What is known before anything is loaded."""

    entry: ModelEntry
    target: ModelDims
    draft: ModelDims | None
    # Where transformers has loaded them already:
    module: nn.Module | None = None
    draft_module: nn.Module | None = None
    tokenizer: PreTrainedTokenizerBase | None = None

    @classmethod
    def find(cls, name: str, draft: str) -> "PairFiles":
        """The files of a model and of its draft, as `draft_selection.pair` chooses it.

        Raises:
            UnknownModel, ModelNotHere, IncompleteModel, UnsupportedModel, DamagedAssets: see `core.errors`.
        """
        entry = pair(name, draft)
        return cls(entry, read_dims(entry.target, entry.overrides), read_dims(entry.draft) if entry.draft else None)

    @classmethod
    def of_modules(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, draft: PreTrainedModel | None
    ) -> "PairFiles":
        """Models that transformers has loaded; there may be no files.

        Raises:
            UnsupportedModel: one of them would not run exactly, or the draft does not suit the target.
        """
        name = str(model.config.name_or_path or type(model).__name__)
        target, small = _dims_in_memory(model), _dims_in_memory(draft) if draft is not None else None
        if small is not None and not small.drafts:
            raise UnsupportedModel(
                "The keys of this draft cannot be moved to other positions, as a draft's must be.",
                hint="Choose another draft, or none.",
            )
        if small is not None and small.vocab_size > target.vocab_size:
            raise UnsupportedModel("The draft has more tokens than the model.", hint="Choose another draft, or none.")
        because = "none was given" if draft is None else "given with the model"
        entry = ModelEntry(name=name, target=Path(name), draft=None, description="", draft_because=because)
        return cls(entry, target, small, cast(nn.Module, model), cast(nn.Module | None, draft), tokenizer)

    @property
    def weight_bytes(self) -> int:
        """Of both on disk."""
        return self.target.weight_bytes + (self.draft.weight_bytes if self.draft else 0)

    def size(self) -> ModelSize:
        """The target's parameters by kind; nothing is loaded."""
        if self.module is not None:
            return counted(self.module, cast(PreTrainedModel, self.module).config, self.target)
        return replace(size_in(self.entry.target, self.entry.overrides), dims=self.target)

    def load_target(
        self, dims: ModelDims, plan: Plan, device: torch.device, backend: Backend, bits: int | None
    ) -> LoadedModel:
        """The target as a plan has it; with `bits` 8 or 4, quantised.

        Raises:
            DamagedAssets, UnsupportedModel, NotEnoughMemory.
        """
        entry, dtype, host = self.entry, plan.dtype.value, plan.embeds_from_host
        if self.module is not None:
            return _taken_over(self.module, dims, dtype, device, backend, embeds_from_host=host)
        found, overrides = entry.target, entry.overrides
        return load_model(found, dims, dtype, device, backend, overrides=overrides, bits=bits, embeds_from_host=host)

    def without_draft(self, because: str) -> "PairFiles":
        """The target alone."""
        return replace(self, draft=None, entry=replace(self.entry, draft=None, draft_because=because))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair(LoadedModels):
    """A target and its draft as an engine uses them, and what their files say."""

    files: PairFiles
    tokenizer: PreTrainedTokenizerBase
    kv: Choice[torch.dtype | None] = KV_AS_COMPUTED  # what the target's keys and values are kept in

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text: the model's, and the tokenizer's own, which fine-tuning may change alone."""
        own = cast("int | None", self.tokenizer.eos_token_id)
        return self.target.eos_ids.union(() if own is None else (own,))

    @classmethod
    def load(cls, files: PairFiles, config: EngineConfig, plan: Plan, device: torch.device) -> "LoadedPair":
        """Load both; the target quantised, and a second time in 4 bits, where the settings say so.

        With several GPUs a share of the target is loaded in this and in each other process, which this starts.

        Args:
            plan: of one rank, if several share the target.
            device: the plan's, see `core.planning.hardware.resolve_device`; of rank 0.
        Raises:
            InvalidSetting, UnsupportedModel, DamagedAssets, NotEnoughMemory, LoadingStopped, WorkerLost.
        """
        flush_denormals()
        files, dtype = replace(files, target=plan.target), plan.dtype.value
        backend = choose_backend(device, dtype, config.attention)
        load_meter().expect(files.weight_bytes)
        tokenizer, draft = _load_draft(files, device, dtype, backend)
        if config.num_gpus > 1:
            from core.parallel.rank_pool import load_shared

            folder, overrides = files.entry.target, files.entry.overrides
            recorded = _recorded(config, device, files.target, files.draft)
            ranks, target = load_shared(folder, config, plan, backend, plan.offload, overrides, recorded=recorded)
            return cls(files=files, tokenizer=tokenizer, target=target, draft=draft, backend=backend, ranks=ranks)
        target = files.load_target(files.target, plan, device, backend, config.bits)
        target, kv = _tried(target, files.entry.name, config, plan, backend)
        self_draft = self_draft_of(target.module, device) if config.self_draft_bits == BITS else None
        return cls(
            files=files, tokenizer=tokenizer, target=target, draft=draft, backend=backend, kv=kv, self_draft=self_draft
        )

    def recorder(self, config: EngineConfig) -> Graphs | None:
        """What records passes, where they can be recorded."""
        device, draft = self.target.shape.device, self.draft
        if not _recorded(config, device, self.target.dims, draft.dims if draft else None):
            return None
        if self.ranks is None or (self.ranks.graphs is None and draft is not None):
            return Graphs(device)
        return self.ranks.graphs

    def fitted(self, config: EngineConfig, plan: Plan) -> Plan:
        """The plan with keys and values in the type that the weights have shown; with 32 bits a context may be shorter.

        Raises:
            NotEnoughMemory, ContextTooSmall: the wanted context fits with 16 bits only.
        """
        if self.kv.value is None and plan.kv.value is not None:
            wide = make_plan(plan.size, plan.draft, replace(config, kv_bits=32), plan.rig)
            plan = replace(wide, why_guesser=plan.why_guesser, why_budget=plan.why_budget)
        return replace(plan, kv=self.kv)


def planned_pair(config: EngineConfig, files: PairFiles | None = None) -> tuple[LoadedPair, Plan]:
    """Plan for this machine, then load.

    Args:
        files: default: those that the settings name.
    Raises:
        UnknownModel, UnsupportedModel, DamagedAssets, NotEnoughMemory, ContextTooSmall: see `core.errors`.
    """
    check_policy(config.retrieval.policy, shared=config.num_gpus > 1)
    files, machine = files or PairFiles.find(config.model, config.draft_model), this_machine()
    plan = composed_plan(files, config, machine)
    if plan.packs and kernel_here() is None:  # a compiler is not all that it takes
        plan = composed_plan(files, config, replace(machine, compiles=False))
    config = plan.settled(config)
    if files.draft and plan.composition is not None and not plan.composition.value.has_draft:
        files = files.without_draft(f"left out: {plan.composition.because}")
    unused = machine.unused_gpu
    if unused is not None and unused.known_from == "torch" and config.device == "auto":  # else launch.py reports it
        log.warning("%s %s", unused.because, unused.hint)
    return loaded_pair(files, config, plan)


def loaded_pair(files: PairFiles, config: EngineConfig, plan: Plan) -> tuple[LoadedPair, Plan]:
    """Load what was planned. Raises what `LoadedPair.load` raises."""
    device = resolve_device(plan.device.value)
    cap_memory(device, config.gpu_memory_gib)
    loaded = LoadedPair.load(files, config, plan, device)
    return loaded, plan if loaded.ranks is not None else loaded.fitted(config, plan)


def composed_plan(files: PairFiles, config: EngineConfig, machine: Machine) -> Plan:
    """The plan with which loading begins on a machine. Raises what `core.planning.composition.compose` raises."""
    return compose(files.size(), files.draft, config, machine)


def _tried(
    target: LoadedModel, name: str, config: EngineConfig, plan: Plan, backend: Backend
) -> tuple[LoadedModel, Choice[torch.dtype | None]]:
    """A target that was tried, with keys and values in the type that its weights fit, and why in this one."""
    trial = try_out(target, name, plan.dtype.value, backend)
    if config.prefill_bits == 16 and not read_in_brain(target.module):
        raise InvalidSetting(
            "--prefill-bits 16 needs bfloat16 weights, and a processor that multiplies bfloat16.",
            hint="Leave it out; --bits 8 reads faster, too.",
        )
    if plan.kv.value is None:
        return target, plan.kv
    kept = kv_type(target, trial, backend, planned=plan.kv.value, asked=config.kv_bits is not None)
    dims, shape = replace(target.dims, kv_dtype=kept.dtype), target.shape._replace(narrow=kept.dtype)
    return replace(target, dims=dims, shape=shape), Choice(*kept)


def _recorded(config: EngineConfig, device: torch.device, *models: ModelDims | None) -> bool:
    """Whether passes of these models are to be recorded."""
    return config.graphs and device.type == "cuda" and all(dims is None or dims.plain for dims in models)


def _taken_over(
    module: nn.Module,
    dims: ModelDims,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend,
    *,
    embeds_from_host: bool = False,
) -> LoadedModel:
    """A model of transformers that computes through our caches from now on.

    Raises:
        UnsupportedModel: it would compute something else.
        NotEnoughMemory: the device is full.
    """
    register()
    cast(PreTrainedModel, module).set_attn_implementation(ATTENTION_NAME)
    as_they_are = backend.kernel is not None  # matrices, which the kernel takes in their own bits
    for own in (*module.parameters(), *module.buffers()):
        if own.is_floating_point() and not (as_they_are and own.ndim > 1):
            own.data = own.data.to(dtype)
    return prepared(module, dims, dtype, device, backend, embeds_from_host=embeds_from_host)


def _dims_in_memory(model: PreTrainedModel) -> ModelDims:
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    dims = dims_of(model.config, type(model).__name__, weight_bytes=size)
    return replace(dims, disk_dtype=next(model.parameters()).dtype)


def _load_draft(
    files: PairFiles, device: torch.device, dtype: torch.dtype, backend: Backend
) -> tuple[PreTrainedTokenizerBase, LoadedModel | None]:
    dims, path, tokenizer = files.draft, files.entry.draft, files.tokenizer or load_tokenizer(files.entry.target)
    if dims is not None and files.draft_module is not None:
        return tokenizer, _taken_over(files.draft_module, dims, dtype, device, backend)
    return tokenizer, load_model(path, dims, dtype, device, backend) if path and dims else None
