"""The plan: where everything lies, how much it takes, and why. Loading uses it; `doctor` and the page show it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

from core.caches.full_parts import Offload
from core.config import MOST_GUESSES, MOST_GUESSES_OVER_LINK, EngineConfig
from core.decoding.registry import default_method
from core.errors import ContextBeyondModel, InvalidSetting, NotEnoughMemory, NotPossibleHere
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import LEAVE_OUT
from core.planning.choices import (
    NO_BLOCK,
    NOTHING_SHARED,
    Choice,
    Composition,
    choose_bits,
    choose_cpu_attention,
    choose_device,
    choose_dtype,
    choose_kv,
)
from core.planning.devices import Rig
from core.planning.fit import STEP, Basis, Fit, largest_context
from core.planning.hardware import Machine
from core.planning.sizes import EMBEDDINGS, GIB, PREFILL_BLOCK, PlanRow, gib, pinned_bytes, taken, total

ON_WINDOWS = sys.platform == "win32"
LEAST_BEGUN = 8192  # tokens: with room for fewer an engine does not begin with all layers resident
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
    why_budget: str = ""  # of the retrieval cache; "": as it was set
    why_guesser: str = ""  # with the draft, or without it; "": not chosen (`core.planning.composition`)
    most_resident: int = 0  # tokens up to which all layers would be resident, where they are not at `context`; 0: none
    longer: "Plan | None" = None  # of an engine that begins with `most_resident` tokens: the plan beyond them

    @property
    def budget(self) -> Choice[int] | None:
        """Tokens of the retrieval cache; None: as it was set."""
        return Choice(self.config.retrieval.budget, self.why_budget) if self.why_budget else None

    @property
    def composition(self) -> Choice[Composition] | None:
        """Who guesses; None: not chosen."""
        drafts = self.draft is not None
        chosen = Composition(default_method(has_draft=drafts), drafts, self.config.self_draft_bits or 16)
        return Choice(chosen, self.why_guesser) if self.why_guesser else None

    def settled(self, config: EngineConfig) -> EngineConfig:
        """The settings with the self-draft and the retrieval budget of this plan."""
        if self.why_guesser:
            config = replace(config, self_draft_bits=self.config.self_draft_bits or 16)
        if self.why_budget:
            config = replace(config, retrieval=replace(self.config.retrieval, grows=False))
        return config

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
        return self.sizes.layers

    @property
    def layers_away(self) -> int:
        """Layers of the full cache that wait in host memory."""
        return self.num_layers - self.resident_layers

    @property
    def prefill_chunk(self) -> int:
        """Tokens read in one pass."""
        return self.chunk(offloaded=self.offloads)

    @property
    def most_guesses(self) -> int:
        """The longest round that adaptation may choose: guesses that the full cache verifies.

        A pass that waits for the link takes as long however many it verifies. Else more rows are not recorded on a GPU,
        and would not come out as each does alone, to the last bit, on a processor.
        """
        return MOST_GUESSES_OVER_LINK if self.on_gpu and self.layers_away else MOST_GUESSES

    @property
    def offload(self) -> Offload | None:
        """The settings of the full cache's other layers; None: all are resident."""
        return self.sizes.offload(self.context.value, self.resident_layers)

    @cached_property
    def rows(self) -> tuple[PlanRow, ...]:
        """All that takes memory on the device."""
        beside, cache = self.rows_beside(offloaded=self.offloads), self.sizes
        block = cache.block_bytes(self.capacity, self.prefill_block.value)
        reading = (PlanRow(PREFILL_BLOCK, block),) if block else ()
        return (*beside, *reading, *cache.device_rows(self.capacity, self.resident_layers))

    @property
    def host_rows(self) -> tuple[PlanRow, ...]:
        """All that takes host memory beside a GPU, or beyond --gpu-memory."""
        embeddings = pinned_bytes(self.embedding_bytes) if self.offloads else 0
        rows = self.sizes.host_rows(self.capacity, self.resident_layers)
        return taken(PlanRow(EMBEDDINGS, embeddings), *rows)

    @property
    def embeds_from_host(self) -> bool:
        """Whether the device reads embeddings from host memory."""
        return self.offloads and self.embedding_bytes > 0

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


# -------------------- making it


