"""The table of devices, and machines to plan for: this one, or one that the user describes. Decides nothing."""

import re
from dataclasses import dataclass, field, replace

from core.config import MOST_GPUS
from core.errors import InvalidSetting
from core.planning.choices import Choice
from core.planning.hardware import Gpu, Machine

PRODUCTS_SHARE = 0.5  # of the data sheet's rate that long prompts reach in practice: an assumption
LIKE = "4090"  # its nominal bandwidths serve for GPUs given by memory alone or with an unknown name
HOST_BANDWIDTH = 12e9  # nominal, at which two server cores attend to rows in host memory, bytes per second
PROCESSOR_BANDWIDTH = 40e9  # nominal, of two channels of memory, bytes per second
GIB = 1 << 30
NOT_NVIDIA = re.compile(  # Apple's GPUs, and those of other makers
    r"(?:\d+x)?(?:m[1-9](?:[- ]?(?:pro|max|ultra))?(?:[- ].*)?|i?mac.*|apple.*)"
    r"|.*(?:\b(?:amd|intel|arc|radeon|instinct)\b|\brx ?\d{4}|\bmi\d{2,3}).*"
)


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Costs of a pass's rows beside reading its bytes."""

    product: float  # of one more row: share of the time for which a product of one row reads its weights
    number: float = 0.0  # seconds for each number of keys and values, whatever the rows
    attended: float = 0.0  # seconds for each number and each row that attends to it: one for each query head of a group


ON_GPU = RowCosts(0.003)  # of the paper's A100
ON_PROCESSOR = RowCosts(0.1, 40e-12, 10e-12)  # the compiled kernel on two cores of an AMD EPYC, 2026-11-26


