"""The plan: where everything lies, how much it takes, and why. Loading uses it; `doctor` and the page show it."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

from core.caches.full_parts import Offload
from core.config import EngineConfig
from core.errors import ContextBeyondModel, NotEnoughMemory
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import LEAVE_OUT
from core.planning.choices import (
    NO_BLOCK,
    NOTHING_SHARED,
    Choice,
    Composition,
    choose_cpu_attention,
    choose_most_guesses,
)
from core.planning.devices import Rig
from core.planning.fit import STEP, Basis, Fit
from core.planning.hardware import Machine
from core.planning.sizes import GIB, PREFILL_BLOCK, PlanRow, gib, total

Placement = Literal["resident", "split", "offloaded"]


@dataclass(frozen=True, kw_only=True)
class Plan(Basis):
    """Where everything goes on one device, or on one of several ranks that share the target; and what it rests on."""

    placement: Choice[Placement]
    context: Choice[int]
    most_context: int  # the longest that would fit in device and host memory together
    offloads: bool  # whether it was made with layers in host memory, which changes how a prompt is read
    resident_layers: int
    prefill_block: Choice[int] = NO_BLOCK  # tokens read layer by layer; 0: chunk by chunk
    # Share of the blocks in host memory that the host attends to; None: the engine measures it at its start.
    cpu_attention: Choice[float | None] = NOTHING_SHARED
    budget: Choice[int] | None = None  # of the retrieval cache; None: as it was set
    composition: Choice[Composition] | None = None  # who guesses; None: not chosen (`core.planning.composition`)
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
        """Such as "float32", and the type of keys and values where it differs."""
        dtype, kv = (str(kind).removeprefix("torch.") for kind in (self.dtype.value, self.kv.value))
        return dtype if self.kv.value is None else f"{dtype}, {kv} cache"

    @property
    def self_draft_bits(self) -> Choice[int]:
        """Of the weights for passes over the retrieval cache."""
        if self.config.self_draft_bits == DRAFTING_BITS:
            return Choice(DRAFTING_BITS, "a second copy of the linear weights, used for guesses only")
        return Choice(self.bits.value, "the target's own weights")

    @property
    def num_layers(self) -> int:
        """Layers of the full cache."""
        return self.cache_sizes.layers

    @property
    def layers_away(self) -> int:
        """Layers of the full cache that wait in host memory."""
        return self.num_layers - self.resident_layers

    @property
    def prefill_chunk(self) -> Choice[int]:
        """Tokens read in one pass."""
        return self.chunk(offloaded=self.offloads)

    @property
    def most_guesses(self) -> Choice[int]:
        """Guesses of a round that the full cache verifies."""
        return choose_most_guesses(self.device.value, away=self.layers_away > 0)

    @property
    def offload(self) -> Offload | None:
        """The settings of the full cache's other layers; None: all are resident."""
        return self.cache_sizes.offload(self.context.value, self.resident_layers)

    @cached_property
    def rows(self) -> tuple[PlanRow, ...]:
        """All that takes memory on the device."""
        beside, cache = self.rows_beside(offloaded=self.offloads), self.cache_sizes
        block = cache.block_bytes(self.capacity, self.prefill_block.value, self.rooms.lent)
        reading = (PlanRow(PREFILL_BLOCK, block),) if block else ()
        return (*beside, *reading, *cache.device_rows(self.capacity, self.resident_layers))

    @property
    def host_rows(self) -> tuple[PlanRow, ...]:
        """All that takes host memory beside a GPU, or beyond --gpu-memory."""
        return self.cache_sizes.host_rows(self.capacity, self.resident_layers)

    @property
    def total_bytes(self) -> int:
        """All rows on the device."""
        return total(self.rows)

    def bytes_of(self, name: str) -> int:
        """Bytes of a row on the device; 0 if there is none of this name."""
        return sum(row.size_bytes for row in self.rows if row.name == name)

    @property
    def host_bytes(self) -> int:
        """All rows in host memory."""
        return total(self.host_rows)


def begun(plan: Plan) -> Plan:
    """The plan with which an engine begins, all layers resident; `plan` itself if that is never or always so."""
    if plan.longer or not (most := plan.most_resident):
        return plan
    because = f"up to {most:,} tokens; behind more {plan.layers_away} of {plan.num_layers} layers wait in host memory"
    return replace(
        plan,
        longer=plan,
        placement=Choice("resident", because),
        prefill_block=NO_BLOCK,
        cpu_attention=NOTHING_SHARED,
        resident_layers=plan.num_layers,
    )


