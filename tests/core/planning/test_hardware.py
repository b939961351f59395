"""What is found out about a machine, with GPUs that torch computes on, with others, and within control groups."""

from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from assets.tools.bench import ablation, offload
from assets.tools.bench.speed import _device
from core.config import EngineConfig
from core.engine import Engine
from core.engine_builder import LoadedPair
from core.errors import NotPossibleHere
from core.planning import hardware, nvidia
from core.planning.choices import choose_device
from core.planning.devices import make_rig
from core.planning.hardware import (
    CONTEXT_BYTES,
    Gpu,
    abilities,
    has_kernels,
    resolve_device,
    this_machine,
)
from core.planning.nvidia import DriverAnswer, DriverGpu, InstalledTorch
from tests.core.fake_cuda import FakeCuda, install
from tests.core.toys import MACHINE

GIB = 1 << 30


class Loaded(Exception):
    """Raised in place of loading."""


@pytest.fixture
def load_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], torch.device]:
    """End where weights would be loaded; returns what tells the device they were to be loaded on."""
    seen: list[torch.device] = []

    def load(*arguments: Any) -> LoadedPair:
        seen.append(arguments[-1])
        raise Loaded

    monkeypatch.setattr(LoadedPair, "load", load)
    return lambda: seen[-1]


def smi(*gpus: DriverGpu, failure: str = "") -> Callable[[], DriverAnswer]:
    return lambda: DriverAnswer(gpus, failure)


def told(fake: FakeCuda, index: int = 0, free: int | None = 20 * GIB, driver: tuple[int, ...] = (581, 42)) -> DriverGpu:
    return DriverGpu(
        name=fake.name,
        driver=driver,
        uuid=fake.uuid(index),
        free_bytes=free,
        capability=fake.capability,
    )


# -------------------- the device of a plan


def test_a_plans_device_is_the_current_gpu_with_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeCuda(num_gpus=2, current=1), monkeypatch)
    assert resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_the_engine_limits_and_loads_a_device_with_its_index(
    num_gpus: int, monkeypatch: pytest.MonkeyPatch, load_nothing: Callable[[], torch.device]
) -> None:
    """The first start on a GPU ended in torch's ValueError: what the plan calls "cuda" was taken for a device."""
    fake = install(FakeCuda(num_gpus=num_gpus), monkeypatch)
    monkeypatch.setattr(hardware, "ask_driver", smi())
    with pytest.raises(Loaded):
        Engine.load(EngineConfig(num_gpus=num_gpus, gpu_memory_gib=6.0))
    assert load_nothing() == torch.device("cuda", 0)
    assert fake.calls == [("setMemoryFraction", 0.25, 0)]


def test_benchmarks_limit_and_load_a_device_with_its_index(
    fake_cuda: FakeCuda, load_nothing: Callable[[], torch.device]
) -> None:
    for start in (lambda: ablation.Ablation(EngineConfig(), 4096), lambda: offload.Bench(EngineConfig())):
        with pytest.raises(Loaded):
            start()
        assert load_nothing() == torch.device("cuda", 0)
    plan = SimpleNamespace(device=SimpleNamespace(value="cuda"))
    assert _device(SimpleNamespace(info=SimpleNamespace(plan=plan))) == torch.device("cuda", 0)  # type: ignore[arg-type]
    assert [call[-1] for call in fake_cuda.calls] == [0, 0]


# -------------------- GPUs


def test_a_gpu_is_told_with_its_free_memory(fake_cuda: FakeCuda) -> None:
    machine = this_machine()
    assert machine.gpus == (Gpu(fake_cuda.name, 24 * GIB, 23 * GIB),) and machine.unused_gpu is None