NO_FIGURE: Choice[float | None] = Choice(None, "not known: describe the GPU with its TFLOPS as the fifth figure")
NOT_HERE: Choice[float | None] = Choice(None, "not known of a processor that is described")


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes per second of memories and links, what rows cost, and how fast long prompts are computed."""

    memory: Choice[float]  # of the memory that the device computes from
    link: Choice[float] | None  # from host memory to a GPU; None on the processor
    host: Choice[float] | None = None  # of host memory where the host attends; None: it does not
    rows: RowCosts = ON_GPU
    products: Choice[float | None] = NO_FIGURE  # operations per second in large products


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A GPU by its data sheet; the link is what 16 PCIe lanes of its generation carry in practice."""

    name: str
    gib: float
    memory_gb_per_second: float
    link_gb_per_second: float
    tflops: float | None = None  # of dense products in 16 bits, sums in 32; None: unknown
    pattern: str = field(default="", kw_only=True)  # of the driver's name, where the short name is ambiguous
    described: bool = field(default=False, kw_only=True)  # by the user

    def bandwidths(self, count: int = 1) -> Bandwidths:
        """Nominal ones of so many that share a model: each has its memory and its link, and a part of the host's."""
        because, sheet = f"nominal, as of an {self.name}", f"the data sheet of an {self.name}"
        if self.described:
            because, sheet = f"as described, {self.name}", f"{self.tflops or 0:g} TFLOPS"
        flops = count * PRODUCTS_SHARE * 1e12 * (self.tflops or 0.0)
        shared, several = (f"; {count} GPUs share it", f" x {count}") if count > 1 else ("", "")
        return Bandwidths(
            memory=Choice(1e9 * self.memory_gb_per_second, because),
            link=Choice(1e9 * self.link_gb_per_second, because),
            host=Choice(HOST_BANDWIDTH / count, f"nominal, as of two server cores{shared}"),
            products=Choice(flops, f"{PRODUCTS_SHARE:.0%} of {sheet}{several}") if flops else NO_FIGURE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A machine to plan for."""

    machine: Machine
    assumed: tuple[str, ...] = ()  # parts that were described, not found; empty: all of it is this machine
    kind: GpuKind | None = None  # of described GPUs; None: they are here


KINDS = {  # the GPUs that a description can name, by their short name
    "5090": GpuKind("RTX 5090", 32, 1792, 50, 209),
    "4090": GpuKind("RTX 4090", 24, 1008, 25, 165),
    "3090": GpuKind("RTX 3090", 24, 936, 25, 71),
    "l40": GpuKind("L40", 48, 864, 25, 181),
    "a100-40": GpuKind("A100 40 GB", 40, 1555, 25, 312, pattern="a100.*40 ?gb"),
    "a100": GpuKind("A100 80 GB", 80, 2039, 25, 312),
    "h100": GpuKind("H100 SXM", 80, 3350, 50, 989),
    "h200": GpuKind("H200 SXM", 141, 4800, 50, 989),
}


NOMINAL_PROCESSOR = Bandwidths(
    Choice(PROCESSOR_BANDWIDTH, "nominal, as of two channels of memory; products as on two server cores"),
    None,
    rows=ON_PROCESSOR,
    products=NOT_HERE,
)


def kind_of(name: str) -> GpuKind:
    """The data of a GPU with this name, the driver's or a data sheet's; of an unknown one those of another."""
    kinds = (kind for key, kind in KINDS.items() if re.search(kind.pattern or rf"(?<!\w){key}(?!\d)", name.lower()))
    like = KINDS[LIKE]
    return next(kinds, None) or replace(like, name=f"{like.name}, as {name} is not known")


def make_rig(
    here: Machine,
    *,
    assume: str | None = None,
    gpu_gib: float | None = None,
    num_gpus: int | None = None,
    host_gib: float | None = None,
    gpu: GpuKind | None = None,
) -> Rig:
    """This machine, with its parts replaced by those of the description.

    Args:
        assume: "cpu", or a number and a kind of GPU such as "2x4090".
        gpu_gib: memory of each GPU.
        num_gpus: how many; None: one.
        host_gib: memory of the machine itself.
        gpu: a GPU by its figures, `num_gpus` of them; see `described_gpu`.
    Raises:
        InvalidSetting: an invalid description.
    """
    if (assume is not None) + (gpu is not None) + (gpu_gib is not None) > 1 or (assume is not None and num_gpus):
        raise InvalidSetting(
            "The GPUs are described twice.",
            hint="Give one of --assume, --gpu and --gpu-memory; --assume 2x4090 says how many.",
        )
    if host_gib is not None and not 0 < host_gib < 1 << 20:
        raise InvalidSetting(f"--host-memory {host_gib:g} is not usable.", hint="Give it in GiB, for example 64.")
    count, kind, assumed = num_gpus or 1, gpu, list[str]()
    if assume is not None and assume != "cpu":
        count, kind = _described(assume)
    name = kind.name if kind is not None else ""
    if gpu_gib is not None:
        kind, name = replace(KINDS[LIKE], gib=gpu_gib), f"{gpu_gib:g} GiB GPU"
    gpus, unused = here.gpus[:count], here.unused_gpu
    if assume == "cpu":
        gpus, unused = (), None
        assumed.append("no GPU")
    elif kind is not None:
        gpus, unused = (Gpu(name, int(kind.gib * GIB), int(kind.gib * GIB)),) * count, None
        assumed.append(f"{count} x {name}" + (f" with {kind.gib:g} GiB" if gpu_gib is None else ""))
    ram, free = here.ram_bytes, here.free_ram_bytes
    if host_gib is not None:
        ram = free = int(host_gib * GIB)
        assumed.append(f"{host_gib:g} GiB of host memory")
    elif assumed:  # another machine: memory that other programs use here does not count
        free = ram
        assumed.append(f"host memory as here, {ram / GIB:.1f} GiB")
    machine = replace(here, gpus=gpus, unused_gpu=unused, ram_bytes=ram, free_ram_bytes=free)
    return Rig(machine=machine, assumed=tuple(assumed), kind=kind)


def _described(assume: str) -> tuple[int, GpuKind]:
    """How many GPUs, and their kind."""
    _check_maker(assume)
    match = re.fullmatch(r"(?:(\d)x)?([\w-]+)", assume.strip().lower())
    if match is None or match[2] not in KINDS or not 1 <= int(match[1] or 1) <= MOST_GPUS:
        names = ", ".join(f"1x{name}" for name in KINDS)
        raise InvalidSetting(
            f"The machine {assume!r} is unknown.", hint=f"Use cpu, {names}, 2x for two; or describe it: --gpu."
        )
    return int(match[1] or 1), KINDS[match[2]]


def _check_maker(name: str) -> None:
    """Raises InvalidSetting where the name is that of a GPU that cannot be used here."""
    if NOT_NVIDIA.fullmatch(name.strip().lower()):
        raise InvalidSetting(
            f"{name!r} is no NVIDIA GPU: it has no CUDA and is not used here.",
            hint="Plan for the processor: --assume cpu --host-memory GIB.",
        )


def described_gpu(text: str) -> GpuKind:
    """A GPU by its figures: "name,GB,GB/s of its memory,GB/s of its link[,TFLOPS]".

    Raises:
        InvalidSetting: not these, a figure that is no number, or a GPU of another maker.
    """
    name, *figures = (part.strip() for part in text.split(","))
    try:
        numbers = [float(figure) for figure in figures]
    except ValueError:
        numbers = []
    usable = name.isprintable() and 0 < len(name) <= 80 and all(0 < number < 1e6 for number in numbers)
    if not usable or not 3 <= len(numbers) <= 4:
        raise InvalidSetting(
            f"--gpu {text[:80]!r} describes no GPU.",
            hint='Write "name,GB,GB/s of memory,GB/s of the link", such as "RTX 4090,24,1008,25".',
        )
    _check_maker(name)
    return GpuKind(name, *numbers, described=True)