def placed(plan: Plan, resident: int, because: str) -> Plan:
    """The plan after loading, with fewer resident layers."""
    word: Placement = "split" if resident else "offloaded"
    stay = f"{resident} of {plan.num_layers} layers stay there" if resident else "no layer stays there"
    return replace(plan, placement=Choice(word, f"{because}: {stay}"), resident_layers=resident)


def block_changed(plan: Plan, block: int, because: str) -> Plan:
    """The plan with another block size."""
    return replace(plan, prefill_block=Choice(block, because))


# -------------------- making it


def make_plan(
    model: ModelDims, draft: ModelDims | None, config: EngineConfig, machine: Machine, size: ModelSize | None = None
) -> Plan:
    """Plan an engine with this draft and these settings on a machine; see `Basis.of` and `plan_from`."""
    return plan_from(Basis.of(model, draft, config, Rig.of(machine, config.num_gpus), size))


def plan_from(basis: Basis) -> Plan:
    """Find what fits, and place everything.

    Raises:
        NotEnoughMemory: the weights alone do not fit; or the wanted context does not, with the largest that would.
        ContextBeyondModel: the wanted context is longer than the model's.
    """
    context, most = _choose_context(basis)
    fit = basis.fit(context.value)
    assert fit is not None, "a context that does not fit is refused before"
    away = fit.layers < basis.cache_sizes.layers
    return Plan(
        **{field.name: getattr(basis, field.name) for field in fields(Basis)},
        placement=_placement(basis, fit.layers, context.value),
        context=context,
        most_context=most,
        offloads=away,
        resident_layers=fit.layers,
        prefill_block=_prefill_block(basis, fit, context.value),
        cpu_attention=choose_cpu_attention(basis.config, basis.device.value, away=away),
        most_resident=basis.most_begun(context.value) if away else 0,
    )


def _choose_context(basis: Basis) -> tuple[Choice[int], int]:
    """The context, and the most that would fit."""
    asked, possible = basis.config.context, basis.possible
    if asked is not None and asked > possible:
        raise ContextBeyondModel(asked, possible)
    most = basis.longest()
    if most < STEP:
        raise _no_room(basis)
    if asked is not None and asked > most:
        raise _too_long(basis, asked, most)
    if asked is not None:
        return Choice(asked, "asked for"), most
    if most == possible:
        return Choice(possible, "all that the model can read"), most
    return Choice(most, f"{gib(basis.usable_bytes + basis.rooms.host)} of free memory hold no more"), most


