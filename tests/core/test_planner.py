from dataclasses import replace

import pytest
import torch

from core.config import EngineConfig
from core.errors import ContextTooSmall, NotEnoughMemory
from core.hardware import Gpu, Machine
from core.models.loader import ModelDims
from core.planner import kv_bytes_per_token, make_plan

GIB = 1 << 30
LLAMA2_7B = ModelDims(32, 32, 32, 128, 4096, 32000, 131072, 13_476_839_424, torch.float16)
SMALL = ModelDims(4, 4, 4, 64, 256, 2048, 131072, 8_528_432, torch.float16)
LAPTOP = Machine("cpu", 2, 16 * GIB, 12 * GIB, ())
GAMER = Machine("cpu", 16, 128 * GIB, 120 * GIB, (Gpu("RTX 4090", 24 * GIB, 23 * GIB),))


def test_kv_bytes_per_token_are_those_of_the_published_models() -> None:
    assert kv_bytes_per_token(LLAMA2_7B, torch.float16) == 512 * 1024
    llama31 = replace(LLAMA2_7B, num_kv_heads=8)
    assert kv_bytes_per_token(llama31, torch.float16) == 128 * 1024


def test_a_small_model_gets_the_whole_context_it_can_read() -> None:
    plan = make_plan(SMALL, None, EngineConfig(), LAPTOP)
    assert (plan.context.value, plan.device.value, plan.dtype.value) == (131072, "cpu", torch.float32)
    assert plan.total_bytes < plan.available_bytes
    assert "model can read" in plan.context.because


def test_a_gpu_is_taken_where_there_is_one_and_weights_keep_their_precision() -> None:
    plan = make_plan(SMALL, None, EngineConfig(), GAMER)
    assert (plan.device.value, plan.dtype.value) == ("cuda", torch.float16)
    assert make_plan(SMALL, None, EngineConfig(device="cpu"), GAMER).device.value == "cpu"


def test_a_context_that_fits_memory_only_in_part_is_cut_to_what_fits_with_the_reason() -> None:
    plan = make_plan(LLAMA2_7B, None, EngineConfig(), GAMER)
    assert 0 < plan.context.value < 131072 and plan.context.value == plan.most_context // 64 * 64
    assert "free memory" in plan.context.because
    assert plan.total_bytes <= 0.9 * plan.available_bytes


def test_weights_that_do_not_fit_and_a_context_that_does_not_fit_are_two_refusals() -> None:
    with pytest.raises(NotEnoughMemory, match="weights need") as weights:
        make_plan(LLAMA2_7B, None, EngineConfig(), LAPTOP)
    assert "smaller model" in weights.value.hint
    with pytest.raises(NotEnoughMemory, match="context of 65,536") as context:
        make_plan(LLAMA2_7B, None, EngineConfig(context=65536), GAMER)
    fits = int(context.value.hint.split("--context ")[1].split()[0])
    assert make_plan(LLAMA2_7B, None, EngineConfig(context=fits), GAMER).context.value == fits


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ContextTooSmall):
        make_plan(replace(SMALL, max_context=4096), None, EngineConfig(context=8192), LAPTOP)


def test_cuda_without_a_device_is_refused_with_an_action() -> None:
    with pytest.raises(NotEnoughMemory) as error:
        make_plan(SMALL, None, EngineConfig(device="cuda"), LAPTOP)
    assert "--device cpu" in error.value.hint
