"""What fits where, before anything is loaded. Pure arithmetic on sizes; every choice comes with its reason.

The full cache lies beside the weights if it fits there; else as many of its first layers as fit do, and the others wait
in host memory. On a processor both are the same RAM, and only a limit (`--gpu-memory`) makes them two.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple, TypeVar

import torch

from core.caches.full import Offload
from core.caches.layer_storage import KEPT_ROWS, tail_rows
from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE
from core.caches.retrieval import GROWTH
from core.config import MOST_GUESSES, MOST_GUESSES_OVER_LINK, EngineConfig
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import LEAVE_OUT
from core.ops.graphs import graph_bytes
from core.planning.hardware import Machine
from core.planning.machine_spec import HOST_BANDWIDTH, LIKE, gpu_kinds, kind_of

MOST_CONTEXT = 131_072
# torch, transformers and Python themselves, measured: 0.55 GB on CPU (a CUDA context takes about as much on the GPU)
RUNTIME_BYTES = 600 << 20
GIB = 1 << 30
STEP = 64  # tokens: contexts that memory decides are multiples of it
RING_SLOTS = 4  # pieces of keys and values on their way, in use, or being freed
# Large enough that starting a copy and attending to it cost little beside the copy (0.3 ms at 25 GB/s); small enough
# for a ring and, on the device, the newest block of every offloaded layer.
PIECE_BYTES = 8 << 20
FEWEST_BLOCKS = 16  # of a full context: pieces of a short one are smaller
LEAST_BLOCK = 64  # rows
# Attention of T rows to a cached token takes 4 T H D operations, bringing it from the host 4 H_kv D bytes: at 100
# TFLOP/s and 25 GB/s both last equally long where T = 4000 H_kv / H, here in whole STEPs. Longer pieces of a prompt
# read no faster.
LINK_BOUND_ROWS = 3968
# Part of the free memory that a plan may use: the rest stays for the system and for what cannot be foreseen.
USABLE_SHARE = 0.9
TARGET_WEIGHTS, RETRIEVAL = "target weights", "retrieval cache"
DRAFTING_WEIGHTS = f"drafting weights, {DRAFTING_BITS} bit"
PREFILL_BLOCK = "prefill, layer by layer"
# Reading layer by layer in n blocks brings a text (n - 1) / 2 times over the link, chunk by chunk as often with the
# number of chunks for n. The fewest tokens of a block are an eighth of the context; what is left may make it longer.
MOST_PREFILL_BLOCKS = 8
MOST_HIDDEN_BYTES = 528 << 20  # hidden states of a block: of Llama2-7B's, 64K tokens in whole pieces
USUAL_MLP = 4  # times as wide as hidden states, where the configuration does not say


T = TypeVar("T")
Placement = Literal["resident", "split", "offloaded"]


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value and why it was chosen."""

    value: T
    because: str


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes per second, of each device."""

    memory: Choice[float]  # that the device computes from
    link: Choice[float] | None  # from host memory to a GPU; None on the processor
    host: Choice[float] | None = None  # of host memory, where the host attends; None: it does not


def nominal_bandwidths(device: str, gpu: str = "") -> Bandwidths:
    """Of a GPU with this name, or of the processor; from data sheets, so that nothing measured is in it."""
    host = Choice(HOST_BANDWIDTH, "nominal, as of two server cores")
    if device != "cuda":
        return Bandwidths(host, None)
    known = kind_of(gpu)
    kind = known or gpu_kinds()[LIKE]
    because = f"nominal, as of an {kind.name}" + ("" if known or not gpu else f", as {gpu} is not known")
    return Bandwidths(
        Choice(1e9 * kind.memory_gb_per_second, because), Choice(1e9 * kind.link_gb_per_second, because), host
    )


NOMINAL_CPU = nominal_bandwidths("cpu")


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
    placement: Choice[Placement]
    context: Choice[int]
    most_context: int  # that would fit, host memory taken together with the device's
    prefill_chunk: Choice[int]  # tokens read in one pass
    prefill_block: Choice[int] = Choice(0, "nothing waits in host memory")  # read layer by layer; 0: chunk by chunk
    # Share of the blocks in host memory that the host attends to; None: the engine measures it at its start.
    coattention: Choice[float | None] = Choice(0.0, "nothing waits in host memory")
    rows: tuple[PlanRow, ...]  # on the device
    available_bytes: int  # free on the device, or what it may hold
    cache_sizes: "CacheSizes"
    resident_layers: int
    offload: Offload | None = None  # None: the full cache is resident
    host_rows: tuple[PlanRow, ...] = ()
    host_available_bytes: int = 0
    nominal: Bandwidths = NOMINAL_CPU  # that rounds are shaped by where nothing measured may count

    @property
    def num_layers(self) -> int:
        """Of the target."""
        return self.cache_sizes.layers

    @property
    def most_guesses(self) -> Choice[int]:
        """Of a round that the full cache judges."""
        return choose_most_guesses(self.device.value, away=self.resident_layers < self.num_layers)

    @property
    def total_bytes(self) -> int:
        """All rows on the device."""
        return sum(row.size_bytes for row in self.rows)

    @property
    def usable_bytes(self) -> int:
        """What rows on the device may take: the rest is for kernels, the CUDA context and the allocator."""
        return int(self.available_bytes * USABLE_SHARE)

    @property
    def host_bytes(self) -> int:
        """All rows in host memory."""
        return sum(row.size_bytes for row in self.host_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """What the full cache takes on each device and on the host, by context and number of resident layers."""

    layers: int
    shares: int  # devices that share each layer by heads
    row_bytes: int  # keys and values of one token in one layer, on each device
    side_bytes: int  # landmarks and sampled queries of one token in all layers, on each device
    chunk_size: int
    fixed_bytes: int = 0  # beside them whatever the context is: the newest queries, in all layers, on each device
    hidden_bytes: int = 0  # hidden states of one token; 0: the layers cannot be called one by one
    # Rows of a long pass through one layer, kept until they have been read on their way to the host, while the next
    # layer computes; 0: on a processor, which stores at once.
    sending_rows: int = 0

    @classmethod
    def of(
        cls, dims: ModelDims, config: EngineConfig, dtype: torch.dtype, shares: int = 1, device: str = "cpu"
    ) -> "CacheSizes":
        """For a model."""
        kv = kv_bytes_per_token(dims, dtype)
        side = context_bytes_per_token(dims, config, dtype) - kv
        return cls(
            layers=dims.num_layers,
            shares=shares,
            row_bytes=kv // dims.num_layers // shares,
            side_bytes=-(-side // shares),
            chunk_size=config.retrieval.chunk_size,
            fixed_bytes=-(-beside_bytes(dims, dtype) // shares),
            hidden_bytes=dims.hidden_size * dtype.itemsize if dims.layerwise and config.layerwise else 0,
            sending_rows=choose_prefill_chunk(dims, config, device, offloaded=True).value if device == "cuda" else 0,
        )

    def layer_bytes(self, context: int) -> int:
        """Keys and values of one layer that lies on each device whole, an odd number of rows (`KVShape.allocate`)."""
        return self.row_bytes * (context | 1)

    def beside_bytes(self, context: int) -> int:
        """Landmarks and query log of all layers, which lie on each device wherever keys and values do."""
        return self.side_bytes * context + self.fixed_bytes

    def block_rows(self, context: int) -> int:
        """Rows of one layer that cross the link in one piece; a multiple of the chunk size."""
        rows = max(LEAST_BLOCK, min(PIECE_BYTES // self.row_bytes, context // FEWEST_BLOCKS))
        return -(-rows // self.chunk_size) * self.chunk_size

    def ring_bytes(self, context: int) -> int:
        """Buffers on each device for pieces on their way: to it, and one from it, with the rows that this one takes."""
        storing = self.block_rows(context) + self.sending_rows if self.sending_rows else 0
        return (RING_SLOTS * self.block_rows(context) + storing) * self.row_bytes

    def tail_bytes(self, context: int) -> int:
        """Newest rows of one offloaded layer that stay on each device, and those that a long pass keeps beside them."""
        block = self.block_rows(context)
        return ((tail_rows(block) | 1) + KEPT_ROWS + block - 1) * self.row_bytes

    def device_bytes(self, context: int, resident: int) -> int:
        """All of it on each device, with so many resident layers."""
        away = self.layers - resident
        rows = resident * self.layer_bytes(context) + self.beside_bytes(context)
        return rows + (self.ring_bytes(context) + away * self.tail_bytes(context) if away else 0)

    def host_bytes(self, context: int, resident: int) -> int:
        """All of it in host memory: whole blocks, from every device's share."""
        block = self.block_rows(context)
        return (self.layers - resident) * self.row_bytes * self.shares * (-(-context // block) * block)

    def layers_that_fit(self, context: int, resident: int, offloaded: int, host: int, most: int) -> int | None:
        """The most layers, up to `most`, that can be resident; None where the context does not fit.

        Args:
            resident, offloaded: bytes left on each device if all layers are resident, and if not all are.
            host: bytes left in host memory.
        """
        if most == self.layers and self.device_bytes(context, most) <= resident:
            return most
        for here in range(min(most, self.layers - 1), -1, -1):
            if self.device_bytes(context, here) <= offloaded:
                return here if self.host_bytes(context, here) <= host else None
        return None

    def block_bytes(self, context: int, block: int, lent: int) -> int:
        """Device memory for reading blocks of so many tokens layer by layer: one layer's rows, and hidden states.

        Args:
            lent: bytes that stand empty meanwhile, the retrieval cache's.
        """
        return max(0, self.layer_bytes(context) + block * self.hidden_bytes - lent) if block else 0

    def fit(self, context: int, room: "Rooms", most: int) -> "Fit | None":
        """Resident layers and the block to read; the latter may cost some of the former. None: nothing fits."""
        layers = self.layers_that_fit(context, room.resident, room.offloaded, room.host, most)
        if layers is None:
            return None
        if layers == self.layers or not self.hidden_bytes or not room.chunk or context <= 2 * room.chunk:
            return Fit(layers, 0)
        least = -(-context // (MOST_PREFILL_BLOCKS * room.chunk)) * room.chunk
        extra = self.block_bytes(context, least, room.lent)
        fewer = self.layers_that_fit(context, 0, room.offloaded - extra, room.host, min(most, layers))
        if fewer is None or fewer == self.layers:
            return Fit(layers, 0)
        left = room.offloaded - self.device_bytes(context, fewer) + room.lent - self.layer_bytes(context)
        possible = min(left, MOST_HIDDEN_BYTES) // self.hidden_bytes // room.chunk * room.chunk
        return Fit(fewer, min(max(least, possible), -(-context // room.chunk) * room.chunk))

    def device_rows(self, context: int, resident: int) -> tuple[PlanRow, ...]:
        """What `device_bytes` consists of."""
        kept, side = resident * self.layer_bytes(context), self.beside_bytes(context)
        if resident == self.layers:
            return (PlanRow("full cache, landmarks, query log", kept + side),)
        kept_rows = [PlanRow(f"full cache, {resident} of {self.layers} layers", kept)] if resident else []
        tails = (self.layers - resident) * self.tail_bytes(context)
        return (
            *kept_rows,
            PlanRow("landmarks, query log", side),
            PlanRow("newest rows of offloaded layers", tails),
            PlanRow("ring of copies", self.ring_bytes(context)),
        )

    def host_rows(self, context: int, resident: int) -> tuple[PlanRow, ...]:
        """What `host_bytes` consists of."""
        away = self.layers - resident
        which = f", {away} of {self.layers} layers" if resident else ""
        return (PlanRow(f"full cache{which}, host", self.host_bytes(context, resident)),) if away else ()

    def offload(self, context: int, resident: int) -> Offload | None:
        """How a cache is to be made."""
        if resident == self.layers:
            return None
        return Offload(num_resident=resident, block_rows=self.block_rows(context), num_slots=RING_SLOTS)


class Rooms(NamedTuple):
    """Bytes left for the full cache, and how a prompt is read."""

    resident: int  # on each device if all layers are resident
    offloaded: int  # and if not all are
    host: int
    lent: int  # of what else lies there, free while a prompt is read
    chunk: int  # tokens of a pass where not all layers are resident; 0: only chunk by chunk


class Fit(NamedTuple):
    """What fits at a context."""

    layers: int  # resident ones
    block: int  # tokens that are read layer by layer; 0: chunk by chunk


def largest_context(possible: int, fits: Callable[[int], bool]) -> int:
    """The largest context that fits: `possible`, or a multiple of STEP below it. A smaller one never needs more."""
    if fits(possible):
        return possible
    low, high = 0, possible // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle)
    return low * STEP


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
        size: counted parameters of the target; needed where any of its weights are to be quantised.
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
    room = _Room.of(device.value, config, machine)
    sizes = CacheSizes.of(target, config, dtype.value, device=device.value)
    ways = (False, True)  # nothing is offloaded, or something
    chunks = [choose_prefill_chunk(target, config, device.value, offloaded=away) for away in ways]
    configs = [replace(config, prefill_chunk=chunk.value) for chunk in chunks]
    fixed = [
        _fixed_rows(target, draft, own, device.value, dtype.value, offloaded=away)
        for own, away in zip(configs, ways, strict=True)
    ]
    if bits.value in FORMATS:
        assert size is not None, "quantised weights are planned from counted parameters"
        fixed = [_quantised_rows(rows, size, bits.value, dtype.value) for rows in fixed]
    drafts_apart = config.drafting_bits == DRAFTING_BITS
    if drafts_apart:
        assert size is not None, "drafting weights are planned from counted parameters"
        fixed = [(*rows, PlanRow(DRAFTING_WEIGHTS, size.drafting_bytes)) for rows in fixed]
    taken = [sum(row.size_bytes for row in rows) for rows in fixed]
    most = {"split": sizes.layers - 1, "offloaded": 0}.get(config.placement, sizes.layers)
    host = 0 if config.placement == "resident" else room.host
    rooms = Rooms(
        resident=room.device - taken[0],
        offloaded=room.device - taken[1],
        host=host,
        lent=retrieval_bytes(target, config, dtype.value),
        chunk=chunks[True].value if config.num_gpus == 1 else 0,
    )
    fits = largest_context(possible, lambda context: sizes.fit(context, rooms, most) is not None)
    where = f"on the {device.value} device"
    if fits < STEP:
        raise NotEnoughMemory(
            f"The weights and what lies beside them need {gib(taken[0])} of memory, "
            f"{gib(room.device)} can be used {where}.",
            hint=LEAVE_OUT
            if drafts_apart
            else _smaller(bits.value)
            if room.limit is None
            else "Raise --gpu-memory, or choose a smaller model.",
        )
    if config.context is not None and config.context > fits:
        buffers = taken[1] + sizes.device_bytes(config.context, 0)
        needed = taken[0] + sizes.device_bytes(config.context, sizes.layers)
        beside = f", {gib(host)} in host memory" if host else ""
        what = f"needs {gib(needed)}"
        if host and buffers > room.device:
            what, beside = f"needs {gib(buffers)} for weights, landmarks and buffers alone", ""
        raise NotEnoughMemory(
            f"A context of {config.context:,} tokens {what}, {gib(room.device)} can be used {where}{beside}.",
            hint=f"Use --context {fits // STEP * STEP} or less.",
            largest_context=fits // STEP * STEP,
        )
    context = (
        Choice(config.context, "asked for")
        if config.context is not None
        else Choice(possible, "all that the model can read")
        if fits == possible
        else Choice(fits // STEP * STEP, f"{gib(room.device + host)} of free memory hold no more")
    )
    fit = sizes.fit(context.value, rooms, most)
    assert fit is not None, "a context that does not fit is refused before"
    here = fit.layers
    away = here < sizes.layers
    block_rows = prefill_rows(sizes, context.value, fit.block, rooms.lent)
    return Plan(
        device=device,
        dtype=dtype,
        bits=bits,
        placement=_placement(sizes, here, context.value, room, config),
        context=context,
        most_context=fits,
        prefill_chunk=chunks[away],
        prefill_block=choose_prefill_block(sizes, fit, context.value, rooms, target, config),
        coattention=choose_coattention(config, device.value, away=away),
        rows=(*fixed[away], *block_rows, *sizes.device_rows(context.value, here)),
        available_bytes=room.available,
        cache_sizes=sizes,
        resident_layers=here,
        offload=sizes.offload(context.value, here),
        host_rows=sizes.host_rows(context.value, here),
        host_available_bytes=room.host_available if away else 0,
        nominal=nominal_bandwidths(device.value, machine.gpus[0].name if machine.gpus else ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Bytes that a plan may use, and what they are a part of."""

    device: int
    host: int
    available: int
    host_available: int
    limit: float | None  # GiB, from --gpu-memory
    on_gpu: bool

    @classmethod
    def of(cls, device: str, config: EngineConfig, machine: Machine) -> "_Room":
        on_gpu, limit = device == "cuda", config.gpu_memory_gib
        there = machine.gpus[0].free_bytes if on_gpu else machine.free_ram_bytes
        available = there if limit is None else min(there, int(limit * GIB))
        # On a processor what is beyond the limit stands for host memory; without one there is nothing beyond.
        host_available = machine.free_ram_bytes if on_gpu else machine.free_ram_bytes - available
        return cls(
            device=int(available * USABLE_SHARE),
            host=max(0, int(host_available * USABLE_SHARE) - (RUNTIME_BYTES if on_gpu else 0)),
            available=available,
            host_available=host_available,
            limit=limit,
            on_gpu=on_gpu,
        )


def _placement(sizes: CacheSizes, here: int, context: int, room: _Room, config: EngineConfig) -> Choice[Placement]:
    device = "the GPU" if room.on_gpu else "the processor's share of memory"
    of_limit = "" if room.limit is None else f", of {room.limit:g} GiB allowed by --gpu-memory"
    usable = f"{gib(room.device)} that can be used on {device}{of_limit}"
    if here == sizes.layers:
        return Choice("resident", f"weights and context fit into {usable}")
    crossing = f"{gib(sizes.host_bytes(context, here))} wait in host memory and cross the link in every full pass"
    asked = "asked for: " if config.placement in ("split", "offloaded") else ""
    if here == 0:
        none = "no layer of it is kept on the device" if asked else f"no layer fits beside the weights in {usable}"
        return Choice("offloaded", f"{asked}{none}; {crossing}")
    return Choice("split", f"{asked}{here} of {sizes.layers} layers fit beside the weights in {usable}; {crossing}")


def placed(plan: Plan, resident: int, because: str) -> Plan:
    """The plan as it turned out, with fewer resident layers."""
    word: Placement = "split" if resident else "offloaded"
    stay = f"{resident} of {plan.num_layers} layers stay there" if resident else "no layer stays there"
    sizes, context = plan.cache_sizes, plan.context.value
    fixed = plan.rows[: -len(sizes.device_rows(context, plan.resident_layers))]
    return replace(
        plan,
        placement=Choice(word, f"{because}: {stay}"),
        resident_layers=resident,
        rows=(*fixed, *sizes.device_rows(context, resident)),
        host_rows=sizes.host_rows(context, resident),
    )


def prefill_rows(sizes: CacheSizes, context: int, block: int, lent: int) -> tuple[PlanRow, ...]:
    """What reading blocks layer by layer takes beside the memory that is lent."""
    size = sizes.block_bytes(context, block, lent)
    return (PlanRow(PREFILL_BLOCK, size),) if size else ()


def choose_prefill_block(
    sizes: CacheSizes, fit: Fit, context: int, rooms: Rooms, target: ModelDims, config: EngineConfig
) -> Choice[int]:
    """Tokens that go through one layer before the next one begins; 0 for chunk by chunk."""
    if fit.block:
        blocks = -(-context // fit.block)
        crossing = (
            "its keys and values are stored once and never brought back"
            if blocks == 1
            else (f"in {blocks} blocks, and what was read before crosses the link once a block instead of once a chunk")
        )
        return Choice(fit.block, f"a long prompt is read layer by layer: {crossing}")
    if fit.layers == sizes.layers:
        return Choice(0, "nothing waits in host memory")
    if not config.layerwise:
        return Choice(0, "chunk by chunk was asked for")
    if config.num_gpus > 1:
        return Choice(0, "chunk by chunk, as several processes share each layer")
    if not target.layerwise:
        return Choice(0, "chunk by chunk, as the layers of this family are not called one by one")
    if context <= 2 * rooms.chunk:
        return Choice(0, "the context holds no more than two chunks")
    return Choice(0, "chunk by chunk, as one layer's keys and values do not fit beside the rest")


def choose_coattention(config: EngineConfig, device: str, *, away: bool) -> Choice[float | None]:
    """Share of the blocks in host memory that the host attends to in short passes; None: to be measured.

    Args:
        away: whether any layer waits there.
    """
    if not away:
        return Choice(0.0, "nothing waits in host memory")
    if config.host_share is not None:
        return Choice(config.host_share, "asked for")
    if device != "cuda":
        return Choice(0.0, "the processor is the device itself")
    if config.num_gpus > 1:
        return Choice(0.0, "several processes share the model")
    return Choice(None, "measured when the model is loaded")


def choose_most_guesses(device: str, *, away: bool) -> Choice[int]:
    """The longest round that adapting may choose.

    Args:
        away: whether passes over the full cache bring any layer over the link.
    """
    if device == "cuda" and away:
        return Choice(MOST_GUESSES_OVER_LINK, "a pass takes as long as the link, however many guesses it judges")
    if device == "cuda":
        return Choice(MOST_GUESSES, "passes of more rows are not recorded")
    return Choice(MOST_GUESSES, "more rows would not come out as each does alone, to the last bit")


def block_changed(plan: Plan, block: int, because: str) -> Plan:
    """The plan with another block to read."""
    lent = sum(row.size_bytes for row in plan.rows if row.name == RETRIEVAL)
    changed = prefill_rows(plan.cache_sizes, plan.context.value, block, lent)
    at = next((number for number, row in enumerate(plan.rows) if row.name == PREFILL_BLOCK), None)
    rows = plan.rows if at is None else (*plan.rows[:at], *changed, *plan.rows[at + 1 :])
    return replace(plan, prefill_block=Choice(block, because), rows=rows)


def choose_prefill_chunk(target: ModelDims, config: EngineConfig, device: str, *, offloaded: bool) -> Choice[int]:
    """Tokens to read in one pass."""
    bound = LINK_BOUND_ROWS * target.num_kv_heads // target.num_heads
    if device == "cuda" and offloaded and bound > config.prefill_chunk:
        return Choice(bound, "so that attending takes as long as the copies from host memory, which each pass needs")
    return Choice(config.prefill_chunk, "progress and Stop come after each piece")


def choose_device(config: EngineConfig, machine: Machine) -> Choice[str]:
    """Where to compute.

    Raises:
        NotEnoughMemory: CUDA was asked for and is not there.
    """
    unused = machine.unused_gpu
    if config.device == "cuda" and unused is not None:
        raise NotEnoughMemory(unused.because, hint=unused.hint)
    if config.device == "cuda" and not machine.gpus:
        raise NotEnoughMemory("There is no CUDA device on this machine.", hint="Use --device cpu.")
    if config.device != "auto":
        return Choice(config.device, "asked for")
    if unused is not None:
        return Choice("cpu", unused.because)
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
    changed = [
        PlanRow(row.name, size.quantised_bytes(bits, dtype)) if row.name == TARGET_WEIGHTS else row for row in rows
    ]
    return (*changed, widened_row(size, dtype))


def widened_row(size: ModelSize, dtype: torch.dtype) -> PlanRow:
    """Room for the quantised weights of one layer in the type that is computed in."""
    return PlanRow("one layer, widened", size.layer_parameters // size.dims.num_layers * dtype.itemsize)


def _fixed_rows(
    target: ModelDims,
    draft: ModelDims | None,
    config: EngineConfig,
    device: str,
    dtype: torch.dtype,
    *,
    offloaded: bool,
) -> tuple[PlanRow, ...]:
    rows = [
        PlanRow("runtime", RUNTIME_BYTES),
        PlanRow(TARGET_WEIGHTS, _weight_bytes(target, dtype)),
        PlanRow(RETRIEVAL, retrieval_bytes(target, config, dtype)),
        PlanRow("prefill buffers", prefill_bytes(target, config, dtype, offloaded=offloaded)),
    ]
    if draft is not None:
        rows.append(PlanRow("draft weights", _weight_bytes(draft, dtype)))
        rows.append(PlanRow("streaming cache", streaming_bytes(draft, config, dtype)))
    return (*rows, *graph_rows(target, draft, config, device, config.num_gpus))


def graph_rows(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, device: str, num_shares: int
) -> tuple[PlanRow, ...]:
    """What recorded passes take on a GPU. Where several share the target, only the draft's are recorded.

    Args:
        draft: None also on a GPU that holds none.
    """
    largest = target if num_shares == 1 else draft
    if device != "cuda" or not config.graphs or largest is None:
        return ()
    return (PlanRow("CUDA graphs", graph_bytes(largest.num_layers)),)


def retrieval_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the retrieval cache: the budget, and room to grow between two selections; the chunks' numbers."""
    retrieval = config.retrieval
    numbers = retrieval.num_chunks * target.num_layers * target.num_kv_heads * torch.int64.itemsize
    return ((retrieval.budget + retrieval.chunk_size + GROWTH) | 1) * kv_bytes_per_token(target, dtype) + numbers


def streaming_bytes(draft: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the streaming cache."""
    return (config.draft.window | 1) * kv_bytes_per_token(draft, dtype)


def prefill_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype, *, offloaded: bool) -> int:
    """Activations of one chunk of the prompt where most are alive, in the MLP or where parts of attention are merged.

    Args:
        offloaded: any layer is; a part is then added to the sum of those before, in float32.
    """
    wide, hidden = torch.float32.itemsize, target.hidden_size * dtype.itemsize
    heads = target.num_heads * target.head_dim
    # Embeddings, a layer's input, its sum with attention, the norm of that; gate, its activation, the other factor
    mlp = 4 * hidden + 3 * (target.intermediate_size or USUAL_MLP * target.hidden_size) * dtype.itemsize
    # Embeddings, a layer's input, the norm of that; queries, perhaps folded too, and one or two parts; their sum
    merging = 3 * hidden + heads * (3 * (dtype.itemsize + wide) if offloaded else 4 * dtype.itemsize + 2 * wide)
    merging += 8 * wide * target.num_heads  # log-sum-exps
    rotary = 2 * target.head_dim * dtype.itemsize + 4 * torch.int64.itemsize  # cosines, sines, positions
    return config.prefill_chunk * (max(mlp, merging) + rotary)


def _weight_bytes(dims: ModelDims, dtype: torch.dtype) -> int:
    return dims.weight_bytes * dtype.itemsize // dims.disk_dtype.itemsize


def context_bytes_per_token(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """What a token of context takes. Full cache; a landmark per chunk (keys only), its score; every 64th query."""
    kv = kv_bytes_per_token(target, dtype)
    landmark = -(-kv // (2 * config.retrieval.chunk_size))
    score = -(-4 * target.num_layers * target.num_kv_heads // config.retrieval.chunk_size)
    samples = -(-_query_bytes(target, dtype) // QUERY_SAMPLE_STRIDE)
    return kv + landmark + score + samples


def beside_bytes(target: ModelDims, dtype: torch.dtype) -> int:
    """What lies beside the full cache whatever the context is: the newest queries, and rows that are rounded up to.

    Of sampled queries the row that takes no sample, and the last one, begun; a landmark, as their rows are odd.
    """
    return (QUERY_LOG + 2) * _query_bytes(target, dtype) + kv_bytes_per_token(target, dtype) // 2


def _query_bytes(target: ModelDims, dtype: torch.dtype) -> int:
    return target.num_layers * target.num_heads * target.head_dim * dtype.itemsize


def gib(size_bytes: int) -> str:
    """12.6 GiB."""
    tiny = size_bytes < GIB // 10  # of a small model: 0.0 GiB would say nothing
    return f"{size_bytes / (1 << 20):.1f} MiB" if tiny else f"{size_bytes / GIB:.1f} GiB"
