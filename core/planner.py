"""What fits where, before anything is loaded. Pure arithmetic on sizes; every choice comes with its reason."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from core.caches.retrieval import GROWTH
from core.config import EngineConfig
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory
from core.hardware import Machine
from core.models.census import ModelSize
from core.models.loader import ModelDims
from core.models.quantised import FORMATS

MOST_CONTEXT = 131_072
# torch, transformers and Python themselves, measured: 0.55 GB on CPU (a CUDA context takes about as much on the GPU)
RUNTIME_BYTES = 600 << 20
# Part of the free memory that a plan may use: the rest stays for the system and for what cannot be foreseen.
USABLE_SHARE = 0.9
TARGET_WEIGHTS = "target weights"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value and why it was chosen."""

    value: T
    because: str


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One thing that takes memory."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where everything goes."""

    device: Choice[str]
    dtype: Choice[torch.dtype]
    bits: Choice[int]  # of the target's weights; 8 and 4 are quantised
    placement: Choice[str]
    context: Choice[int]
    most_context: int  # that would fit
    rows: tuple[PlanRow, ...]
    available_bytes: int

    @property
    def total_bytes(self) -> int:
        """All rows."""
        return sum(row.size_bytes for row in self.rows)


def kv_bytes_per_token(dims: ModelDims, dtype: torch.dtype) -> int:
    """Keys and values of one token."""
    return dims.shape(dtype, torch.device("meta")).bytes_per_token