def make_plan(target: ModelSize, draft: ModelDims | None, config: EngineConfig, machine: Machine | Rig) -> Plan:
    """Plan an engine with this draft and these settings: choose device and types, find what fits, place everything.

    Args:
        machine: as it was found, or described.
    Raises:
        InvalidSetting, NotPossibleHere: this machine, or this version, does not compute as the settings say.
        NotEnoughMemory: the weights alone do not fit; or the wanted context does not, with the largest that would.
        ContextBeyondModel: the wanted context is longer than the model's.
    """
    rig = machine if isinstance(machine, Rig) else Rig(machine=machine)
    rig = replace(rig, machine=replace(rig.machine, gpus=rig.machine.gpus[: config.num_gpus]))
    device = choose_device(config, rig.machine)
    dtype = choose_dtype(device.value, target.dims)
    basis = Basis(
        size=target,
        draft=draft,
        config=config,
        rig=rig,
        device=Choice(device.value, "as described") if rig.assumed else device,
        dtype=dtype,
        kv=choose_kv(config, target.dims, device.value, dtype.value, rig.machine),
        bits=choose_bits(config, device.value, dtype.value),
    )
    if basis.ranks > 1:
        _check_ranks(basis)
    context, most = _choose_context(basis)
    fit = basis.fit(context.value)
    assert fit is not None, "a context that does not fit is refused before"
    away = fit.layers < basis.sizes.layers
    return Plan(
        **{field.name: getattr(basis, field.name) for field in fields(Basis)},
        placement=_placement(basis, fit.layers, context.value),
        context=context,
        most_context=most,
        offloads=away,
        resident_layers=fit.layers,
        prefill_block=_prefill_block(basis, fit, context.value) if away else NO_BLOCK,
        cpu_attention=choose_cpu_attention(config, device.value, away=away),
        most_resident=_most_begun(basis, context.value) if away else 0,
    )


def _check_ranks(basis: Basis) -> None:
    """Raises InvalidSetting, NotPossibleHere where several ranks cannot share the target."""
    if basis.model.num_kv_heads % basis.ranks:
        raise InvalidSetting(
            f"{basis.model.num_kv_heads} heads of keys and values cannot be shared by {basis.ranks} GPUs.",
            hint="Use a number of GPUs that divides them.",
        )
    if basis.on_gpu and ON_WINDOWS and basis.rig.kind is None:
        raise NotPossibleHere(
            "GPUs cannot share a model under Windows, where torch comes without NCCL.",
            hint="Start it in WSL2, or leave out --gpus.",
        )
    if basis.bits.value in FORMATS:
        raise InvalidSetting("Quantised weights are not shared between GPUs.", hint="Leave out --bits or --gpus.")
    if not basis.size.divisible:
        raise NotPossibleHere("The layers of this family cannot be shared by heads.", hint="Leave out --gpus.")


def _choose_context(basis: Basis) -> tuple[Choice[int], int]:
    """The context, and the most that would fit."""
    asked, possible = basis.config.context, basis.possible
    if asked is not None and asked > possible:
        raise ContextBeyondModel(asked, possible)
    most = largest_context(possible, lambda context: basis.fit(context) is not None)
    if most < STEP:
        raise _no_room(basis)
    if asked is not None and asked > most:
        raise _too_long(basis, asked, most)
    if asked is not None:
        return Choice(asked, "asked for"), most
    if most == possible:
        return Choice(possible, "all that the model can read"), most
    return Choice(most, f"{gib(basis.usable_bytes + basis.host_room)} of free memory hold no more"), most


