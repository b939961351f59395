"""The table of devices, and machines to plan for: this one, or one that the user describes. Decides nothing."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.config import MOST_GPUS
from core.errors import InvalidSetting, NotPossibleHere
from core.planning.choices import Choice
from core.planning.hardware import Gpu, Machine, gpus_in_words

PRODUCTS_SHARE = 0.5  # of the data sheet's rate that long prompts reach in practice: an assumption
LIKE = "4090"  # its nominal bandwidths serve for GPUs given by memory alone or with an unknown name
HOST_BANDWIDTH = 12e9  # nominal, at which two server cores attend to rows in host memory, bytes per second
HOST_BECAUSE = "nominal, as of two server cores"
PROCESSOR_BANDWIDTH = 40e9  # nominal, of two channels of memory, bytes per second
GIB = 1 << 30
APPLE = re.compile(r"(?:\d+x)?(?:m[1-9](?:[- ]?(?:pro|max|ultra))?(?:[- ].*)?|i?mac.*|apple.*)")
OTHER_MAKERS = re.compile(r".*(?:\b(?:amd|intel|arc|radeon|instinct)\b|\brx ?\d{4}|\bmi\d{2,3}).*")


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Costs of a pass's rows beside reading its bytes."""

    product: float  # of one more row: share of the time for which a product of one row reads its weights
    number: float = 0.0  # seconds for each number of keys and values, whatever the rows
    attended: float = 0.0  # seconds for each number and each row that attends to it: one for each query head of a group