def test_looking_at_several_gpus_takes_memory_of_none_but_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(FakeCuda(num_gpus=3), monkeypatch)
    monkeypatch.setattr(hardware, "ask_driver", smi(told(fake, 2, 5 * GIB), told(fake, 1, 20 * GIB), told(fake, 0)))
    free = [gpu.free_bytes + (number > 0) * CONTEXT_BYTES for number, gpu in enumerate(this_machine().gpus)]
    assert [one // GIB for one in free] == [23, 20, 5], "by their names, in torch's order, less a context to come"
    assert fake.contexts == {0}


def test_memory_that_the_driver_does_not_tell_is_asked_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(FakeCuda(num_gpus=2), monkeypatch)
    monkeypatch.setattr(hardware, "ask_driver", smi(told(fake, 0), told(fake, 1, None)))
    assert [gpu.free_bytes // GIB for gpu in this_machine().gpus] == [23, 23]


def test_one_gpu_needs_no_other_program(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "ask_driver", lambda: pytest.fail("asked"))
    assert len(this_machine().gpus) == 1


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((8, 9), "sm_80 sm_86 sm_90", True),
        ((8, 0), "sm_86", False),
        ((12, 0), "sm_80 sm_90", False),
        ((12, 1), "sm_90 sm_120", True),
        ((6, 1), "sm_75 sm_80 compute_80", False),
        ((13, 0), "sm_90 compute_120", True),
        ((9, 0), "sm_90a", True),
        ((7, 0), "", True),
    ],
)
def test_kernels_run_on_their_own_generation_and_portable_ones_on_newer(
    capability: tuple[int, int], archs: str, runs: bool
) -> None:
    assert has_kernels(capability, archs.split()) is runs


# -------------------- GPUs that torch cannot use


CPU_BUILD, CUDA_13 = InstalledTorch("2.13.0+cpu", None), InstalledTorch("2.13.0", (13, 0))


@pytest.mark.parametrize(
    ("fake", "installed", "driver", "problem", "hint"),
    [
        (
            None,
            CPU_BUILD,
            (581, 42),
            "torch 2.13.0+cpu is a build without CUDA.",
            "Run: python launch.py repair",
        ),
        (
            FakeCuda(works=False),
            CUDA_13,
            (570, 133, 7),
            "its driver 570.133.07 is too old for torch 2.13.0, built with CUDA 13.0.",
            "Run: python launch.py repair",
        ),
        (
            FakeCuda(works=False),
            CUDA_13,
            (470, 82, 1),
            "its driver 470.82.01 is too old for torch 2.13.",
            "Update the NVIDIA driver to 525.60.13 or newer, then run: python launch.py repair",
        ),
        (
            FakeCuda(works=False),
            CUDA_13,
            (581, 42),
            "torch does not find it, although torch 2.13.0 and driver 581.42 should suit it.",
            "Restart this computer.",
        ),
        (
            FakeCuda(capability=(12, 0)),
            InstalledTorch("2.13.0+cu126", (12, 6)),
            (581, 42),
            "torch 2.13.0+cu126 has no kernels for compute capability 12.0.",
            "Run: python launch.py repair",
        ),
    ],
    ids=["cpu build", "driver for another build", "driver for none", "none found", "no kernels"],
)
def test_a_gpu_that_torch_cannot_use_is_told_with_what_mends_it(
    fake: FakeCuda | None,
    installed: InstalledTorch,
    driver: tuple[int, ...],
    problem: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    load_nothing: Callable[[], torch.device],
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fake is not None:
        install(fake, monkeypatch)
    monkeypatch.setattr(nvidia, "SYSTEM", "linux")
    monkeypatch.setattr(nvidia, "PROCESSOR", "x86_64")
    monkeypatch.setattr(nvidia, "installed_torch", lambda: installed)
    monkeypatch.setattr(nvidia, "ask_driver", smi(told(fake or FakeCuda(), driver=driver)))
    machine = this_machine()
    unused = machine.unused_gpu
    assert machine.gpus == () and unused is not None
    assert (unused.problem, unused.hint) == (problem, hint)
    because = f"NVIDIA GeForce RTX 4090 is not used: {problem}"
    assert choose_device(EngineConfig(), machine).because == because
    for ask in (
        lambda: choose_device(EngineConfig(device="cuda"), machine),
        lambda: choose_device(EngineConfig(num_gpus=2), machine),
    ):
        with pytest.raises(NotPossibleHere) as refused:
            ask()
        assert (refused.value.problem, refused.value.hint) == (because, hint)
    with pytest.raises(Loaded):
        Engine.load(EngineConfig())
    later = "should suit it" in problem  # all else launch.py has told before torch was imported
    assert (because in caplog.text) is later


def test_no_gpu_is_no_unused_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "ask_driver", smi())
    assert this_machine().unused_gpu is None
    assert choose_device(EngineConfig(), MACHINE).because == "no CUDA device found"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_gpus_hidden_on_purpose_are_not_asked_for(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(nvidia, "ask_driver", lambda: pytest.fail("asked"))
    assert this_machine().unused_gpu is None


def test_a_described_machine_has_no_unused_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "installed_torch", lambda: CPU_BUILD)
    monkeypatch.setattr(nvidia, "ask_driver", smi(told(FakeCuda())))
    here = this_machine()
    assert here.unused_gpu is not None and make_rig(here).machine.unused_gpu is here.unused_gpu
    assert make_rig(here, assume="2x4090").machine.unused_gpu is None
    assert make_rig(here, assume="cpu").machine.unused_gpu is None


