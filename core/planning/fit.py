"""What fits of a plan, in words: its context and where layers lie, with reasons; and refusals, with what would help."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from core.errors import ContextBeyondModel, InvalidSetting, NotEnoughMemory, NotPossibleHere
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import LEAVE_OUT
from core.planning.choices import NO_BLOCK, NOTHING_SHARED, Choice
from core.planning.sizes import GIB, STEP, gib, largest_context, total

if TYPE_CHECKING:
    from core.planning.plan import Plan

MOST_CONTEXT = 131_072
ON_WINDOWS = sys.platform == "win32"
Placement = Literal["resident", "split", "offloaded"]
UNPLACED: Choice[Placement] = Choice("resident", "")


def begun(plan: "Plan") -> "Plan":
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


def placed(plan: "Plan", resident: int, because: str) -> "Plan":
    """The plan after loading, with fewer resident layers."""
    word: Placement = "split" if resident else "offloaded"
    stay = f"{resident} of {plan.num_layers} layers stay there" if resident else "no layer stays there"
    return replace(plan, placement=Choice(word, f"{because}: {stay}"), resident_layers=resident)


def check_ranks(plan: "Plan") -> None:
    """Raises InvalidSetting, NotPossibleHere where several ranks cannot share the target."""
    if plan.ranks == 1:
        return
    if plan.model.num_kv_heads % plan.ranks:
        raise InvalidSetting(
            f"{plan.model.num_kv_heads} heads of keys and values cannot be shared by {plan.ranks} GPUs.",
            hint="Use a number of GPUs that divides them.",
        )
    if plan.on_gpu and ON_WINDOWS and plan.rig.kind is None:
        raise NotPossibleHere(
            "GPUs cannot share a model under Windows, where torch comes without NCCL.",
            hint="Start it in WSL2, or leave out --gpus.",
        )
    if plan.bits.value in FORMATS:
        raise InvalidSetting("Quantised weights are not shared between GPUs.", hint="Leave out --bits or --gpus.")
    if not plan.size.divisible:
        raise NotPossibleHere("The layers of this family cannot be shared by heads.", hint="Leave out --gpus.")


def choose_context(plan: "Plan") -> tuple[Choice[int], int]:
    """The context, and the most that would fit."""
    asked, possible = plan.config.context, plan.possible
    if asked is not None and asked > possible:
        raise ContextBeyondModel(asked, possible)
    most = largest_context(possible, lambda context: plan.fit(context) is not None)
    if most < STEP:
        raise _no_room(plan)
    if asked is not None and asked > most:
        raise _too_long(plan, asked, most)
    if asked is not None:  # blocks are cut by the context, so that a slightly longer one may need less
        fitting = (context for context in range(asked, most, STEP) if plan.fit(context) is not None)
        return Choice(next(fitting, most), "asked for"), most
    if most == possible:
        return Choice(possible, "all that the model can read"), most
    return Choice(most, f"{gib(plan.usable_bytes + plan.host_room)} of free memory hold no more"), most


def prefill_block(plan: "Plan", block: int, context: int) -> Choice[int]:
    """Tokens that go through one layer before the next one begins; 0 for chunk by chunk."""
    if not block:
        full = "chunk by chunk, as one layer's keys and values do not fit beside the rest"
        short = context <= 2 * plan.chunk(offloaded=True)
        return Choice(0, plan.never_layerwise or ("the context holds no more than two chunks" if short else full))
    crossing = "its keys and values are stored once and never brought back"
    if (blocks := -(-context // block)) > 1:
        crossing = f"in {blocks} blocks, and what was read before crosses the link once a block instead of once a chunk"
    return Choice(block, f"a long prompt is read layer by layer: {crossing}")


def _device(plan: "Plan") -> str:
    """The memory that the device computes from, in words."""
    several, one = ("each GPU", "the GPU") if plan.on_gpu else ("each process", "the processor")
    return several if plan.ranks > 1 else one


def placement(plan: "Plan", resident: int, context: int) -> Choice[Placement]:
    """Where the full cache lies with so many resident layers, and why."""
    config, layers, on = plan.config, plan.num_layers, _device(plan)
    limit = "" if config.gpu_memory_gib is None else f", of {config.gpu_memory_gib:g} GiB allowed by --gpu-memory"
    ranks, kind = plan.ranks, "GPUs" if plan.on_gpu else "processes"
    shared = f"; {ranks} {kind} share the model by heads, sizes are those of one" if ranks > 1 else ""
    if resident == layers:
        because = f"weights and context fit into the {gib(plan.usable_bytes)} that can be used on {on}{limit}{shared}"
        return Choice("resident", because)
    away, free = gib(plan.sizes.host_bytes(context, resident)), gib(max(0, plan.room_offloaded))
    crossing = f"{limit}; {away} wait in host memory and cross the link for every pass over the full cache{shared}"
    asked = "asked for: " if config.placement in ("split", "offloaded") else ""
    if resident:
        return Choice("split", f"{asked}{resident} of {layers} layers fit into the {free} left on {on}{crossing}")
    none = f"no layer of it is kept on {on}" if asked else f"buffers leave no room for a layer in the {free} on {on}"
    return Choice("offloaded", f"{asked}{none}{crossing}")


def _no_room(plan: "Plan") -> NotEnoughMemory:
    """Not even an empty conversation fits; the hint is the smallest change that would help."""
    needed, usable = gib(total(plan.rows_beside(offloaded=plan.host_room > 0))), gib(plan.usable_bytes)
    hint = "Choose a smaller model, or close other programs that take memory."
    if plan.config.self_draft_bits == DRAFTING_BITS:
        hint = LEAVE_OUT
    elif plan.config.gpu_memory_gib is not None:
        hint = "Raise --gpu-memory, or choose a smaller model."
    elif bits := _narrower(plan, STEP):
        hint = f"With --bits {bits} they would fit; answers are then exact for the quantised model."
    width = "as they are stored" if plan.as_stored else f"at {plan.bits.value} bits"
    return NotEnoughMemory(
        f"The weights and what lies beside them need {needed} {width}, {usable} can be used on {_device(plan)}.",
        hint=hint,
    )


def _too_long(plan: "Plan", context: int, most: int) -> NotEnoughMemory:
    """The weights fit, this many tokens do not. Sizes are those of all GPUs together, if they share the target."""
    cache, room, ranks, on = plan.sizes, plan.room_offloaded, plan.ranks, _device(plan)
    needed, left = cache.device_bytes(context, cache.layers), plan.room
    what, memories, buffers = "it needs", "beside the weights", cache.device_bytes(context, 0)
    if plan.host_room and buffers > room:
        needed, left, what, memories, ranks = buffers, room, "its buffers need", f"on {on}", 1
    elif plan.host_room and cache.layers:  # whole layers: what is left of a device holds no part of one
        here = max(layer for layer in range(cache.layers) if cache.device_bytes(context, layer) <= room)
        what, memories = f"{here} of its {cache.layers} layers fit on {on}, the others need", "in host memory"
        needed, left = total(cache.host_rows(context, here)), plan.host_room
    needed, left = ranks * needed, ranks * max(0, left)
    digits = next((digits for digits in (1, 2) if f"{needed / GIB:.{digits}f}" != f"{left / GIB:.{digits}f}"), 3)
    bits = _narrower(plan, context)
    instead = f", or --bits {bits}: answers are then exact for the quantised model" if bits else ""
    return NotEnoughMemory(
        f"The weights fit, a context of {context:,} tokens does not: {what} {needed / GIB:.{digits}f} GiB, "
        f"{left / GIB:.{digits}f} GiB are left {memories}.",
        hint=f"Use --context {most} or less{instead}.",
        largest_context=most,
    )


def _narrower(plan: "Plan", context: int) -> int | None:
    """The first width of quantised weights with which a context fits; not that of a copy; several GPUs share none."""
    widths = [bits for bits in (8, 4) if bits < plan.bits.value and bits != plan.config.self_draft_bits]
    narrower = (replace(plan, bits=Choice(bits, "")) for bits in widths if plan.ranks == 1)
    return next((other.bits.value for other in narrower if other.fit(context) is not None), None)
