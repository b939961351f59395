"""A GPU that is not there: torch's own Python code for CUDA runs as with one, over stand-ins for its compiled half.

torch checks the arguments of its CUDA functions in Python before it calls the driver, so a wrong one (a device without
an index, for example) fails here as it would on a GPU. Nothing is computed and no tensor can be put there: tests end
where the first one would be. Use the fixture `fake_cuda` for one GPU, or `install` for others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@dataclass
class FakeCuda:
    """What the stand-ins answer, and what they were asked."""

    num_gpus: int = 1
    name: str = "NVIDIA GeForce RTX 4090"
    capability: tuple[int, int] = (8, 9)
    total_bytes: int = 24 << 30
    free_bytes: int = 23 << 30
    archs: str = "sm_80 sm_86 sm_90"
    current: int = 0
    works: bool = True  # False: the driver's library counts GPUs, but CUDA does not start
    contexts: set[int] = field(default_factory=set)  # GPUs that got one
    calls: list[tuple[Any, ...]] = field(default_factory=list)  # name and arguments, in order

    def uuid(self, index: int) -> str:
        """As torch and, behind "GPU-", nvidia-smi tell it."""
        return f"00000000-0000-0000-0000-{index:012d}"

    def properties(self, index: int) -> SimpleNamespace:
        """Of `torch.cuda.get_device_properties`."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name, total_memory=self.total_bytes, major=major, minor=minor, uuid=self.uuid(index)
        )

    def memory(self, index: int) -> tuple[int, int]:
        """cudaMemGetInfo, which makes a context on the GPU it is asked about."""
        self._valid(index)
        self.contexts.add(index)
        return self.free_bytes, self.total_bytes

    def called(self, name: str) -> Any:
        """A compiled function that takes a device's index last, and only notes that it was called."""

        def call(*arguments: Any) -> dict[str, int]:
            if arguments:
                self._valid(arguments[-1])
            self.calls.append((name, *arguments))
            return {}

        return call

    def _valid(self, index: Any) -> None:
        if type(index) is not int or not 0 <= index < self.num_gpus:  # what the compiled half would not take
            raise TypeError(f"{index!r} is no index of a GPU")


def install(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Let torch find these GPUs until the test ends."""

    def set_current(index: int) -> int:
        before, fake.current = fake.current, index if index >= 0 else fake.current
        return before

    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12080).")

    compiled: dict[str, Any] = {
        "_cuda_getDeviceCount": lambda: fake.num_gpus if fake.works else 0,
        "_cuda_init": lambda: None if fake.works else refuse(),
        "_cuda_getDevice": lambda: fake.current,
        "_cuda_setDevice": set_current,
        "_cuda_getArchFlags": lambda: fake.archs,
    }
    for name in ("setMemoryFraction", "resetPeakMemoryStats", "memoryStats", "emptyCache", "synchronize"):
        compiled[f"_cuda_{name}"] = fake.called(name)
    for name, stand_in in compiled.items():
        monkeypatch.setattr(torch._C, name, stand_in, raising=False)
    cuda = torch.cuda
    for name, value in {
        "_initialized": fake.works,
        "_lazy_init": cuda._lazy_init if fake.works else refuse,
        "_cached_device_count": None,
        "_device_count_nvml": lambda: fake.num_gpus,
        "_get_device_properties": fake.properties,
        "_exchange_device": set_current,
        "_maybe_exchange_device": set_current,
        "cudart": lambda: SimpleNamespace(cudaMemGetInfo=fake.memory),
    }.items():
        monkeypatch.setattr(cuda, name, value, raising=False)
    return fake


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """One GPU with 24 GiB that works."""
    yield install(FakeCuda(), monkeypatch)
