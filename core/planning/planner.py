"""What fits where, before anything is loaded. Pure arithmetic on sizes; every choice comes with its reason.

Engines are loaded with this plan, and `rig_plan` shows it for machines that are only described.
"""

from typing import Protocol

from core.config import EngineConfig
from core.errors import ContextBeyondModel, NotEnoughMemory
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import LEAVE_OUT
from core.planning.basis import Basis
from core.planning.choices import Choice, choose_cpu_attention
from core.planning.hardware import Machine
from core.planning.machine_spec import nominal_bandwidths
from core.planning.memory_plan import Placement, Plan
from core.planning.placement import STEP, choose_prefill_block
from core.planning.sizes import gib


class Words(Protocol):
    """The wording of a plan for its reader: its reasons, and the two refusals."""

    def no_room(self, basis: Basis) -> NotEnoughMemory:
        """The weights alone do not fit."""

    def too_long(self, basis: Basis, context: int, most: int) -> NotEnoughMemory:
        """The weights fit, the wanted context does not; `most` tokens would."""

    def cut(self, basis: Basis) -> str:
        """Why the context is shorter than the model's."""

    def placement(self, basis: Basis, resident: int, context: int) -> Choice[Placement]:
        """Why this many layers are resident."""


def make_plan(
    target: ModelDims,
    draft: ModelDims | None,
    config: EngineConfig,
    machine: Machine,
    size: ModelSize | None = None,
) -> Plan:
    """Plan one engine.

    Args:
        size: counted parameters of the target; needed if any of its weights are to be quantised.
    Raises:
        InvalidSetting: the device does not compute with this number of bits.
        NotEnoughMemory: the weights alone do not fit; or the wanted context does not, with the largest that would.
        ContextBeyondModel: the wanted context is longer than the model's.
    """
    return plan_from(Basis.of(target, draft, config, machine, size), LoadingWords())


def plan_from(basis: Basis, words: Words) -> Plan:
    """Find what fits, and place everything.

    Raises:
        NotEnoughMemory, ContextBeyondModel: as `make_plan`.
    """
    context, most = _choose_context(basis, words)
    config, sizes, device, gpus = basis.config, basis.sizes, basis.device.value, basis.machine.gpus
    fit = basis.fit(context.value)
    assert fit is not None, "a context that does not fit is refused before"
    here = fit.layers
    away = here < sizes.layers
    return Plan(
        device=basis.device,
        dtype=basis.dtype,
        kv=basis.kv,
        bits=basis.bits,
        placement=words.placement(basis, here, context.value),
        context=context,
        most_context=most,
        prefill_chunk=basis.prefill_chunk(offloaded=away),
        prefill_block=choose_prefill_block(
            sizes, fit, context.value, basis.rooms, config, layerwise=basis.target.layerwise
        ),
        cpu_attention=choose_cpu_attention(config, device, away=away),
        rows=(
            *basis.fixed_rows(offloaded=away),
            *sizes.reading_rows(context.value, fit.block, basis.rooms.lent),
            *sizes.device_rows(context.value, here),
        ),
        available_bytes=basis.usable.available,
        cache_sizes=sizes,
        resident_layers=here,
        offload=sizes.offload(context.value, here),
        host_rows=sizes.host_rows(context.value, here),
        host_available_bytes=basis.usable.host_available if away else 0,
        nominal=nominal_bandwidths(device, gpus[0].name if gpus else ""),
        most_resident=basis.most_begun(context.value) if away else 0,
        copy_pays=basis.copy_pays,
    )


def _choose_context(basis: Basis, words: Words) -> tuple[Choice[int], int]:
    """The context, and the most that would fit."""
    asked, possible = basis.config.context, basis.possible
    if asked is not None and asked > possible:
        raise ContextBeyondModel(asked, possible)
    most = basis.most_context()
    if most < STEP:
        raise words.no_room(basis)
    if asked is not None and asked > most:
        raise words.too_long(basis, asked, most)
    if asked is not None:
        return Choice(asked, "asked for"), most
    if most == possible:
        return Choice(possible, "all that the model can read"), most
    return Choice(most, words.cut(basis)), most


class LoadingWords:
    """For users who start an engine on this machine."""

    def no_room(self, basis: Basis) -> NotEnoughMemory:
        """Names the option that would make room."""
        usable = basis.usable
        if basis.drafts_apart:
            hint = LEAVE_OUT
        elif usable.limit is not None:
            hint = "Raise --gpu-memory, or choose a smaller model."
        else:
            fewer = ", use --bits 8 or --bits 4" if basis.bits.value not in FORMATS else ""
            hint = f"Close other programs{fewer} or choose a smaller model."
        return NotEnoughMemory(
            f"The weights and what lies beside them need {gib(basis.fixed_bytes(offloaded=False))} of memory, "
            f"{gib(usable.device)} can be used on the {basis.device.value} device.",
            hint=hint,
        )

    def too_long(self, basis: Basis, context: int, most: int) -> NotEnoughMemory:
        """Names the largest context that would fit."""
        sizes, host, room = basis.sizes, basis.rooms.host, gib(basis.usable.device)
        buffers = basis.fixed_bytes(offloaded=True) + sizes.device_bytes(context, 0)
        needed = basis.fixed_bytes(offloaded=False) + sizes.device_bytes(context, sizes.layers)
        what, beside = f"needs {gib(needed)}", f", {gib(host)} in host memory" if host else ""
        if host and buffers > basis.usable.device:
            what, beside = f"needs {gib(buffers)} for weights and buffers alone", ""
        return NotEnoughMemory(
            f"A context of {context:,} tokens {what}, {room} can be used on the {basis.device.value} device{beside}.",
            hint=f"Use --context {most} or less.",
            largest_context=most,
        )

    def cut(self, basis: Basis) -> str:
        """Names both memories."""
        return f"{gib(basis.usable.device + basis.rooms.host)} of free memory hold no more"

    def placement(self, basis: Basis, resident: int, context: int) -> Choice[Placement]:
        """Names the wanted placement and what --gpu-memory allows."""
        usable, layers = basis.usable, basis.sizes.layers
        device = "the GPU" if usable.on_gpu else "the processor's share of memory"
        of_limit = "" if usable.limit is None else f", of {usable.limit:g} GiB allowed by --gpu-memory"
        where = f"{gib(usable.device)} that can be used on {device}{of_limit}"
        if resident == layers:
            return Choice("resident", f"weights and context fit into {where}")
        away = gib(basis.sizes.host_bytes(context, resident))
        crossing = f"{away} wait in host memory and cross the link in every full pass"
        asked = "asked for: " if basis.config.placement in ("split", "offloaded") else ""
        if resident == 0:
            none = "no layer of it is kept on the device" if asked else f"no layer fits beside the weights in {where}"
            return Choice("offloaded", f"{asked}{none}; {crossing}")
        return Choice("split", f"{asked}{resident} of {layers} layers fit beside the weights in {where}; {crossing}")
