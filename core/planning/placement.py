"""What is resident and what is offloaded: how many layers of the full cache a device holds, and how it then reads.

The full cache lies beside the weights if it fits there; else as many of its first layers as possible, with the others
in host memory. On a processor both are the same RAM, and only a limit (`--gpu-memory`) divides it in two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from core.config import EngineConfig
from core.planning.cache_sizes import CacheSizes
from core.planning.choices import NO_BLOCK, Choice
from core.planning.hardware import Machine
from core.planning.sizes import GIB, RUNTIME_BYTES, usable_bytes

STEP = 64  # tokens: contexts limited by memory are multiples of it
# Reading layer by layer in n blocks brings a text (n - 1) / 2 times over the link; chunk by chunk the same holds with n
# chunks. A block has at least an eighth of the context's tokens; free memory may make it longer.
MOST_PREFILL_BLOCKS = 8
MOST_HIDDEN_BYTES = 528 << 20  # hidden states of a block: of Llama2-7B's, 64K tokens in whole chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """Bytes that a plan may use, and the memory they are a part of."""

    device: int
    host: int
    available: int
    host_available: int
    limit: float | None  # GiB, from --gpu-memory
    on_gpu: bool

    @classmethod
    def of(cls, device: str, config: EngineConfig, machine: Machine) -> "Usable":
        """The usable bytes of a machine or of a rank's share: of its first GPU, or of its memory."""
        on_gpu, limit = device == "cuda", config.gpu_memory_gib
        there = machine.gpus[0].free_bytes if on_gpu else machine.free_ram_bytes
        available = there if limit is None else min(there, int(limit * GIB))
        # On a processor RAM beyond the limit counts as host memory; without a limit there is none.
        host_available = machine.free_ram_bytes if on_gpu else machine.free_ram_bytes - available
        return cls(
            device=usable_bytes(device, available),
            host=max(0, usable_bytes("cpu", host_available) - (RUNTIME_BYTES if on_gpu else 0)),
            available=available,
            host_available=host_available,
            limit=limit,
            on_gpu=on_gpu,
        )


class Rooms(NamedTuple):
    """Bytes left for the full cache, and how a prompt is read."""

    resident: int  # on the device if all layers are resident
    offloaded: int  # if they are not
    host: int
    lent: int  # of other caches on the device, free while a prompt is read
    chunk: int  # tokens of a pass if not all layers are resident; 0: only chunk by chunk


class Fit(NamedTuple):
    """What fits at a context."""

    layers: int  # resident ones
    block: int  # tokens that are read layer by layer; 0: chunk by chunk


def find_fit(sizes: CacheSizes, context: int, rooms: Rooms, most: int) -> Fit | None:
    """Resident layers, up to `most`, and the block to read, which may cost some of them. None: nothing fits."""
    layers = _layers_that_fit(sizes, context, rooms, most)
    if layers is None:
        return None
    if layers == sizes.layers or not sizes.hidden_bytes or not rooms.chunk or context <= 2 * rooms.chunk:
        return Fit(layers, 0)
    least = -(-context // (MOST_PREFILL_BLOCKS * rooms.chunk)) * rooms.chunk
    extra = sizes.block_bytes(context, least, rooms.lent)
    tighter = rooms._replace(resident=0, offloaded=rooms.offloaded - extra)
    fewer = _layers_that_fit(sizes, context, tighter, layers)
    if fewer is None or fewer == sizes.layers:
        return Fit(layers, 0)
    left = rooms.offloaded - sizes.device_bytes(context, fewer) + rooms.lent - sizes.layer_bytes(context)
    possible = min(left, MOST_HIDDEN_BYTES) // sizes.hidden_bytes // rooms.chunk * rooms.chunk
    return Fit(fewer, min(max(least, possible), -(-context // rooms.chunk) * rooms.chunk))


def _layers_that_fit(sizes: CacheSizes, context: int, rooms: Rooms, most: int) -> int | None:
    """The most layers, up to `most`, that can be resident; None if the context does not fit."""
    if most == sizes.layers and sizes.device_bytes(context, most) <= rooms.resident:
        return most
    for here in range(min(most, sizes.layers - 1), -1, -1):
        if sizes.device_bytes(context, here) <= rooms.offloaded:
            beside = 0 if sizes.on_host else sizes.remembered_bytes(context)
            return here if sizes.host_bytes(context, here) + beside <= rooms.host else None
    return None


def largest_context(possible: int, fits: Callable[[int], bool]) -> int:
    """The largest context that fits: `possible`, or a multiple of STEP below it. A smaller one never needs more."""
    if fits(possible):
        return possible
    low, high = 0, possible // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle)
    return low * STEP


def choose_prefill_block(
    sizes: CacheSizes, fit: Fit, context: int, rooms: Rooms, config: EngineConfig, *, layerwise: bool
) -> Choice[int]:
    """Tokens that go through one layer before the next one begins; 0 for chunk by chunk.

    Args:
        layerwise: whether the target's layers can be called one by one.
    """
    if fit.block:
        blocks = -(-context // fit.block)
        crossing = (
            "its keys and values are stored once and never brought back"
            if blocks == 1
            else f"in {blocks} blocks, and what was read before crosses the link once a block instead of once a chunk"
        )
        return Choice(fit.block, f"a long prompt is read layer by layer: {crossing}")
    if fit.layers == sizes.layers:
        return NO_BLOCK
    if not config.layerwise:
        return Choice(0, "chunk by chunk was asked for")
    if config.num_gpus > 1:
        return Choice(0, "chunk by chunk, as several processes share each layer")
    if not layerwise:
        return Choice(0, "chunk by chunk, as the layers of this family are not called one by one")
    if context <= 2 * rooms.chunk:
        return Choice(0, "the context holds no more than two chunks")
    return Choice(0, "chunk by chunk, as one layer's keys and values do not fit beside the rest")
