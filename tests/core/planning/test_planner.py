from dataclasses import replace

import pytest
import torch

from core.config import DraftConfig, EngineConfig, PlacementWish
from core.errors import ContextTooSmall, NotEnoughMemory
from core.models.hub.shapes import find_shape
from core.models.loader import ModelDims
from core.models.param_count import size_of
from core.planning.hardware import Gpu, Machine
from core.planning.memory_plan import placed
from core.planning.planner import make_plan
from core.planning.sizes import GPU_MARGIN, TARGET_WEIGHTS, grown_window, kv_bytes_per_token

GIB = 1 << 30
LLAMA2_7B = ModelDims(32, 32, 32, 128, 4096, 32000, 131072, 13_476_839_424, torch.float16, intermediate_size=11008)
SMALL = ModelDims(4, 4, 4, 64, 256, 2048, 131072, 8_528_432, torch.float16)
LAPTOP = Machine("cpu", 2, 16 * GIB, 12 * GIB, ())
HUGE = Gpu("H200", 300 * GIB, 299 * GIB)
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
    plan = make_plan(LLAMA2_7B, None, EngineConfig(placement="resident"), GAMER)
    assert 0 < plan.context.value < 131072 and plan.context.value == plan.most_context // 64 * 64
    assert "free memory" in plan.context.because
    assert plan.total_bytes <= plan.usable_bytes == 23 * GIB - GPU_MARGIN


def test_weights_that_do_not_fit_and_a_context_that_does_not_fit_are_two_refusals() -> None:
    with pytest.raises(NotEnoughMemory, match="weights and what lies beside them need") as weights:
        make_plan(LLAMA2_7B, None, EngineConfig(), LAPTOP)
    assert "smaller model" in weights.value.hint
    with pytest.raises(NotEnoughMemory, match="context of 65,536") as context:
        make_plan(LLAMA2_7B, None, EngineConfig(context=65536), replace(GAMER, free_ram_bytes=16 * GIB))
    fits = int(context.value.hint.split("--context ")[1].split()[0])
    small = replace(GAMER, free_ram_bytes=16 * GIB)
    assert make_plan(LLAMA2_7B, None, EngineConfig(context=fits), small).context.value == fits
    assert fits == context.value.largest_context


def test_what_does_not_fit_on_the_gpu_waits_in_host_memory() -> None:
    plan = make_plan(LLAMA2_7B, None, EngineConfig(context=65536), GAMER)
    # 23 GiB - 800 = 22752 MiB; less weights 12852.5, retrieval cache (1024 + 8 + 192 + 1) * 0.5 = 612.5
    # and numbers of 112 chunks * 1024 heads * 8 bytes = 0.9, prefill 377.9 (see test_rig_plan),
    # ring 3 * 16 * 4 + 4 + 3968 rows of a layer = 258 and, for each of 32 layers, 256 + 192 + 1 rows
    # of 16 KiB and 383 of a long pass = 13, 512 for recordings: 7722.2 left, less what chunks are chosen by. A layer
    # that stays takes 1011 more, and 64 for landmarks instead of 4 for votes.
    left = 7722.2 - plan.cache_sizes.beside_bytes(65536, 0) / (1 << 20)
    assert plan.placement.value == "split" and plan.offload is not None
    assert plan.resident_layers == plan.offload.num_resident == left // 1071 >= 5
    assert plan.offload.block_rows == 256
    assert plan.total_bytes <= plan.usable_bytes
    assert plan.host_bytes == (32 - plan.resident_layers) * 1024 << 20
    assert plan.prefill_chunk.value == 3968 and "copies" in plan.prefill_chunk.because
    assert "cross the link" in plan.placement.because


@pytest.mark.parametrize(("wish", "layers"), [("resident", 32), ("split", 31), ("offloaded", 0)])
def test_a_placement_that_was_asked_for_is_planned(wish: PlacementWish, layers: int) -> None:
    plan = make_plan(LLAMA2_7B, None, EngineConfig(context=4096, placement=wish), GAMER)
    assert (plan.placement.value, plan.resident_layers) == (wish, layers)
    assert (plan.offload is None) == (wish == "resident")
    assert ("asked for" in plan.placement.because) == (wish != "resident")


def test_on_a_processor_only_a_limit_makes_two_memories_of_one() -> None:
    assert make_plan(SMALL, None, EngineConfig(), LAPTOP).offload is None
    plan = make_plan(SMALL, None, EngineConfig(gpu_memory_gib=0.75), LAPTOP)
    assert plan.placement.value in ("split", "offloaded") and "--gpu-memory" in plan.placement.because
    assert plan.available_bytes == 3 * GIB // 4 and plan.host_available_bytes == 12 * GIB - 3 * GIB // 4
    assert plan.total_bytes <= 0.9 * plan.available_bytes and plan.prefill_chunk.value == 1024
    with pytest.raises(NotEnoughMemory, match=r"0\.4 GiB") as error:
        make_plan(SMALL, None, EngineConfig(gpu_memory_gib=0.5), LAPTOP)
    assert "--gpu-memory" in error.value.hint


