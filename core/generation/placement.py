"""Where the target's keys and values lie; the plan is updated when that changes during work."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from core.caches.full import FullCache
from core.config import EngineConfig
from core.ops.transfer import pinning
from core.planning.choices import Choice, choose_cpu_attention
from core.planning.fit import placed
from core.planning.measured import measure_link, measure_sharing, share_of
from core.planning.plan import Plan

if TYPE_CHECKING:
    from core.parallel.rank_pool import RankPool

log = logging.getLogger(__name__)


class Placement:
    """The present plan, and measurements of the link to host memory.

    Args:
        changed: called when any of these changes.
    """

    _full: FullCache  # from `follow` on

    def __init__(self, plan: Plan, config: EngineConfig, ranks: "RankPool | None", changed: Callable[[], None]) -> None:
        self.plan, self._config, self._ranks, self._changed = plan, config, ranks, changed
        self.host_memory: Choice[str] | None = None  # None: no layer is there yet
        self.link: Choice[float] | None = None  # bytes per second of a plain copy from host memory; None: not measured
        self._cpu_attention: Choice[float | None] | None = None

    def follow(self, full: FullCache) -> None:
        """Begin with a cache that was allocated."""
        self._full = full
        self.update()

    def layers_moved(self) -> None:
        """The device ran out of memory, and fewer layers are resident."""
        self.plan = placed(self.plan, self._full.resident_layers, "the device ran out of memory, and the others went")
        self.update()

    def block_shrunk(self, block: int) -> None:
        """The device had no room for the planned block of layer-by-layer reading."""
        how = "smaller blocks are read layer by layer" if block else "prompts are read chunk by chunk"
        chosen = Choice(block, f"the device ran out of memory: {how}")
        self.plan = replace(self.plan, prefill_block=chosen)
        self._changed()
        log.warning("out of memory: %s", how)

    def update(self) -> None:
        """Read where the layers lie now; measure host memory the first time."""
        resident = self._full.resident_layers
        if resident != self.plan.resident_layers:
            self.plan = placed(self.plan, resident, "the device had less room than planned")
        self.host_memory = None
        if self._full.host_memory:
            self.host_memory = Choice(*pinning(self._full.host_memory))
            with suppress(torch.OutOfMemoryError):  # then the link is not measured
                self.link = self.link or self._measured_link()
            if self._cpu_attention is None:
                self._cpu_attention = self._choose_cpu_attention()
                self._full.let_host_attend(self._cpu_attention.value or 0.0)
            self.plan = replace(self.plan, cpu_attention=self._cpu_attention)
        self._changed()

    def _measured_link(self) -> Choice[float]:
        measure = partial(measure_link, self._full.shape.device)
        return self._ranks.link(measure) if self._ranks else measure()

    def _choose_cpu_attention(self) -> Choice[float | None]:
        shape = self._full.shape
        choice = choose_cpu_attention(self._config, shape.device.type, away=True)
        if choice.value is not None:
            return choice
        piece = self._full.host_memory[0].rows.shape[1:]
        measure = partial(measure_sharing, piece, shape.num_heads, self._full.chunk_size, shape.dtype, shape.device)
        try:
            return share_of(self._ranks.sharing(measure) if self._ranks else measure())
        except torch.OutOfMemoryError:
            return Choice(0.0, "the device had no room to measure it")
