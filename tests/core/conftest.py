"""Tiny models gain nothing from threads, and lose much where other work waits for the same cores."""

from collections.abc import Callable, Iterator

import pytest
import torch

from core.ops.backend import Backend
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.ops.native import SmallRows


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def short_calibration() -> Iterator[None]:
    """How fast a link is matters to no text, and every engine with layers in host memory measures it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.planning.measured.LINK_BYTES", 1 << 20)
        yield


@pytest.fixture(scope="session")
def kernel() -> SmallRows:
    """The compiled kernel; without a compiler its tests are skipped by name."""
    try:
        return small_rows()
    except NoKernel as reason:
        pytest.skip(f"no kernel here: {reason}")


@pytest.fixture(scope="session")
def backend(kernel: SmallRows) -> Backend:
    """Attention and layers by the compiled kernel."""
    return Backend("compiled", kernel, "test", kernel=kernel)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