def _prefill_block(basis: Basis, fit: Fit, context: int) -> Choice[int]:
    """Tokens that go through one layer before the next one begins; 0 for chunk by chunk."""
    if not fit.block:
        full = "chunk by chunk, as one layer's keys and values do not fit beside the rest"
        short = context <= 2 * basis.chunk(offloaded=True)
        return Choice(0, basis.never_layerwise or ("the context holds no more than two chunks" if short else full))
    crossing = "its keys and values are stored once and never brought back"
    if (blocks := -(-context // fit.block)) > 1:
        crossing = f"in {blocks} blocks, and what was read before crosses the link once a block instead of once a chunk"
    return Choice(fit.block, f"a long prompt is read layer by layer: {crossing}")


def _most_begun(basis: Basis, context: int) -> int:
    """Tokens with which an engine for `context` begins, all layers resident; 0: too few."""
    if basis.config.placement != "auto" or basis.ranks > 1:
        return 0
    most = basis.most_resident_within(basis.room_offloaded, context)
    return most if most >= LEAST_BEGUN else 0


# -------------------- reasons and refusals


def _device(basis: Basis) -> str:
    """The memory that the device computes from, in words."""
    several, one = ("each GPU", "the GPU") if basis.on_gpu else ("each process", "the processor")
    return several if basis.ranks > 1 else one


def _placement(basis: Basis, resident: int, context: int) -> Choice[Placement]:
    config, layers, on = basis.config, basis.sizes.layers, _device(basis)
    limit = "" if config.gpu_memory_gib is None else f", of {config.gpu_memory_gib:g} GiB allowed by --gpu-memory"
    ranks, kind = basis.ranks, "GPUs" if basis.on_gpu else "processes"
    shared = f"; {ranks} {kind} share the model by heads, sizes are those of one" if ranks > 1 else ""
    if resident == layers:
        because = f"weights and context fit into the {gib(basis.usable_bytes)} that can be used on {on}{limit}{shared}"
        return Choice("resident", because)
    away, free = gib(basis.sizes.host_bytes(context, resident)), gib(max(0, basis.room_offloaded))
    crossing = f"{limit}; {away} wait in host memory and cross the link for every pass over the full cache{shared}"
    asked = "asked for: " if config.placement in ("split", "offloaded") else ""
    if resident:
        return Choice("split", f"{asked}{resident} of {layers} layers fit into the {free} left on {on}{crossing}")
    none = f"no layer of it is kept on {on}" if asked else f"buffers leave no room for a layer in the {free} on {on}"
    return Choice("offloaded", f"{asked}{none}{crossing}")


def _no_room(basis: Basis) -> NotEnoughMemory:
    """Not even an empty conversation fits; the hint is the smallest change that would help."""
    needed, usable = gib(total(basis.rows_beside(offloaded=basis.host_room > 0))), gib(basis.usable_bytes)
    hint = "Choose a smaller model, or close other programs that take memory."
    if basis.config.self_draft_bits == DRAFTING_BITS:
        hint = LEAVE_OUT
    elif basis.config.gpu_memory_gib is not None:
        hint = "Raise --gpu-memory, or choose a smaller model."
    elif bits := _narrower(basis, lambda other: other.most_on_device >= STEP):
        hint = f"With --bits {bits} they would fit; answers are then exact for the quantised model."
    return NotEnoughMemory(
        f"The weights and what lies beside them need {needed} at {basis.bits.value} bits, {usable} can be used on "
        f"{_device(basis)}.",
        hint=hint,
    )


def _too_long(basis: Basis, context: int, most: int) -> NotEnoughMemory:
    """The weights fit, this many tokens do not. Sizes are those of all GPUs together, if they share the target."""
    cache, room, ranks, on = basis.sizes, basis.room_offloaded, basis.ranks, _device(basis)
    needed, left = cache.device_bytes(context, cache.layers), basis.room
    what, memories, buffers = "it needs", "beside the weights", cache.device_bytes(context, 0)
    if basis.host_room and buffers > room:
        needed, left, what, memories, ranks = buffers, room, "its buffers need", f"on {on}", 1
    elif basis.host_room:  # whole layers: what is left of a device holds no part of one
        here = max(layer for layer in range(cache.layers) if cache.device_bytes(context, layer) <= room)
        what, memories = f"{here} of its {cache.layers} layers fit on {on}, the others need", "in host memory"
        needed, left = total(cache.host_rows(context, here)), basis.host_room
    needed, left = ranks * needed, ranks * max(0, left)
    digits = next((digits for digits in (1, 2) if f"{needed / GIB:.{digits}f}" != f"{left / GIB:.{digits}f}"), 3)
    bits = _narrower(basis, lambda other: other.fit(context) is not None)
    instead = f", or --bits {bits}: answers are then exact for the quantised model" if bits else ""
    return NotEnoughMemory(
        f"The weights fit, a context of {context:,} tokens does not: {what} {needed / GIB:.{digits}f} GiB, "
        f"{left / GIB:.{digits}f} GiB are left {memories}.",
        hint=f"Use --context {most} or less{instead}.",
        largest_context=most,
    )


def _narrower(basis: Basis, suits: Callable[[Basis], bool]) -> int | None:
    """The first width of quantised weights below the present one that suits; several GPUs share none."""
    widths = (8, 4) if basis.ranks == 1 else ()
    return next(
        (bits for bits in widths if bits < basis.bits.value and suits(replace(basis, bits=Choice(bits, "")))), None
    )
