"""What is found out about a machine, with GPUs that torch computes on, with others, and within control groups."""

from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from assets.tools.bench import ablation
from assets.tools.bench.pair import SharedPair
from assets.tools.bench.speed import _device
from core.config import EngineConfig
from core.engine import Engine
from core.engine_builder import LoadedPair
from core.errors import NotPossibleHere
from core.planning import hardware, nvidia
from core.planning.choices import choose_device
from core.planning.devices import make_rig
from core.planning.hardware import CONTEXT_BYTES, Gpu, abilities, has_kernels, resolve_device, this_machine
from core.planning.nvidia import InstalledTorch
from tests.core.toys import MACHINE
from tests.fake_driver import ADA, BLACKWELL, CARD, answer, pretend, put_smi

GIB = 1 << 30
CUDA = torch.device("cuda", 0)


class Cards:
    """GPUs as torch tells of them, and what is done with them; `tests.core.cuda_stubs` computes on one."""

    def __init__(
        self, patch: pytest.MonkeyPatch, count: int = 1, current: int = 0, capability: tuple[int, int] = (8, 9)
    ) -> None:
        self.limits, self.contexts, (major, minor) = list[tuple[float, torch.device]](), set[int](), capability
        about = {"name": CARD, "total_memory": 24 * GIB, "major": major, "minor": minor}
        for name, told in {
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "current_device": lambda: current,
            "get_arch_list": lambda: ["sm_80", "sm_86", "sm_90"],
            "get_device_properties": lambda at: SimpleNamespace(uuid=uuid(at), **about),
            "mem_get_info": lambda at: (self.contexts.add(at), (23 * GIB, 24 * GIB))[1],
            "set_per_process_memory_fraction": lambda *limit: self.limits.append(limit),
        }.items():
            patch.setattr(torch.cuda, name, told)


def uuid(index: int | torch.device) -> str:
    return f"00000000-0000-0000-0000-{index!s:0>12}"


class Loaded(Exception):
    """Raised in place of loading."""


