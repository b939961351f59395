"""Whose threads the kernel computes in, and threads of its own where torch's cannot be had."""

import shutil
import threading
from pathlib import Path

import pytest
import torch

from core.ops import openmp
from core.ops.kernel_structs import LinearSizes, packed
from core.ops.native import SmallRows
from core.ops.openmp import OpenMP, runtime_file, torch_openmp
from core.ops.threads import Threads

LINE = "7feb2fad0000-7feb2fb00000 r-xp 00000000 00:00 0                          "
OWN = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
OTHER = "/elsewhere/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ((OWN, OTHER, OWN, "/lib/libc.so.6"), OWN),  # as where scikit-learn is loaded, too
        (("/conda/lib/libomp.so",), Path("/conda/lib/libomp.so")),
        (("/a/libgomp.so.1", "/b/libgomp.so.1"), None),
        ((), None),
    ],
)
def test_the_runtime_is_torch_s_though_another_package_brings_its_own(
    files: tuple[str | Path, ...], found: Path | None, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    maps.write_text("".join(f"{LINE}{file}\n" for file in files) + "7ffd-7ffe r-xp 00000000 00:00 0\n")
    assert runtime_file(maps) == found


def test_without_such_a_list_it_is_the_one_beside_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    monkeypatch.setattr(openmp.torch, "__file__", str(lib.parent / "__init__.py"))
    assert runtime_file(tmp_path / "none") is None
    for name in ("libiomp5md.dll", "libiomp5md.lib", "torch_cpu.dll"):
        (lib / name).touch()
    assert runtime_file(tmp_path / "none") == lib / "libiomp5md.dll"


def test_a_runtime_that_does_not_load_leaves_the_kernel_its_own_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmp, "runtime_file", lambda: tmp_path / "libgomp.so.1")
    assert not any(getattr(torch_openmp(), name) for name, _ in OpenMP._fields_)


@pytest.fixture
def own(kernel: SmallRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRows:
    """The kernel once more, in threads of its own."""
    monkeypatch.setattr(Threads, "adapts", False)
    library = tmp_path / "other.so"  # a copy is loaded beside the first
    shutil.copy(kernel.library._name, library)
    return SmallRows(library, OpenMP())


def test_its_own_threads_compute_the_same(own: SmallRows, kernel: SmallRows) -> None:
    before = torch.get_num_threads()
    x, weight = torch.randn(7, 300), torch.randn(1000, 300)
    q, k, v = torch.randn(1, 6, 9, 64), *torch.randn(2, 1, 3, 3000, 64)
    panels = packed(weight, kernel.panel)
    layer = LinearSizes(panels.data_ptr(), None, 300, 1000, 0)
    product, attended = kernel.product(x, layer), kernel(q, k, v, 0.125)
    wrong = []

    def compute() -> None:
        for _ in range(40):
            if not torch.equal(own.product(x, layer), product):
                wrong.append("product")
        if not torch.equal(own(q, k, v, 0.125), attended):
            wrong.append("attention")

    try:
        for number in (1, 2, 3, 5, 2):
            torch.set_num_threads(number)
            compute()
            callers = [threading.Thread(target=compute) for _ in range(2)]  # one has the threads, one computes alone
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
    finally:
        torch.set_num_threads(before)
    assert not wrong