def test_with_the_kernel_weights_are_planned_in_the_bits_of_their_file() -> None:
    """8 billion in 16 bits take 16 GB: a laptop of 32 GB reads with them."""
    laptop = Machine("cpu", 8, 32 * GIB, 26 * GIB, (), compiles=True)
    model = replace(LLAMA2_7B, weight_bytes=16_060_522_496, num_kv_heads=8, vocab_size=128_256)
    for config, asked in ((EngineConfig(), replace(laptop, compiles=False)), (EngineConfig(attention="torch"), laptop)):
        with pytest.raises(NotEnoughMemory, match="weights"):
            make_plan(model, None, config, asked)
    plan = make_plan(model, model, EngineConfig(context=8192), replace(laptop, free_ram_bytes=60 * GIB))
    assert {row.size_bytes for row in plan.rows if row.name.endswith("weights")} == {model.weight_bytes}
    counted = make_plan(replace(model, packed_bytes=16_100_000_000), None, EngineConfig(), laptop)
    assert next(row for row in counted.rows if row.name == TARGET_WEIGHTS).size_bytes == 16_100_000_000


@pytest.mark.parametrize(
    ("parameters", "cores", "tokens"),
    [(135e6, 2, 1024), (494e6, 2, 512), (1.54e9, 2, 128), (1.54e9, 8, 512), (8.03e9, 2, 64), (70e9, 1, 64)],
)
def test_a_processor_reads_in_pieces_that_take_a_second_or_two(parameters: float, cores: int, tokens: int) -> None:
    model = replace(SMALL, weight_bytes=int(2 * parameters))
    machine = replace(LAPTOP, num_cores=cores, free_ram_bytes=400 * GIB)
    assert make_plan(model, None, EngineConfig(), machine).prefill_chunk.value == tokens
    assert make_plan(model, None, EngineConfig(prefill_chunk=48), machine).prefill_chunk.value == 48
    assert make_plan(model, None, EngineConfig(device="cuda"), replace(GAMER, gpus=(HUGE,))).prefill_chunk.value == 1024


def test_a_plan_tells_what_it_became() -> None:
    plan = make_plan(LLAMA2_7B, None, EngineConfig(context=8192, placement="split"), GAMER)
    fewer = placed(plan, 3, "the device ran out of memory")
    assert fewer.placement.value == "split" and "3 of 32 layers stay" in fewer.placement.because
    assert fewer.total_bytes < plan.total_bytes and fewer.host_bytes > plan.host_bytes
    assert fewer.rows[0] == plan.rows[0] and placed(plan, 0, "so").placement.value == "offloaded"


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ContextTooSmall):
        make_plan(replace(SMALL, max_context=4096), None, EngineConfig(context=8192), LAPTOP)


def test_cuda_without_a_device_is_refused_with_an_action() -> None:
    with pytest.raises(NotEnoughMemory) as error:
        make_plan(SMALL, None, EngineConfig(device="cuda"), LAPTOP)
    assert "--device cpu" in error.value.hint


def test_drafting_weights_are_counted_and_refused_where_they_do_not_fit() -> None:
    shape = find_shape("llama2-7b-128k")
    assert shape is not None
    size = size_of(shape.config, shape.name)
    config = EngineConfig(context=4096, self_draft_bits=4, placement="resident")
    plain = make_plan(LLAMA2_7B, None, replace(config, self_draft_bits=16), GAMER)
    plan = make_plan(LLAMA2_7B, None, config, GAMER, size)
    # 6,476,005,376 linear weights of 32 layers and 32000 * 4096 of the output layer at 4.5 bits: 4, and bfloat16 scale
    # and offset for 64 of them
    rows = {row.name: row.size_bytes for row in plan.rows}
    assert rows["self-draft weights, 4 bit"] == (6_476_005_376 + 131_072_000) * 9 // 16
    assert plan.total_bytes == plain.total_bytes + rows["self-draft weights, 4 bit"]
    assert plan.most_context < make_plan(LLAMA2_7B, None, replace(config, self_draft_bits=16), GAMER).most_context
    tight = replace(GAMER, gpus=(Gpu("small", 17 * GIB, 17 * GIB),))
    assert make_plan(LLAMA2_7B, None, replace(config, context=None, self_draft_bits=16), tight).context.value > 0
    with pytest.raises(NotEnoughMemory, match="weights and what lies beside them") as refused:
        make_plan(LLAMA2_7B, None, config, tight, size)
    assert refused.value.hint == "Leave out --self-draft-bits."


def test_a_draft_s_window_grows_with_its_weights() -> None:
    def window(weight_bytes: int, max_context: int = 32768) -> int:
        qwen = ModelDims(24, 14, 2, 64, 896, 151936, max_context, weight_bytes, torch.bfloat16)
        return grown_window(DraftConfig(), qwen, torch.bfloat16).window

    assert window(1 << 30) == 1024 and window(1 << 20) == 256
    assert 256 < window(100 << 20) < 1024 and window(100 << 20) % 64 == 0
    assert window(1 << 30, max_context=1024) == 512
