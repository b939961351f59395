"""Choices of a plan that need no memory count: device, types, chunk sizes. Each with its reason."""

from dataclasses import dataclass
from math import log2
from typing import Generic, TypeVar

import torch

from core.config import EngineConfig
from core.errors import NotPossibleHere
from core.models.loader import ModelDims
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.ops.native import SCALED_DIMS
from core.planning.hardware import Machine

# Attention of T rows to a cached token takes 4 T H D operations, bringing it from the host 4 H_kv D bytes: equally long
# at 100 TFLOP/s, 25 GB/s and T = 4000 H_kv / H, here in whole 64s. Longer chunks are not read faster.
LINK_BOUND_ROWS = 3968

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value and why it was chosen."""

    value: T
    because: str


@dataclass(frozen=True, slots=True)
class Composition:
    """Who guesses for the target: a method, and the weights that it needs beside the target's own."""

    method: str  # a name of `core.decoding.registry`
    has_draft: bool = False
    self_draft_bits: int = 16  # of the target's weights in passes over the retrieval cache; 16: its own


NOTHING_WAITS = "nothing waits in host memory"
NO_BLOCK = Choice(0, NOTHING_WAITS)
KV_AS_COMPUTED: Choice[torch.dtype | None] = Choice(None, "the type of computation")
NOTHING_SHARED: Choice[float | None] = Choice(0.0, NOTHING_WAITS)


def choose_device(config: EngineConfig, machine: Machine) -> Choice[str]:
    """The device that computes.

    Raises:
        NotPossibleHere: the user wants CUDA, which is not available, or more GPUs than there are.
    """
    gpus, unused, asked = machine.gpus, machine.unused_gpu, config.num_gpus
    if config.device != "cpu" and len(gpus) < asked and (asked > 1 or config.device == "cuda"):
        if not gpus and unused is not None:
            raise NotPossibleHere(unused.because, hint=unused.hint)
        if asked == 1:
            raise NotPossibleHere("There is no CUDA device on this machine.", hint="Use --device cpu.")
        problem = f"--gpus {asked} asks for {asked} GPUs, of which this machine has {len(gpus) or 'none'}."
        raise NotPossibleHere(problem, hint="Leave out --gpus.")
    if config.device != "auto":
        return Choice(config.device, "asked for")
    if gpus:
        return Choice("cuda", f"found {gpus[0].name}")
    return Choice("cpu", unused.because if unused else "no CUDA device found")


def choose_dtype(device: str, target: ModelDims) -> Choice[torch.dtype]:
    """The type of computation; `choose_kv` says what keys and values are kept in."""
    if device == "cpu":
        return Choice(torch.float32, "on a processor, so that greedy texts are equal token for token")
    if target.disk_dtype in (torch.float16, torch.bfloat16):
        return Choice(target.disk_dtype, "as the weights are stored")
    return Choice(torch.bfloat16, "16 bit on a GPU")


def choose_bits(config: EngineConfig, device: str, dtype: torch.dtype) -> Choice[int]:
    """Bits of the target's weights.

    Raises:
        InvalidSetting: 16 bits where computation has 32.
    """
    width = 8 * dtype.itemsize
    if config.bits is None or config.bits == width:
        return Choice(width, f"what the {'GPU' if device == 'cuda' else 'processor'} computes in")
    if config.bits not in FORMATS:
        raise NotPossibleHere(
            f"Weights of {config.bits} bits are not used on the {device} device, which computes in {width}.",
            hint="Leave out --bits, or use 8 or 4.",
        )
    return Choice(config.bits, "asked for: texts are exact for the quantised model")


LEAST_NARROW = 2048  # tokens of context: below, keys and values are few, and 32 bits cost little


