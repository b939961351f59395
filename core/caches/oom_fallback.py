"""When a device runs out of memory during work, a layer of the full cache moves to the host and the work is repeated.

A failed pass leaves the full cache as it was; the caller says how to undo anything else.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.errors import NotEnoughMemory
from core.ops.backend import Backend

log = logging.getLogger(__name__)

T = TypeVar("T")
HINT = "Close other programs that use it, or start again with a smaller --context."


def make_full_cache(
    shape: KVShape,
    capacity: int,
    chunk_size: int,
    *,
    possible: int,
    backend: Backend,
    offload: Offload | None,
    block_rows: int,
    kind: type[FullCache] = FullCache,
    landmarks: bool = False,
) -> FullCache:
    """A full cache with as many resident layers as `offload` says (None: all), or as the device really has room for.

    Raises:
        NotEnoughMemory: not even with all layers on the host.
    """
    make = partial(kind, shape, capacity, chunk_size, possible=possible, backend=backend, landmarks=landmarks)
    while True:
        try:
            return make(offload=offload)
        except torch.OutOfMemoryError:
            offload = offload or Offload(num_resident=len(shape.full_layers), block_rows=block_rows)
        if offload.num_resident == 0:
            raise NotEnoughMemory(f"The device has no room for the caches of {capacity:,} tokens.", hint=HINT)
        offload = replace(offload, num_resident=offload.num_resident - 1)
        log.warning("out of memory: %d layers of the full cache stay on the device", offload.num_resident)
        give_back(shape.device)


def give_back(device: torch.device) -> None:
    """Return unused memory to the device, also of caches that nothing uses any more: they refer to one another."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class OomFallback:
    """Repeats work that ran out of device memory, with one layer less on the device each time.

    Args:
        block_rows: of a ring, if the cache has none yet.
        free_host_bytes: returns the host memory that a layer may move to; called before each move.
    """

    def __init__(self, full: FullCache, block_rows: int, free_host_bytes: Callable[[], int]) -> None:
        self._full, self._block_rows, self._free_host_bytes = full, block_rows, free_host_bytes
        self.moved: Callable[[], None] = lambda: None  # called after a layer has moved
        self.may_move = True

    def retry(self, work: Callable[[], T], again: Callable[[], object] | None) -> T:
        """Run the work and return its result.

        Args:
            again: undoes what failed work may have left, before it is repeated; None: it cannot be repeated.
        Raises:
            NotEnoughMemory: no layer can move, the host has no room, or the work cannot be repeated.
        """
        broken = False
        while True:
            try:
                if broken and again is not None:
                    again()
                return work()
            except torch.OutOfMemoryError:
                broken = True  # retry outside this block, where the error's references are gone
            if again is None or not self.may_move:
                raise NotEnoughMemory("The device ran out of memory.", hint=HINT)
            self._make_room()

    def _make_room(self) -> None:
        full = self._full
        give_back(full.shape.device)
        if full.resident_layers == 0:
            raise NotEnoughMemory(
                "The device ran out of memory, and the whole full cache lies on the host already.", hint=HINT
            )
        # whole blocks, and for a moment the copied rows as well
        blocks = -(-full.capacity // self._block_rows) * self._block_rows
        needed = (blocks + full.length) * full.shape.layer_bytes
        if needed > self._free_host_bytes():
            raise NotEnoughMemory(
                "The device ran out of memory, and host memory has no room for a layer of the full cache.",
                hint="Close other programs, or start again with a smaller --context.",
            )
        try:
            full.offload_one(self._block_rows)
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory("The device ran out of memory.", hint=HINT) from error
        give_back(full.shape.device)
        log.warning("out of memory: %d layers of the full cache stay on the device", full.resident_layers)
        self.moved()