def make_plan(
    target: ModelDims,
    draft: ModelDims | None,
    config: EngineConfig,
    machine: Machine,
    size: ModelSize | None = None,
) -> Plan:
    """Plan one engine.

    Args:
        size: counted parameters of the target; needed where its weights are to be quantised.
    Raises:
        InvalidSetting: a number of bits that is not computed with there.
        NotEnoughMemory: the weights alone do not fit; or the context asked for does not, with the largest that would.
        ContextTooSmall: the context asked for is longer than the model's.
    """
    device = choose_device(config, machine)
    dtype = choose_dtype(device.value, target)
    bits = choose_bits(config, device.value, dtype.value)
    possible = min(target.max_context, MOST_CONTEXT)
    if config.context is not None and config.context > possible:
        raise ContextTooSmall(config.context, possible, possible=possible)
    available = machine.gpus[0].free_bytes if device.value == "cuda" else machine.free_ram_bytes
    usable = int(available * USABLE_SHARE)
    fixed = _fixed_rows(target, draft, config, dtype.value)
    if bits.value in FORMATS:
        assert size is not None, "quantised weights are planned from counted parameters"
        fixed = _quantised_rows(fixed, size, bits.value, dtype.value)
    fixed_bytes = sum(row.size_bytes for row in fixed)
    per_token = context_bytes_per_token(target, config, dtype.value)
    fits = min(possible, max(0, usable - fixed_bytes) // per_token)
    if fits < 64:
        raise NotEnoughMemory(
            f"The weights need {gib(fixed_bytes)} of memory, {gib(usable)} are free on the {device.value} device.",
            hint=_smaller(bits.value),
        )
    if config.context is not None and config.context > fits:
        raise NotEnoughMemory(
            f"A context of {config.context:,} tokens needs {gib(fixed_bytes + per_token * config.context)}, "
            f"{gib(usable)} are free on the {device.value} device.",
            hint=f"Use --context {fits // 64 * 64} or less.",
            largest_context=fits // 64 * 64,
        )
    context = (
        Choice(config.context, "asked for")
        if config.context is not None
        else Choice(possible, "all that the model can read")
        if fits == possible
        else Choice(fits // 64 * 64, f"{gib(usable)} of free memory hold no more")
    )
    return Plan(
        device=device,
        dtype=dtype,
        bits=bits,
        placement=Choice("resident", f"weights and context fit into {gib(usable)} on the {device.value} device"),
        context=context,
        most_context=fits,
        rows=(*fixed, PlanRow("full cache, landmarks, query log", per_token * context.value)),
        available_bytes=available,
    )


def choose_device(config: EngineConfig, machine: Machine) -> Choice[str]:
    """Where to compute.

    Raises:
        NotEnoughMemory: CUDA was asked for and is not there.
    """
    if config.device == "cuda" and not machine.gpus:
        raise NotEnoughMemory("There is no CUDA device on this machine.", hint="Use --device cpu.")
    if config.device != "auto":
        return Choice(config.device, "asked for")
    return Choice("cuda", f"found {machine.gpus[0].name}") if machine.gpus else Choice("cpu", "no CUDA device found")


def choose_dtype(device: str, target: ModelDims) -> Choice[torch.dtype]:
    """What to compute in, and to keep keys and values in."""
    if device == "cpu":
        return Choice(torch.float32, "exact and fastest on processors without 16-bit matrix units")
    if target.disk_dtype in (torch.float16, torch.bfloat16):
        return Choice(target.disk_dtype, "as the weights are stored")
    return Choice(torch.bfloat16, "16 bit on a GPU")


def choose_bits(config: EngineConfig, device: str, dtype: torch.dtype) -> Choice[int]:
    """How wide the target's weights are.

    Raises:
        InvalidSetting: 16 bits where 32 are computed with.
    """
    width = 8 * dtype.itemsize
    if config.bits is None or config.bits == width:
        return Choice(width, f"what the {device} device computes in")
    if config.bits not in FORMATS:
        raise InvalidSetting(
            f"Weights of {config.bits} bits are not used on the {device} device, which computes in {width}.",
            hint="Leave out --bits, or use 8 or 4.",
        )
    return Choice(config.bits, f"asked for: {FORMATS[config.bits]}, so texts are exact for the quantised model")


def _smaller(bits: int) -> str:
    fewer = ", use --bits 8 or --bits 4" if bits not in FORMATS else ""
    return f"Close other programs{fewer} or choose a smaller model."


def _quantised_rows(rows: tuple[PlanRow, ...], size: ModelSize, bits: int, dtype: torch.dtype) -> tuple[PlanRow, ...]:
    """The same rows with quantised target weights, and room for those of one layer widened again."""
    widened = size.layer_parameters // size.dims.num_layers * dtype.itemsize
    changed = [
        PlanRow(row.name, size.quantised_bytes(bits, dtype)) if row.name == TARGET_WEIGHTS else row for row in rows
    ]
    return (*changed, PlanRow("one layer, widened", widened))


def _fixed_rows(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, dtype: torch.dtype
) -> tuple[PlanRow, ...]:
    rows = [
        PlanRow("runtime", RUNTIME_BYTES),
        PlanRow(TARGET_WEIGHTS, _weight_bytes(target, dtype)),
        PlanRow("retrieval cache", retrieval_bytes(target, config, dtype)),
        PlanRow("prefill buffers", prefill_bytes(target, config)),
    ]
    if draft is not None:
        rows.append(PlanRow("draft weights", _weight_bytes(draft, dtype)))
        rows.append(PlanRow("streaming cache", config.draft.window * kv_bytes_per_token(draft, dtype)))
    return tuple(rows)


def retrieval_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the retrieval cache: the budget, and room to grow between two selections."""
    retrieval = config.retrieval
    return (retrieval.budget + retrieval.chunk_size + GROWTH) * kv_bytes_per_token(target, dtype)


def prefill_bytes(target: ModelDims, config: EngineConfig) -> int:
    """Float32 activations of one chunk of the prompt, MLP included."""
    return config.prefill_chunk * 4 * target.hidden_size * 6


def _weight_bytes(dims: ModelDims, dtype: torch.dtype) -> int:
    return dims.weight_bytes * dtype.itemsize // dims.disk_dtype.itemsize


def context_bytes_per_token(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """What a token of context takes. Full cache; a landmark per chunk (keys only); every 64th query."""
    kv = kv_bytes_per_token(target, dtype)
    landmark = kv // 2 // config.retrieval.chunk_size
    samples = target.num_layers * target.num_heads * target.head_dim * dtype.itemsize // 64
    return kv + landmark + samples


def gib(size_bytes: int) -> str:
    """12.6 GiB."""
    return f"{size_bytes / (1 << 30):.1f} GiB"
