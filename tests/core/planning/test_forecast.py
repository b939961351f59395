"""The model of costs against passes that were measured: real models, real texts, real machines.

No weights are loaded: the engine's own arithmetic runs on plans of models and machines that are not here.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from core.config import EngineConfig, RetrievalConfig
from core.models.param_count import ModelSize, size_of
from core.planning import measured
from core.planning.choices import Choice
from core.planning.devices import ON_PROCESSOR, Bandwidths, kind_of, make_rig
from core.planning.forecast import (
    PUBLISHED,
    bandwidths,
    pass_cost,
    planned_reads,
    predict,
)
from core.planning.hardware import Machine
from core.planning.measured import PROBED_BYTES, PROBED_GROUP, PROBED_NUMBERS, PROBED_ROWS, Processor
from core.planning.plan import Plan, make_plan
from tests.core.planning.plans import sizes_of

GIB = 1 << 30
HOST = Machine("cpu", 16, 256 * GIB, 256 * GIB, ())
GOLDENS: dict[str, Any] = json.loads(Path(__file__).with_name("goldens.json").read_text(encoding="utf-8"))
SHARE = 1.5  # a forecast is at most so many times what was measured, and at least one part in so many


# -------------------- what was measured


@cache
def golden_size(name: str) -> ModelSize:
    return size_of(AutoConfig.for_model(**GOLDENS["models"][name]["config"]), name)


def golden_plan(row: dict[str, Any]) -> Plan:
    """The plan of a measured model, with weights as wide as they lay in memory."""
    size, model = golden_size(row["model"]), GOLDENS["models"][row["model"]]
    config = EngineConfig(device="cpu", context=model["config"]["max_position_embeddings"], kv_bits=row["kv_bits"])
    plan = make_plan(size, None, config, HOST)
    kept = size.num_parameters * model["weight_bits"] // 8  # in 32 bits they are as many times as large as on disk
    dims = replace(size.dims, weight_bytes=kept * size.dims.disk_dtype.itemsize // 4)
    return replace(plan, size=replace(size, dims=dims), context=Choice(row["tokens"], "measured at"))


@pytest.mark.parametrize("row", GOLDENS["passes"], ids=lambda row: f"{row['model']}-{row['tokens']}-{row['rows']}")
def test_a_forecast_is_near_the_pass_that_was_measured(row: dict[str, Any]) -> None:
    plan = golden_plan(row)
    rates = Bandwidths(Choice(1e9 * row["memory_gb_per_second"], "measured beside it"), None, rows=ON_PROCESSOR)
    ms = 1e3 * pass_cost("cpu", planned_reads(plan, row["tokens"]).full, rates).of(row["rows"] - 1)
    assert row["ms"] / SHARE < ms < row["ms"] * SHARE, ms
    if row["rows"] == 1:
        found = predict(plan, rates, PUBLISHED)
        assert found.plain_ms_per_token == pytest.approx(ms) and found.context == row["tokens"]


# -------------------- measuring


def test_rates_follow_from_the_least_of_what_was_measured() -> None:
    """A machine of 50 GB/s, whose further rows cost as on the one that the nominal figures are from."""
    memory, rows = 50e9, ON_PROCESSOR
    one, several = (
        PROBED_NUMBERS * (2 / memory + rows.number + rows.attended * PROBED_GROUP * count) for count in (1, PROBED_ROWS)
    )
    reading = PROBED_BYTES / memory
    products = {"product 1": reading, f"product {PROBED_ROWS}": reading * (1 + rows.product * (PROBED_ROWS - 1))}
    seconds = {**products, "attention 1": one, f"attention {PROBED_ROWS}": several, "square": 0.02}
    found = measured.rates_from(seconds, 2)
    assert found.memory.value == pytest.approx(memory) and found.link is None
    assert found.products.value == pytest.approx(50 * 2 * 1024**3)
    expected = pytest.approx((rows.product, rows.number, rows.attended))
    assert (found.rows.product, found.rows.number, found.rows.attended) == expected
    busy = {**seconds, "attention 1": 2 * several}
    assert measured.rates_from(busy, 2).rows.attended == 0.0, "a busy moment makes no negative cost"


@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_processor_is_measured_once_a_minute_as_passes_compute(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "PROBED_BYTES", 1 << 20)
    monkeypatch.setattr(measured, "PROBED_NUMBERS", 1 << 16)
    if not has_kernel:
        monkeypatch.setattr(measured, "kernel_here", lambda: None)
    processor = Processor()
    first = processor.rates()
    assert first.memory.value > 0 and first.memory.because == "measured on this processor"
    assert (first.products.value or 0) > 0 and processor._number_bytes == (2 if has_kernel else 4)
    monkeypatch.setattr(processor, "_measure", lambda: pytest.fail("measured again within a minute"))
    assert processor.rates() == first


# -------------------- rates and reads of plans


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA L40S", "L40"),
        ("NVIDIA RTX A1000", "RTX 4090, as NVIDIA RTX A1000 is not known"),
    ],
)
def test_a_gpu_is_known_by_the_driver_s_name(name: str, kind: str) -> None:
    assert kind_of(name).bandwidths().memory.because == f"nominal, as of an {kind}"


def test_weights_of_four_bits_cost_something_for_each_further_row() -> None:
    rig = make_rig(HOST, assume="4090", host_gib=256)
    plan = make_plan(sizes_of("qwen3-14b-yarn")[0], None, EngineConfig(context=8192, bits=4), rig)
    reads = planned_reads(plan, 4096).full
    one, other = (pass_cost("cuda", replace(reads, in_bits=count), bandwidths(plan)) for count in (reads.in_bits, 0))
    assert reads.in_bits == plan.size.layer_parameters
    assert one.of(0) == other.of(0) and one.of(8) - other.of(8) == pytest.approx(8 * 13.2e9 / 1.5e13, rel=0.02)


# Published for two RTX 4090 (arXiv 2404.11912), milliseconds a token with about 120K tokens of context.
@pytest.mark.parametrize(
    ("name", "layers", "plain_ms", "triforce_ms"),
    [("llama2-7b-128k", 12, 840, 108), ("llama2-13b-128k", 5, 1794, 226)],
)
def test_the_model_meets_the_published_speeds_on_two_4090(
    name: str, layers: int, plain_ms: float, triforce_ms: float
) -> None:
    """With as many layers on the cards as the published system has room for."""
    config = EngineConfig(context=131072, num_gpus=2, retrieval=RetrievalConfig(budget=4096))
    target, draft = sizes_of(name)
    assert draft is not None
    plan = make_plan(target, draft.dims, config, make_rig(HOST, assume="2x4090", host_gib=256))
    rates = bandwidths(plan)
    assert rates.link is not None and "nominal" in rates.link.because and "4090" in rates.memory.because
    found = predict(replace(plan, resident_layers=layers), rates, PUBLISHED)
    assert found.plain_ms_per_token == pytest.approx(plain_ms, rel=0.1)
    assert found.triforce_ms_per_token == pytest.approx(triforce_ms, rel=0.1)