def _prefill_block(basis: Basis, fit: Fit, context: int) -> Choice[int]:
    """Tokens that go through one layer before the next one begins; 0 for chunk by chunk."""
    if fit.block:
        blocks = -(-context // fit.block)
        crossing = (
            "its keys and values are stored once and never brought back"
            if blocks == 1
            else f"in {blocks} blocks, and what was read before crosses the link once a block instead of once a chunk"
        )
        return Choice(fit.block, f"a long prompt is read layer by layer: {crossing}")
    if fit.layers == basis.cache_sizes.layers:
        return NO_BLOCK
    if not basis.config.layerwise:
        return Choice(0, "chunk by chunk was asked for")
    if basis.ranks > 1:
        return Choice(0, "chunk by chunk, as several processes share each layer")
    if not basis.target.layerwise:
        return Choice(0, "chunk by chunk, as the layers of this family are not called one by one")
    if context <= 2 * basis.rooms.chunk:
        return Choice(0, "the context holds no more than two chunks")
    return Choice(0, "chunk by chunk, as one layer's keys and values do not fit beside the rest")


# -------------------- reasons and refusals


def _device(basis: Basis) -> str:
    """The memory that the device computes from, in words."""
    ranks = basis.ranks
    if basis.on_gpu:
        return "each GPU" if ranks > 1 else "the GPU"
    return "each process" if ranks > 1 else "the processor"


def _placement(basis: Basis, resident: int, context: int) -> Choice[Placement]:
    config, layers, on = basis.config, basis.cache_sizes.layers, _device(basis)
    limit = "" if config.gpu_memory_gib is None else f", of {config.gpu_memory_gib:g} GiB allowed by --gpu-memory"
    ranks, kind = basis.ranks, "GPUs" if basis.on_gpu else "processes"
    shared = f"; {ranks} {kind} share the model by heads, sizes are those of one" if ranks > 1 else ""
    if resident == layers:
        because = f"weights and context fit into the {gib(basis.usable_bytes)} that can be used on {on}{limit}{shared}"
        return Choice("resident", because)
    away, free = gib(basis.cache_sizes.host_bytes(context, resident)), gib(max(0, basis.rooms.offloaded))
    crossing = f"{away} wait in host memory and cross the link for every pass over the full cache{shared}"
    asked = "asked for: " if config.placement in ("split", "offloaded") else ""
    if resident == 0:
        none = (
            f"no layer of it is kept on {on}" if asked else f"buffers leave no room for a layer in the {free} on {on}"
        )
        return Choice("offloaded", f"{asked}{none}{limit}; {crossing}")
    return Choice("split", f"{asked}{resident} of {layers} layers fit into the {free} left on {on}{limit}; {crossing}")


def _no_room(basis: Basis) -> NotEnoughMemory:
    """Not even an empty conversation fits; the hint is the smallest change that would help."""
    needed, usable = gib(total(basis.rows_beside(offloaded=False))), gib(basis.usable_bytes)
    return NotEnoughMemory(
        f"The weights and what lies beside them need {needed} at {basis.bits.value} bits, {usable} can be used on "
        f"{_device(basis)}.",
        hint=_way_out(basis),
    )


def _way_out(basis: Basis) -> str:
    size, machine = basis.size, basis.rig.machine
    if basis.config.self_draft_bits == DRAFTING_BITS:
        return LEAVE_OUT
    if basis.config.gpu_memory_gib is not None:
        return "Raise --gpu-memory, or choose a smaller model."
    for bits in _narrower(basis):
        if size is None:
            return "Use --bits 8 or --bits 4, close other programs or choose a smaller model."
        if replace(basis, bits=Choice(bits, "")).weights_fit:
            return f"With --bits {bits} they would fit; answers are then exact for the quantised model."
    two = replace(basis, rig=replace(basis.rig, machine=replace(machine, gpus=machine.gpus * 2)))
    if basis.on_gpu and basis.ranks == 1 and size and basis.model.num_kv_heads % 2 == 0 and two.weights_fit:
        return "Two such GPUs would hold them."
    return "Choose a smaller model, or close other programs that take memory."


def _too_long(basis: Basis, context: int, most: int) -> NotEnoughMemory:
    """The weights fit, this many tokens do not. Sizes are those of all GPUs together, if they share the target."""
    cache, rooms, ranks, on = basis.cache_sizes, basis.rooms, basis.ranks, _device(basis)
    needed, left = cache.device_bytes(context, cache.layers), max(0, rooms.resident)
    what, memories, buffers = "it needs", "beside the weights", cache.device_bytes(context, 0)
    if rooms.host and buffers > rooms.offloaded:
        needed, left, what, memories = buffers, max(0, rooms.offloaded), "its buffers need", f"on {on}"
        ranks = 1
    elif rooms.host:  # whole layers: what is left of a device holds no part of one
        here = max(layer for layer in range(cache.layers) if cache.device_bytes(context, layer) <= rooms.offloaded)
        windows = 0 if cache.on_host else cache.remembered_bytes(context)
        what, memories = f"{here} of its {cache.layers} layers fit on {on}, the others need", "in host memory"
        needed, left = cache.host_bytes(context, here) + windows, max(0, rooms.host)
    needed, left = ranks * needed, ranks * left
    digits = next((digits for digits in (1, 2) if f"{needed / GIB:.{digits}f}" != f"{left / GIB:.{digits}f}"), 3)
    narrow = (bits for bits in _narrower(basis) if basis.size is not None)
    other = next((bits for bits in narrow if replace(basis, bits=Choice(bits, "")).fit(context) is not None), None)
    instead = f", or --bits {other}: answers are then exact for the quantised model" if other else ""
    return NotEnoughMemory(
        f"The weights fit, a context of {context:,} tokens does not: {what} {needed / GIB:.{digits}f} GiB, "
        f"{left / GIB:.{digits}f} GiB are left {memories}.",
        hint=f"Use --context {most} or less{instead}.",
        largest_context=most,
    )


def _narrower(basis: Basis) -> tuple[int, ...]:
    """Widths of quantised weights below the present one; several GPUs share none."""
    return tuple(bits for bits in (8, 4) if bits < basis.bits.value) if basis.ranks == 1 else ()