@pytest.fixture
def load_nothing(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """End where weights would be loaded, and note the device they were to be loaded on."""
    seen: list[torch.device] = []

    def load(*arguments: Any) -> LoadedPair:
        seen.append(arguments[-1])
        raise Loaded

    monkeypatch.setattr(LoadedPair, "load", load)
    return seen


# -------------------- GPUs that torch computes on


def test_a_plans_device_is_the_current_gpu_with_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    Cards(monkeypatch, count=2, current=1)
    assert resolve_device("cuda") == torch.device("cuda", 1) and resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("count", [1, 2])
def test_engines_and_benchmarks_limit_and_load_a_device_with_its_index(
    count: int, monkeypatch: pytest.MonkeyPatch, load_nothing: list[torch.device], tmp_path: Path
) -> None:
    """torch takes no "cuda" without a number for a device to limit."""
    cards, config = Cards(monkeypatch, count), EngineConfig(num_gpus=count, gpu_memory_gib=6.0)
    pretend(monkeypatch, tmp_path)
    benches = (lambda: ablation.Ablation(config, 4096), lambda: SharedPair(config, 0)) if count == 1 else ()
    for start in (lambda: Engine.load(config), *benches):
        with pytest.raises(Loaded):
            start()
        assert load_nothing.pop() == CUDA and cards.limits[-1][1] == CUDA
    assert cards.limits[0][0] == 0.25, "6 of 24 GiB"
    plan = SimpleNamespace(device=SimpleNamespace(value="cuda"))
    assert _device(SimpleNamespace(info=SimpleNamespace(plan=plan))) == CUDA  # type: ignore[arg-type]


def test_one_gpu_is_told_with_its_free_memory_and_needs_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    Cards(monkeypatch)
    monkeypatch.setattr(hardware, "ask_driver", lambda: pytest.fail("asked"))
    machine = this_machine()
    assert machine.gpus == (Gpu(CARD, 24 * GIB, 23 * GIB),) and machine.unused_gpu is None


def test_looking_at_several_gpus_takes_memory_of_none_but_the_current_one_and_those_that_the_driver_is_silent_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cards, lines = Cards(monkeypatch, count=4), [answer("581.42", index=index) for index in (2, 1, 0, 3)]
    pretend(monkeypatch, tmp_path)
    put_smi(tmp_path, lines[0].replace("23000", "5120"), *lines[1:3], lines[3].replace("23000", "[N/A]"))
    wanted = [23 * GIB, (23000 << 20) - CONTEXT_BYTES, 5 * GIB - CONTEXT_BYTES, 23 * GIB]
    assert [gpu.free_bytes for gpu in this_machine().gpus] == wanted, "by their names, in torch's order"
    assert cards.contexts == {0, 3}


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
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
CUDA_12 = InstalledTorch("2.13.0+cu126", (12, 6))
REPAIR = "Run: python launch.py repair"
TOO_OLD = "is too old for torch 2.13.0"
SUITS = "torch 2.13.0 and driver 581.42 should suit it"
UPDATE = "Update the NVIDIA driver to 525.60.13 or newer, then run: python launch.py repair"


@pytest.mark.parametrize(
    ("installed", "driver", "capability", "problem", "hint"),
    [
        (CPU_BUILD, "581.42", ADA, "torch 2.13.0+cpu is a build without CUDA.", REPAIR),
        (CUDA_13, "570.133.07", ADA, f"its driver 570.133.07 {TOO_OLD}, built with CUDA 13.0.", REPAIR),
        (CUDA_13, "470.82.01", ADA, "its driver 470.82.01 is too old for torch 2.13.", UPDATE),
        (CUDA_13, "581.42", ADA, f"torch does not find it, although {SUITS}.", "Restart this computer."),
        (CUDA_12, "581.42", BLACKWELL, "torch 2.13.0+cu126 has no kernels for compute capability 12.0.", REPAIR),
    ],
    ids=["cpu build", "driver for another build", "driver for none", "none found", "no kernels"],
)
def test_a_gpu_that_torch_cannot_use_is_told_with_what_mends_it(
    installed: InstalledTorch,
    driver: str,
    capability: str,
    problem: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    load_nothing: list[torch.device],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    Cards(monkeypatch, count=int(installed is CUDA_12), capability=(12, 0))  # which torch lists, without kernels for it
    pretend(monkeypatch, tmp_path)
    put_smi(tmp_path, answer(driver, capability))
    monkeypatch.setattr(nvidia, "installed_torch", lambda: installed)
    machine, because = this_machine(), f"{CARD} is not used: {problem}"
    assert machine.gpus == () and machine.unused_gpu is not None and machine.unused_gpu.hint == hint
    assert choose_device(EngineConfig(), machine).because == machine.unused_gpu.because == because
    for asked in (EngineConfig(device="cuda"), EngineConfig(num_gpus=2)):
        with pytest.raises(NotPossibleHere) as refused:
            choose_device(asked, machine)
        assert (refused.value.problem, refused.value.hint) == (because, hint)
    with pytest.raises(Loaded):
        Engine.load(EngineConfig())
    later = SUITS in problem  # all else launch.py has told before torch was imported
    assert (because in caplog.text) is later
    assert make_rig(machine).machine.unused_gpu is machine.unused_gpu
    assert {make_rig(machine, assume=other).machine.unused_gpu for other in ("2x4090", "cpu")} == {None}


def test_no_gpu_is_no_unused_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path)
    assert this_machine().unused_gpu is None
    assert choose_device(EngineConfig(), MACHINE).because == "no CUDA device found"


# -------------------- memory


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
        (None, {}, (64, 50)),  # Windows
        ("0::/\n", CONTAINER, (8, 5)),
        ("0::/a/b/c\n", NESTED, (12, 1)),  # the narrowest counts
        ("5:cpu,cpuacct:/x\n4:memory:/docker/x\n1:name=systemd:/x\n", OLDER, (4, 3)),
    ],
    ids=["none", "container", "nested", "older"],
)
def test_memory_is_the_systems_or_what_a_control_group_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, files: dict[str, object], memory: tuple[int, int]
) -> None:
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    if own is not None:
        (tmp_path / "own").write_text(own)
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=50 * GIB))
    machine = this_machine()
    assert (machine.ram_bytes, machine.free_ram_bytes) == (memory[0] * GIB, memory[1] * GIB)
    assert hardware.free_memory_bytes() == machine.free_ram_bytes


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