# -------------------- memory


def test_memory_is_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Windows has neither /proc nor sysconf: a machine of 64 GiB was planned as one of 8."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=50 * GIB))
    monkeypatch.setattr(hardware, "OWN_CGROUPS", tmp_path / "none")
    machine = this_machine()
    assert (machine.ram_bytes, machine.free_ram_bytes) == (64 * GIB, 50 * GIB)
    assert hardware.free_memory_bytes() == 50 * GIB


NESTED = {
    "a/memory.max": 12 * GIB,
    "a/memory.current": 11 * GIB,
    "a/b/memory.max": 16 * GIB,
    "a/b/memory.current": GIB,
    "a/b/c/memory.max": "max",
}
STAT = f"anon 1\nactive_file 9\ninactive_file {2 * GIB}"
CONTAINER = {"memory.max": 8 * GIB, "memory.current": 5 * GIB, "memory.stat": STAT}
OLDER = {"memory/memory.limit_in_bytes": 4 * GIB, "memory/memory.usage_in_bytes": GIB}


@pytest.mark.parametrize(
    ("own", "files", "memory"),
    [
        ("0::/\n", CONTAINER, (8, 5)),
        ("0::/a/b/c\n", NESTED, (12, 1)),  # the narrowest counts
        ("5:cpu,cpuacct:/x\n4:memory:/docker/x\n1:name=systemd:/x\n", OLDER, (4, 3)),
    ],
    ids=["container", "nested", "older"],
)
def test_a_control_group_has_the_memory_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, object], memory: tuple[int, int]
) -> None:
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=50 * GIB))
    machine = this_machine()
    assert (machine.ram_bytes, machine.free_ram_bytes) == (memory[0] * GIB, memory[1] * GIB)


def test_the_memory_of_this_process_is_seen() -> None:
    cpu = torch.device("cpu")
    before = hardware.used_memory_bytes(cpu)
    with mmap(-1, 256 << 20) as block:  # new pages, where an allocator may have some left
        block.write(bytes(256 << 20))
        assert hardware.used_memory_bytes(cpu) - before > 128 << 20
    assert hardware.peak_memory_bytes(cpu) >= before


def test_what_a_processor_can_do_is_told_by_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name : x\nflags\t\t: fpu avx2 avx512bw avx512_vnni avx512_bf16\n", encoding="utf-8")
    assert abilities(info) == ("AVX2", "AVX-512", "VNNI", "bf16")
    info.write_text("Features : fp asimd asimddp i8mm\n", encoding="utf-8")
    assert abilities(info) == ("NEON", "dot products", "i8mm") and abilities(tmp_path / "none") == ()
