"""The plan itself: where everything lies, how much it takes, and why. `planner` makes it."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from core.caches.full_parts import Offload
from core.config import EngineConfig
from core.planning.cache_sizes import PREFILL_BLOCK, CacheSizes
from core.planning.choices import KV_AS_COMPUTED, NO_BLOCK, NOTHING_SHARED, Choice, Composition, choose_most_guesses
from core.planning.machine_spec import Bandwidths, nominal_bandwidths
from core.planning.sizes import RETRIEVAL, PlanRow, usable_bytes

Placement = Literal["resident", "split", "offloaded"]
NOMINAL_CPU = nominal_bandwidths("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where everything goes."""

    device: Choice[str]
    dtype: Choice[torch.dtype]
    kv: Choice[torch.dtype | None] = KV_AS_COMPUTED  # what the target's keys and values are kept in
    bits: Choice[int]  # of the target's weights; 8 and 4 are quantised
    placement: Choice[Placement]
    context: Choice[int]
    most_context: int  # the longest that would fit in device and host memory together
    prefill_chunk: Choice[int]  # tokens read in one pass
    prefill_block: Choice[int] = NO_BLOCK  # tokens read layer by layer; 0: chunk by chunk
    # Share of the blocks in host memory that the host attends to; None: the engine measures it at its start.
    cpu_attention: Choice[float | None] = NOTHING_SHARED
    rows: tuple[PlanRow, ...]  # on the device
    available_bytes: int  # free on the device, or what it may hold
    cache_sizes: CacheSizes
    resident_layers: int
    budget: Choice[int] | None = None  # of the retrieval cache; None: as it was set
    offload: Offload | None = None  # None: the full cache is resident
    host_rows: tuple[PlanRow, ...] = ()
    host_available_bytes: int = 0
    copy_pays: bool = False  # whether a 4-bit copy of the weights would guess in a fraction of the time
    composition: Choice[Composition] | None = None  # who guesses; None: nobody compared (`core.planning.composition`)
    nominal: Bandwidths = NOMINAL_CPU  # shapes rounds where measured values may not be used
    most_resident: int = 0  # tokens up to which all layers would be resident, where they are not at `context`; 0: none
    longer: "Plan | None" = None  # of an engine that begins with `most_resident` tokens: the plan beyond them

    def settled(self, config: EngineConfig) -> EngineConfig:
        """The settings with the self-draft and the retrieval budget of this plan."""
        if self.composition is not None:
            config = replace(config, self_draft_bits=self.composition.value.self_draft_bits)
        if self.budget is None:
            return config
        return replace(config, retrieval=replace(config.retrieval, budget=self.budget.value, grows=False))

    @property
    def capacity(self) -> int:
        """Tokens that the full cache has rows for."""
        return self.most_resident if self.longer else self.context.value

    def at(self, num_tokens: int) -> "Plan":
        """The plan that holds for so many tokens."""
        return self.longer if self.longer and num_tokens > self.capacity else self

    @property
    def precision(self) -> str:
        """float32, for example; and what keys and values are kept in, where it is something else."""
        dtype, kv = (str(kind).removeprefix("torch.") for kind in (self.dtype.value, self.kv.value))
        return dtype if self.kv.value is None else f"{dtype}, {kv} cache"

    @property
    def num_layers(self) -> int:
        """Layers of the target."""
        return self.cache_sizes.layers

    @property
    def most_guesses(self) -> Choice[int]:
        """Guesses of a round that the full cache verifies."""
        return choose_most_guesses(self.device.value, away=self.resident_layers < self.num_layers)

    @property
    def total_bytes(self) -> int:
        """All rows on the device."""
        return sum(row.size_bytes for row in self.rows)

    def bytes_of(self, name: str) -> int:
        """Bytes of a row on the device; 0 if there is none of this name."""
        return sum(row.size_bytes for row in self.rows if row.name == name)

    @property
    def usable_bytes(self) -> int:
        """What rows on the device may take: the rest is for what no plan counts."""
        return usable_bytes(self.device.value, self.available_bytes)

    @property
    def host_bytes(self) -> int:
        """All rows in host memory."""
        return sum(row.size_bytes for row in self.host_rows)


def begun(plan: Plan) -> Plan:
    """The plan while all layers can be resident, because a prompt is short; the same, if that is never or always."""
    if plan.longer or not (most := plan.most_resident):
        return plan
    away = plan.num_layers - plan.resident_layers
    because = f"up to {most:,} tokens; behind more {away} of {plan.num_layers} layers wait in host memory"
    sizes, others = plan.cache_sizes, (PREFILL_BLOCK, *(row.name for row in _cache_rows(plan)))
    return replace(
        plan,
        longer=plan,
        placement=Choice("resident", because),
        prefill_block=NO_BLOCK,
        cpu_attention=NOTHING_SHARED,
        resident_layers=plan.num_layers,
        offload=None,
        rows=(
            *(row for row in plan.rows if row.name not in others),
            *sizes.device_rows(most, plan.num_layers),
        ),
        host_rows=sizes.host_rows(most, plan.num_layers),
    )


def _cache_rows(plan: Plan) -> tuple[PlanRow, ...]:
    """The last of the plan's rows."""
    return plan.cache_sizes.device_rows(plan.capacity, plan.resident_layers)


def placed(plan: Plan, resident: int, because: str) -> Plan:
    """The plan after loading, with fewer resident layers."""
    word: Placement = "split" if resident else "offloaded"
    stay = f"{resident} of {plan.num_layers} layers stay there" if resident else "no layer stays there"
    sizes, context = plan.cache_sizes, plan.capacity
    fixed = plan.rows[: -len(_cache_rows(plan))]
    return replace(
        plan,
        placement=Choice(word, f"{because}: {stay}"),
        resident_layers=resident,
        rows=(*fixed, *sizes.device_rows(context, resident)),
        host_rows=sizes.host_rows(context, resident),
    )


def block_changed(plan: Plan, block: int, because: str) -> Plan:
    """The plan with another block size."""
    changed = plan.cache_sizes.reading_rows(plan.capacity, block, plan.bytes_of(RETRIEVAL))
    at = next((number for number, row in enumerate(plan.rows) if row.name == PREFILL_BLOCK), None)
    rows = plan.rows if at is None else (*plan.rows[:at], *changed, *plan.rows[at + 1 :])
    return replace(plan, prefill_block=Choice(block, because), rows=rows)