ON_GPU = RowCosts(0.003)  # of the paper's A100
ON_PROCESSOR = RowCosts(0.1, 40e-12, 10e-12)  # the compiled kernel on two cores of an AMD EPYC, 2026-11-26


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes per second of memories and links, what rows cost, and how fast long prompts are computed."""

    memory: Choice[float]  # of the memory that the device computes from
    link: Choice[float] | None  # from host memory to a GPU; None on the processor
    host: Choice[float] | None = None  # of host memory where the host attends; None: it does not
    rows: RowCosts = ON_GPU
    products: Choice[float] | None = None  # operations per second in large products; None: unknown, or measured apart


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A GPU by its data sheet; the link is what 16 PCIe lanes of its generation carry in practice."""

    name: str
    gib: float
    memory_gb_per_second: float
    link_gb_per_second: float
    tflops: float | None = None  # of dense products in 16 bits, sums in 32; None: unknown
    pattern: str = ""  # of the driver's name, where the short name is ambiguous
    described: bool = False  # by the user

    @property
    def bandwidths(self) -> Bandwidths:
        """Its nominal bandwidths, and those of a host."""
        because = f"as described, {self.name}" if self.described else f"nominal, as of an {self.name}"
        sheet, flops = f"the data sheet of an {self.name}", PRODUCTS_SHARE * 1e12 * (self.tflops or 0.0)
        sheet = f"{self.tflops:g} TFLOPS" if self.described and self.tflops else sheet
        return Bandwidths(
            memory=Choice(1e9 * self.memory_gb_per_second, because),
            link=Choice(1e9 * self.link_gb_per_second, because),
            host=Choice(HOST_BANDWIDTH, HOST_BECAUSE),
            products=Choice(flops, f"{PRODUCTS_SHARE:.0%} of {sheet}") if flops else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A machine to plan for."""

    machine: Machine  # with the GPUs to use; a plan may count on their free memory
    assumed: tuple[str, ...] = ()  # parts that were described, not found; empty: all of it is this machine
    kind: GpuKind | None = None  # of described GPUs; None: they are here, and their bandwidths can be measured

    @classmethod
    def of(cls, machine: Machine, num_gpus: int = 1) -> "Rig":
        """A machine as it was found, with its first GPUs."""
        return cls(machine=replace(machine, gpus=machine.gpus[:num_gpus]))


KINDS = {  # the GPUs that a description can name, by their short name
    "5090": GpuKind("RTX 5090", 32, 1792, 50, 209),
    "4090": GpuKind("RTX 4090", 24, 1008, 25, 165),
    "3090": GpuKind("RTX 3090", 24, 936, 25, 71),
    "l40": GpuKind("L40", 48, 864, 25, 181),
    "a100-40": GpuKind("A100 40 GB", 40, 1555, 25, 312, "a100.*40 ?gb"),
    "a100": GpuKind("A100 80 GB", 80, 2039, 25, 312),
    "h100": GpuKind("H100 SXM", 80, 3350, 50, 989),
    "h200": GpuKind("H200 SXM", 141, 4800, 50, 989),
}


def kind_of(name: str) -> GpuKind | None:
    """The known data of a GPU with this name, the driver's or a data sheet's."""
    kinds = (kind for key, kind in KINDS.items() if re.search(kind.pattern or rf"(?<!\w){key}(?!\d)", name.lower()))
    return next(kinds, None)


def nominal_bandwidths(device: str, gpu: str = "") -> Bandwidths:
    """Bandwidths of a GPU with this name, or of the processor, from data sheets: nothing is measured."""
    if device != "cuda":
        memory = Choice(PROCESSOR_BANDWIDTH, "nominal, as of two channels of memory; products as on two server cores")
        return Bandwidths(memory, None, rows=ON_PROCESSOR)
    known = kind_of(gpu)
    rates = (known or KINDS[LIKE]).bandwidths
    if known or not gpu:
        return rates
    memory, link, products = (
        Choice(rate.value, f"{rate.because}, as {gpu} is not known")
        for rate in (rates.memory, rates.link, rates.products)
        if rate
    )
    return replace(rates, memory=memory, link=link, products=products)


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
        InvalidSetting: an invalid description, or GPUs that are not here.
    """
    _check(assume, gpu_gib, num_gpus, host_gib, gpu)
    rig, assumed = Rig.of(here, num_gpus or 1), []
    if assume == "cpu":
        rig = Rig(machine=replace(here, gpus=(), unused_gpu=None))
        assumed.append("no GPU")
    elif assume is not None or gpu_gib is not None or gpu is not None:
        count, kind = _described(assume) if assume is not None else (num_gpus or 1, gpu or KINDS[LIKE])
        gib = kind.gib if gpu_gib is None else gpu_gib
        name = kind.name if gpu_gib is None else f"{gib:g} GiB GPU"
        gpus = (Gpu(name, int(gib * GIB), int(gib * GIB)),) * count
        rig = Rig(machine=replace(here, gpus=gpus, unused_gpu=None), kind=kind)
        assumed.append(f"{count} x {name} with {gib:g} GiB" if gpu_gib is None else f"{count} x {name}")
    elif num_gpus is not None and num_gpus > len(here.gpus):
        if here.unused_gpu is not None:
            raise NotPossibleHere(here.unused_gpu.because, hint=here.unused_gpu.hint)
        raise NotPossibleHere(
            f"This machine has {gpus_in_words(len(here.gpus))}.",
            hint="Add --gpu-memory N to plan for a machine with more.",
        )
    ram, free = here.ram_bytes, here.free_ram_bytes
    if host_gib is not None:
        ram = free = int(host_gib * GIB)
        assumed.append(f"{host_gib:g} GiB of host memory")
    elif assumed:  # another machine: memory that other programs use here does not count
        free = ram
        assumed.append(f"host memory as here, {ram / GIB:.1f} GiB")
    machine = replace(rig.machine, ram_bytes=ram, free_ram_bytes=free)
    return replace(rig, machine=machine, assumed=tuple(assumed))


def _check(
    assume: str | None, gpu_gib: float | None, num_gpus: int | None, host_gib: float | None, gpu: GpuKind | None
) -> None:
    if assume is not None and (gpu_gib is not None or num_gpus is not None):
        raise InvalidSetting(
            "--assume names the GPUs already.", hint="Leave out --gpu-memory and --gpus, or leave out --assume."
        )
    for name, value in (("--gpu-memory", gpu_gib), ("--host-memory", host_gib)):
        if value is not None and not 0 < value < 1 << 20:
            raise InvalidSetting(f"{name} {value:g} is not usable.", hint="Give it in GiB, for example 24.")
    if num_gpus is not None and not 1 <= num_gpus <= MOST_GPUS:
        raise InvalidSetting(f"--gpus {num_gpus} is not usable.", hint=f"Use 1 to {MOST_GPUS}.")
    if gpu is not None and (assume is not None or gpu_gib is not None):
        raise InvalidSetting("--gpu describes the GPUs already.", hint="Leave out --assume and --gpu-memory.")


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
    if APPLE.fullmatch(name.strip().lower()):
        raise InvalidSetting(
            f"{name!r} is an Apple Mac: its GPU has no CUDA, shares the processor's memory and is not used here.",
            hint="Plan for its processor: --assume cpu --host-memory GIB, with all of its memory.",
        )
    if OTHER_MAKERS.fullmatch(name.strip().lower()):
        raise InvalidSetting(
            f"{name!r} is no NVIDIA GPU: it has no CUDA and is not used here.",
            hint="Plan for the processor: --assume cpu --host-memory GIB.",
        )


def described_gpu(text: str) -> GpuKind:
    """A GPU by its figures: "name,GB,GB/s of its memory,GB/s of its link[,TFLOPS]", or a JSON file of a `GpuKind`.

    Raises:
        InvalidSetting: neither of these, a figure that is no number, or a GPU of another maker.
    """
    description: dict[str, Any]
    _check_maker(text.partition(",")[0] if "," in text else "")
    try:
        if "," in text:
            name, *figures = (part.strip() for part in text.split(","))
            fields = ("gib", "memory_gb_per_second", "link_gb_per_second", "tflops")
            if not 3 <= len(figures) <= 4:
                raise ValueError(f"{len(figures)} figures")
            description = {"name": name} | dict(zip(fields, map(float, figures), strict=False))
        else:
            description = json.loads(Path(text).expanduser().read_text(encoding="utf-8"))
        kind = GpuKind(**{**description, "described": True})
        numbers = (kind.gib, kind.memory_gb_per_second, kind.link_gb_per_second, kind.tflops or 1.0)
        usable = isinstance(kind.name, str) and kind.name.isprintable() and 0 < len(kind.name) <= 80
        if not usable or not all(0 < float(number) < 1e6 for number in numbers):
            raise ValueError("a figure that no GPU has")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InvalidSetting(
            f"--gpu {text[:80]!r} describes no GPU.",
            hint='Write "name,GB,GB/s of memory,GB/s of the link", such as "RTX 4090,24,1008,25", or name a JSON file.',
        ) from error
    _check_maker(kind.name)
    return kind
