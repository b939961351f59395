"""The plan of memory is never below what is really allocated: bytes are counted on a pretended GPU (`peaks`)."""

from dataclasses import replace

import pytest
import torch

from core.caches.full import FullCache
from core.planning.sizes import CacheSizes
from tests.core.planning.peaks import (
    BUDGET,
    HALF,
    LAYERS,
    READING,
    WORKS,
    Peak,
    cache_peaks,
    config,
    config_of,
    engine_peaks,
    full_peak,
    kept_of,
    on_device,
    read,
    small_world,
    table,
)
from tests.core.toys import loaded

pytestmark = pytest.mark.skipif(
    hasattr(torch._C, "_cuda_getDeviceCount"), reason="torch was built with CUDA: its own functions are there"
)


def exceeded(peaks: list[Peak]) -> list[str]:
    return [f"{p.situation}: {p.measured_bytes:,} of {p.planned_bytes:,}" for p in peaks if p.share > 1]


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("context", [512, 997])
def test_no_cache_takes_more_than_its_row_of_the_plan_and_no_row_is_much_too_large(context: int, kv_heads: int) -> None:
    found = cache_peaks(context, kv_heads)
    assert len(found) == LAYERS + 4 and exceeded(found) == []
    assert all(peak.share > 0.98 for peak in found), found


def test_reading_layer_by_layer_stays_within_the_plan() -> None:
    found = engine_peaks("offloaded", {READING: read}, placement="offloaded")
    assert len(found) == 2 and exceeded(found) == []


def test_a_plan_without_the_newest_queries_is_too_small() -> None:
    """The control: the count notices what was once left out."""
    with small_world() as gpu:
        dims = on_device(loaded(config_of(4, 4, LAYERS), 3)).dims
        sizes, shape = CacheSizes.of(dims, config(), HALF, device="cuda"), dims.shape(HALF, torch.device("cuda", 0))
        assert full_peak(gpu, sizes, shape, 512, LAYERS).share <= 1
        assert full_peak(gpu, replace(sizes, fixed_bytes=0), shape, 512, LAYERS).share > 1.05


def test_what_was_counted_goes_with_its_last_tensor() -> None:
    with small_world() as gpu:
        x = torch.empty(256, device="cuda")
        part = x[128:]
        assert gpu.memory.used_bytes == 1024, "a view takes nothing"
        del x
        assert gpu.memory.used_bytes == 1024
        del part
        assert gpu.memory.used_bytes == 0 and gpu.memory.peak_bytes == 1024
        shape = on_device(loaded(config_of(4, 4, LAYERS), 3)).dims.shape(HALF, torch.device("cuda", 0))
        before = gpu.memory.used_bytes
        assert kept_of(gpu, lambda: FullCache(shape, 64, 8)) > 0 and gpu.memory.used_bytes == before


@pytest.mark.slow
def test_no_peak_in_any_situation_is_above_the_plan() -> None:
    found = table()
    assert {name for name in (*WORKS, BUDGET)} <= {peak.situation.rpartition(": ")[2] for peak in found}
    assert exceeded(found) == []
