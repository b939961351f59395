"""What is refused before anything is started, and what a rank's plan counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from core.config import EngineConfig
from core.errors import CoreError, InvalidSetting
from core.models.hub.catalog import find
from core.models.loader import ModelDims, read_dims
from core.planning import tp_planning
from core.planning.hardware import Gpu, Machine
from core.planning.planner import make_plan
from core.planning.tp_planning import for_one_rank, one_share
from tests.core.toys import MACHINE

TARGET = find("harbour").target
TWO = EngineConfig(num_gpus=2, device="cpu")
GPUS = replace(MACHINE, gpus=(Gpu("fuller", 24 << 30, 8 << 30), Gpu("emptier", 24 << 30, 20 << 30)))


def shared(config: EngineConfig, machine: Machine, folder: Path = TARGET) -> tuple[ModelDims, Machine]:
    return one_share(folder, read_dims(folder), config, machine)


@pytest.mark.parametrize(
    ("device", "machine", "problem"),
    [
        ("cuda", replace(GPUS, gpus=GPUS.gpus[:1]), "asks for 2 GPUs, this machine has one GPU"),
        ("auto", replace(GPUS, gpus=GPUS.gpus[:1]), "asks for 2 GPUs, this machine has one GPU"),
        ("auto", MACHINE, "this machine has no GPU"),
    ],
)
def test_more_gpus_than_there_are_is_refused(device: str, machine: Machine, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as refused:
        shared(replace(TWO, device=device), machine)  # type: ignore[arg-type]
    assert refused.value.hint == "Leave out --gpus."


def test_gpus_under_windows_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tp_planning, "ON_WINDOWS", True)
    with pytest.raises(InvalidSetting, match="GPUs cannot share a model under Windows") as refused:
        shared(replace(TWO, device="auto"), GPUS)
    assert refused.value.hint == "Start it in WSL2, or leave out --gpus."
    assert shared(TWO, GPUS)[0].num_kv_heads, "processes on the processor can"


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="cannot be shared by 5 GPUs"):
        shared(replace(TWO, num_gpus=5), MACHINE)


@pytest.mark.parametrize("count", [0, 9])
def test_numbers_of_gpus_that_cannot_be_are_refused(count: int) -> None:
    with pytest.raises(CoreError, match=f"--gpus {count} is not usable"):
        replace(TWO, num_gpus=count)


def test_a_share_has_half_of_the_heads_and_of_the_layers_weights() -> None:
    whole = read_dims(TARGET)
    share, machine = shared(TWO, MACHINE)
    assert 2 * share.num_kv_heads == whole.num_kv_heads and 2 * share.num_heads == whole.num_heads
    assert whole.weight_bytes / 2 < share.weight_bytes < whole.weight_bytes, "embeddings are on each"
    assert machine.free_ram_bytes == MACHINE.free_ram_bytes // 2
    plan = for_one_rank(make_plan(share, None, TWO, machine), 2)
    assert "2 processes share the model by heads" in plan.placement.because
    alone = make_plan(whole, None, EngineConfig(device="cpu"), MACHINE)
    rows, rows_alone = ({row.name: row.size_bytes for row in each.rows} for each in (plan, alone))
    assert 2 * rows["full cache, landmarks, query log"] == rows_alone["full cache, landmarks, query log"]


def test_gpus_are_planned_by_the_fullest() -> None:
    share, machine = shared(replace(TWO, device="cuda"), GPUS)
    assert [gpu.name for gpu in machine.gpus] == ["fuller"]
    plan = for_one_rank(make_plan(share, None, replace(TWO, device="cuda"), machine), 2)
    assert plan.available_bytes == 8 << 30 and "2 GPUs share" in plan.placement.because