def choose_kv(
    config: EngineConfig, target: ModelDims, device: str, dtype: torch.dtype, machine: Machine
) -> Choice[torch.dtype | None]:
    """The type that the target's keys and values are kept in; None: the type of computation.

    16 bits on a processor: half the memory, and half of what plain decoding reads; loading checks what they cost
    (`core.models.trial.kv_type`). Integers with a scale (`core.ops.attention`) where the processor multiplies those
    fastest, else float16. Only on request where the context is short or there is no compiled kernel.

    Raises:
        InvalidSetting: 32 bits where computation has 16.
    """
    width = 8 * dtype.itemsize
    if config.kv_bits is not None and config.kv_bits > width:
        raise NotPossibleHere(
            f"Keys and values of {config.kv_bits} bits are not kept on the {device} device, which computes in {width}.",
            hint="Leave out --kv-bits.",
        )
    if width == 16:
        return KV_AS_COMPUTED
    if config.kv_bits == width:
        return Choice(None, "asked for")
    if config.kv_bits is None and (why := _why_wide(config, target, machine)):
        return Choice(None, why)
    asked = "asked for; " if config.kv_bits is not None else ""
    because = f"{asked}half the memory; tried when the weights are loaded"
    return Choice(torch.int16 if _multiplies_integers(config, target, machine) else torch.float16, because)


def _multiplies_integers(config: EngineConfig, target: ModelDims, machine: Machine) -> bool:
    """Whether the compiled kernel attends to integers faster than to float16."""
    can = machine.compiles and config.attention != "torch" and {"AVX-512", "VNNI"} <= {*machine.abilities}
    return can and "AMX" not in machine.abilities and target.plain and target.head_dim in SCALED_DIMS


def _why_wide(config: EngineConfig, target: ModelDims, machine: Machine) -> str:
    """Why keys and values stay as they are computed on a processor; "" where 16 bits are better."""
    if min(config.context or target.max_context, target.max_context) < LEAST_NARROW:
        return f"in a context of under {LEAST_NARROW:,} tokens they are few, and 16 bits would save little"
    if not machine.compiles or config.attention == "torch":
        return "without the compiled kernel 16 bits would cost time"
    if not target.plain:
        return "of models with windows or soft caps 16 bits would cost time"
    return "several processes share the model" if config.num_gpus > 1 else ""


# Operations a second of a core that reads: a model of 1.5e9 parameters, 10,519 tokens at 87 a second (2 cores of an AMD
# EPYC with AVX-512, 2026-11-25).
READING_FLOPS = 1.3e11
PIECE_SECONDS = 1.5  # between two looks at progress and Stop
LEAST_PIECE = 64
# Of a prompt, that a GPU multiplies with weights of 4 bits: by bytes and operations of an RTX 4090 widening them takes
# two fifths of what multiplying takes.
WIDENING_ROWS = 2048


def prefill_chunk(target: ModelDims, config: EngineConfig, device: str, *, offloaded: bool, num_cores: int = 1) -> int:
    """Tokens to read in one pass: a power of two on a processor, by the parameters and the cores.

    Progress and Stop come after each piece. Beside an offloaded cache attending takes as long as the copies, which each
    pass needs. A row's last bit may depend on the pieces, so they are the same on a machine every time, and saved books
    name them.
    """
    bound = LINK_BOUND_ROWS * target.num_kv_heads // target.num_heads
    if device == "cuda":
        widened = WIDENING_ROWS if config.bits == DRAFTING_BITS else 0
        return max(config.prefill_chunk, widened, bound if offloaded else 0)
    parameters = max(1, target.weight_bytes // target.disk_dtype.itemsize)
    soon = PIECE_SECONDS * num_cores * READING_FLOPS / (2 * parameters)
    return min(config.prefill_chunk, max(LEAST_PIECE, 1 << max(0, round(log2(soon)))))


def choose_cpu_attention(config: EngineConfig, device: str, *, away: bool) -> Choice[float | None]:
    """Share of the blocks in host memory that the host attends to in short passes; None: to be measured.

    Args:
        away: whether any layer is offloaded.
    """
    if not away:
        return NOTHING_SHARED
    if config.cpu_attention_share is not None:
        return Choice(config.cpu_attention_share, "asked for")
    if device != "cuda":
        return Choice(0.0, "the processor is the device itself")
    return Choice(None, "measured when the model is loaded")
