"""What fits where: the figures of many plans, some of them worked out by hand, and what is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.config import DraftConfig, EngineConfig, PlacementWish, RetrievalConfig
from core.errors import ContextTooSmall, CoreError, InvalidSetting, NotEnoughMemory, NotPossibleHere
from core.models.hub.catalog import find
from core.models.loader import ModelDims, read_dims
from core.models.param_count import ModelSize, size_in
from core.planning import plan as planning
from core.planning.choices import Choice
from core.planning.composition import tiers_of
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.hardware import Gpu, Machine
from core.planning.plan import Plan, make_plan, placed
from core.planning.sizes import (
    GPU_MARGIN,
    RUNTIME_BYTES,
    TARGET_WEIGHTS,
    grown_window,
    kv_bytes_per_token,
)
from tests.core.planning.plans import FILE, Case, few_cases, figures, sizes_of
from tests.core.toys import sized

GIB, KIB = 1 << 30, 1 << 10
LLAMA2_7B = ModelDims(32, 32, 32, 128, 4096, 32000, 131072, 13_476_839_424, torch.float16, intermediate_size=11008)
SMALL = ModelDims(4, 4, 4, 64, 256, 2048, 131072, 8_528_432, torch.float16)
LAPTOP = Machine("cpu", 2, 16 * GIB, 12 * GIB, ())
HUGE = Gpu("H200", 300 * GIB, 299 * GIB)
GAMER = Machine("cpu", 16, 128 * GIB, 120 * GIB, (Gpu("RTX 4090", 24 * GIB, 23 * GIB),))
HOST = Machine("cpu", 16, 128 * GIB, 120 * GIB, ())
HARBOUR = find("harbour").target
TWO = EngineConfig(num_gpus=2, device="cpu")
KEPT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", few_cases(), ids=lambda case: case.name)
def test_a_plan_has_the_figures_that_were_recorded(case: Case) -> None:
    assert json.loads(json.dumps(figures(case))) == KEPT[case.name]


# -------------------- figures by hand


def size(name: str) -> ModelSize:
    """Of a target of the catalogue."""
    return sizes_of(name)[0]


def cards(count: int = 1, host_gib: float = 128) -> Rig:
    return make_rig(HOST, assume=f"{count}x4090", host_gib=host_gib)


def planned(
    size: ModelSize, rig: Rig, context: int | None = 131072, bits: int | None = None, budget: int = 4096, **changes: Any
) -> Plan:
    config = EngineConfig(context=context, retrieval=RetrievalConfig(budget=budget), bits=bits, **changes)
    config = replace(config, num_gpus=max(1, len(rig.machine.gpus)))
    return make_plan(size, None, config, rig)


# By hand, for Llama2-7B: a layer has 4 * 4096^2 + 3 * 4096 * 11008 = 202,375,168 linear weights, 32 layers
# 6,476,005,376; embeddings and output layer 2 * 32000 * 4096 = 262,144,000; 65 norms of 4096 = 266,240.
@pytest.mark.parametrize(
    ("name", "parameters", "in_layers", "kv_kib"),
    [
        ("llama2-7b-128k", 6_738_415_616, 6_476_005_376, 512),
        ("llama2-13b-128k", 13_015_864_320, 40 * (4 * 5120**2 + 3 * 5120 * 13824), 800),
        ("llama-3.1-8b", 8_030_261_248, 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 128),
        ("qwen2.5-7b-yarn", 7_615_616_512, 28 * (2 * 3584**2 + 2 * 3584 * 512 + 3 * 3584 * 18944), 56),
    ],
)
def test_parameters_and_kv_bytes_are_those_of_the_published_models(
    name: str, parameters: int, in_layers: int, kv_kib: int
) -> None:
    found = size(name)
    assert (found.num_parameters, found.layer_parameters) == (parameters, in_layers)
    assert kv_bytes_per_token(found.dims, torch.float16) == kv_kib * KIB
    assert found.weight_bytes(16) == 2 * parameters
    others = 2 * (parameters - in_layers)
    assert found.weight_bytes(8) == in_layers + others, "quantised: the layers; 16 bit: embeddings, output, norms"
    assert found.weight_bytes(4) == in_layers * 9 // 16 + others, "4 bits and a float32 scale for every 64"


def test_llama2_7b_at_128k_takes_64_gib_of_keys_and_values_and_a_24_gb_card_cannot_hold_it() -> None:
    llama = size("llama2-7b-128k")
    assert 131072 * kv_bytes_per_token(llama.dims, torch.float16) == 64 * GIB
    assert llama.weight_bytes(16) == 13_476_831_232  # the published 13.5 GB
    plan = planned(llama, cards(), placement="offloaded")
    tiers = tiers_of(plan)
    assert plan.placement.value == "offloaded" and plan.resident_layers == 0
    gpu, host = ({row.name: row.size_bytes / (1 << 20) for row in tier.rows} for tier in tiers)
    # (4096 + 8 + 192 + 1) rows of half a MiB and the numbers of 496 chunks in 1024 heads; 256 + 192 + 1 newest rows
    # and 256 + 127 of a long pass for each layer. Buffers are counted by `test_peaks`.
    assert gpu["target weights"] == pytest.approx(12852.5) and gpu["retrieval cache"] == pytest.approx(2148.5 + 3.875)
    assert gpu["newest rows of offloaded layers"] == pytest.approx(32 * 13) and gpu["CUDA graphs"] == 512
    assert host == pytest.approx({"runtime": 600, "full cache, host": 64 * 1024}, rel=1e-5)
    assert [tier.usable_bytes for tier in tiers] == [24 * GIB - (800 << 20), int(0.9 * 128 * GIB)]
    assert all(tier.used_bytes <= tier.usable_bytes for tier in tiers)


def test_what_does_not_fit_on_the_gpu_waits_in_host_memory() -> None:
    plan = make_plan(sized(LLAMA2_7B), None, EngineConfig(context=65536), GAMER)
    assert plan.placement.value == "split" and plan.offload is not None and plan.offload.block_rows == 256
    assert plan.resident_layers == plan.offload.num_resident >= 5
    assert plan.total_bytes + (1024 << 20) > plan.usable_bytes, "one layer more, of a GiB, would not fit"
    assert plan.total_bytes <= plan.usable_bytes == 23 * GIB - GPU_MARGIN
    assert plan.host_bytes == (32 - plan.resident_layers) * 1024 << 20
    assert plan.prefill_chunk == 3968
    assert "cross the link" in plan.placement.because
    fewer = placed(plan, 3, "the device ran out of memory")
    assert fewer.placement.value == "split" and "3 of 32 layers stay" in fewer.placement.because
    assert fewer.total_bytes < plan.total_bytes and fewer.host_bytes > plan.host_bytes
    assert fewer.offload is not None and fewer.offload.num_resident == 3, "as it is laid out again"
    assert fewer.rows[0] == plan.rows[0] and placed(plan, 0, "so").placement.value == "offloaded"


@pytest.mark.parametrize("model", ["llama2-7b-128k", "qwen3-0.6b", "harbour"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_layers_that_fit_are_those_of_trying_each(model: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(context=64, layerwise=False, device=device)  # type: ignore[arg-type]
    plan = make_plan(size(model), None, config, replace(GAMER, gpus=(HUGE,)))
    cache = plan.sizes
    for context in (64, 200, 1000, 8192, 40_000, 131_072):
        low, high = sorted(cache.device_bytes(context, layers) for layers in (cache.layers, 0))
        step = (high - low) // 23 + 1
        for room in range(max(0, low - 2 * step), high + 2 * step, step):
            for most in (cache.layers - 1, 1, 0):
                for host in (cache.host_bytes(context, 0), cache.host_bytes(context, 0) // 2):
                    monkeypatch.setattr(type(plan), "host_room", host)
                    beside = sum(row.size_bytes for row in cache.host_rows(context, most)) - cache.host_bytes(
                        context, most
                    )
                    tried = (n for n in range(most, -1, -1) if cache.device_bytes(context, n) <= room)
                    here = next(tried, None)
                    fits = here is not None and cache.host_bytes(context, here) + beside <= host
                    assert plan.layers_within(room, context, most) == (here if fits else None)


# -------------------- several ranks, and what is shown of a plan


def test_counted_weights_are_as_large_as_their_files() -> None:
    counted, config = size_in(HARBOUR), EngineConfig()
    plans = [make_plan(replace(counted, dims=dims), None, config, HOST) for dims in (counted.dims, read_dims(HARBOUR))]
    shown, stored = (plan.bytes_of(TARGET_WEIGHTS) for plan in plans)
    assert shown == pytest.approx(stored, rel=1e-3) and shown < stored, "a file has a header, too"


@pytest.mark.parametrize("memories", [(24, 24), (24, 20)])
def test_of_several_gpus_each_has_its_share_and_the_fullest_decides(memories: tuple[int, int]) -> None:
    target, draft = sizes_of("llama2-7b-128k")
    machine = replace(HOST, gpus=tuple(Gpu(f"of {gib}", gib * GIB, gib * GIB) for gib in memories))
    config = EngineConfig(context=131072, num_gpus=2)
    assert draft is not None
    plan = make_plan(target, draft.dims, config, machine)
    assert 0 < plan.resident_layers < 32 and plan.available_bytes == min(memories) * GIB
    assert plan.target.num_kv_heads == 16 and plan.bytes_of(TARGET_WEIGHTS) == target.layer_parameters + 2 * (
        target.other_parameters
    )
    first, second, host = tiers_of(plan)
    assert {row.name for row in set(first.rows) - set(second.rows)} == {"draft weights", "streaming cache"}
    assert first.rows == plan.rows and set(second.rows) < set(first.rows), "all else is on each"
    assert [row.size_bytes for row in host.rows[1:]] == [2 * row.size_bytes for row in plan.host_rows]
    assert host.rows[0].size_bytes == 2 * RUNTIME_BYTES, "each process has its own"


# -------------------- what is chosen


def test_a_small_model_gets_the_whole_context_it_can_read() -> None:
    plan = make_plan(sized(SMALL), None, EngineConfig(), LAPTOP)
    assert (plan.context.value, plan.device.value, plan.dtype.value) == (131072, "cpu", torch.float32)
    assert plan.total_bytes < plan.available_bytes and "model can read" in plan.context.because
    gpu = make_plan(sized(SMALL), None, EngineConfig(), GAMER)
    assert (gpu.device.value, gpu.dtype.value) == ("cuda", torch.float16), "weights keep their precision"
    assert make_plan(sized(SMALL), None, EngineConfig(device="cpu"), GAMER).device.value == "cpu"


@pytest.mark.parametrize(("wish", "layers"), [("resident", 32), ("split", 31), ("offloaded", 0)])
def test_a_placement_that_was_asked_for_is_planned(wish: PlacementWish, layers: int) -> None:
    plan = make_plan(sized(LLAMA2_7B), None, EngineConfig(context=4096, placement=wish), GAMER)
    assert (plan.placement.value, plan.resident_layers) == (wish, layers)
    assert (plan.offload is None) == (wish == "resident")
    assert ("asked for" in plan.placement.because) == (wish != "resident")


def test_on_a_processor_only_a_limit_makes_two_memories_of_one() -> None:
    assert make_plan(sized(SMALL), None, EngineConfig(), LAPTOP).offload is None
    plan = make_plan(sized(SMALL), None, EngineConfig(gpu_memory_gib=0.75), LAPTOP)
    assert plan.placement.value in ("split", "offloaded") and "--gpu-memory" in plan.placement.because
    assert plan.available_bytes == 3 * GIB // 4 and plan.prefill_chunk == 1024
    assert plan.total_bytes <= 0.9 * plan.available_bytes


def test_with_the_kernel_weights_are_planned_in_the_bits_of_their_file() -> None:
    """8 billion in 16 bits take 16 GB: a laptop of 32 GB reads with them."""
    laptop = Machine("cpu", 8, 32 * GIB, 26 * GIB, (), compiles=True)
    model = replace(LLAMA2_7B, weight_bytes=16_060_522_496, num_kv_heads=8, vocab_size=128_256)
    for config, asked in ((EngineConfig(), replace(laptop, compiles=False)), (EngineConfig(attention="torch"), laptop)):
        with pytest.raises(NotEnoughMemory, match="weights"):
            make_plan(sized(model), None, config, asked)
    plan = make_plan(sized(model), model, EngineConfig(context=8192), replace(laptop, free_ram_bytes=60 * GIB))
    assert {row.size_bytes for row in plan.rows if row.name.endswith("weights")} == {model.weight_bytes}
    counted = make_plan(sized(replace(model, packed_bytes=16_100_000_000)), None, EngineConfig(), laptop)
    assert counted.bytes_of(TARGET_WEIGHTS) == 16_100_000_000


@pytest.mark.parametrize(
    ("parameters", "cores", "tokens"),
    [(135e6, 2, 1024), (494e6, 2, 512), (1.54e9, 2, 128), (1.54e9, 8, 512), (8.03e9, 2, 64), (70e9, 1, 64)],
)
def test_a_processor_reads_in_pieces_that_take_a_second_or_two(parameters: float, cores: int, tokens: int) -> None:
    model = replace(SMALL, weight_bytes=int(2 * parameters))
    machine = replace(LAPTOP, num_cores=cores, free_ram_bytes=400 * GIB)
    assert make_plan(sized(model), None, EngineConfig(), machine).prefill_chunk == tokens
    assert make_plan(sized(model), None, EngineConfig(prefill_chunk=48), machine).prefill_chunk == 48
    assert (
        make_plan(sized(model), None, EngineConfig(device="cuda"), replace(GAMER, gpus=(HUGE,))).prefill_chunk == 1024
    )


@pytest.mark.parametrize(
    ("weight_bytes", "max_context", "window"),
    [(1 << 30, 32768, 1024), (1 << 20, 32768, 256), (100 << 20, 32768, 512), (1 << 30, 1024, 512)],
)
def test_a_draft_s_window_grows_with_its_weights(weight_bytes: int, max_context: int, window: int) -> None:
    qwen = ModelDims(24, 14, 2, 64, 896, 151936, max_context, weight_bytes, torch.bfloat16)
    assert grown_window(DraftConfig(), qwen, torch.bfloat16).window == window


# -------------------- refusals


def test_weights_and_context_are_two_refusals() -> None:
    with pytest.raises(NotEnoughMemory, match=r"lies beside them need .* at 16 bits") as weights:
        planned(size("llama2-13b-128k"), cards())
    assert weights.value.largest_context is None and "--bits 8" in weights.value.hint
    assert planned(size("llama2-13b-128k"), cards(), 40960, bits=8).bits.value == 8
    llama, small = size("llama2-7b-128k"), cards(host_gib=64)
    with pytest.raises(NotEnoughMemory, match=r"weights fit, a context of 131,072 tokens does not") as context:
        planned(llama, small)
    largest = context.value.largest_context
    assert largest is not None and context.value.hint.startswith(f"Use --context {largest} or less, or --bits ")
    assert planned(llama, small, largest).context == Choice(largest, "asked for")
    assert planned(llama, small, None).context.value == largest
    with pytest.raises(NotEnoughMemory):
        planned(llama, small, largest + 64)
    with pytest.raises(NotEnoughMemory, match="its buffers need") as buffers:
        planned(llama, make_rig(HOST, gpu_gib=16.9, host_gib=128))
    assert buffers.value.largest_context is not None


@pytest.mark.parametrize(
    ("name", "gib", "changes", "hint"),
    [
        ("llama2-7b-128k", 9, {}, "With --bits 4 they would fit; answers are then exact for the quantised model."),
        ("llama2-13b-128k", 4, {}, "Choose a smaller model, or close other programs that take memory."),
        (
            "llama2-13b-128k",
            9,
            {"bits": 4, "budget": 1024},
            "Choose a smaller model, or close other programs that take memory.",
        ),
        ("llama-3.1-8b", 20, {"context": 65536, "self_draft_bits": 4}, "Leave out --self-draft-bits."),
    ],
)
def test_what_would_help_is_the_smallest_change_that_does(
    name: str, gib: float, changes: dict[str, Any], hint: str
) -> None:
    with pytest.raises(NotEnoughMemory, match="weights") as refused:
        planned(size(name), make_rig(HOST, gpu_gib=gib), **changes)
    assert refused.value.hint == hint


def test_loading_under_a_limit_and_on_a_device_that_is_not_there_says_what_helps() -> None:
    with pytest.raises(NotEnoughMemory, match="what lies beside them need") as refused:
        make_plan(sized(LLAMA2_7B), None, EngineConfig(gpu_memory_gib=0.5), LAPTOP)
    assert refused.value.hint == "Raise --gpu-memory, or choose a smaller model."
    with pytest.raises(NotPossibleHere) as cuda:
        make_plan(sized(SMALL), None, EngineConfig(device="cuda"), LAPTOP)
    assert "--device cpu" in cuda.value.hint


def test_a_context_beyond_the_model_and_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ContextTooSmall):
        planned(size("qwen3-8b"), cards(), 65536)
    assert planned(size("qwen2.5-7b-yarn"), make_rig(HOST, gpu_gib=24, num_gpus=4)).ranks == 4
    with pytest.raises(InvalidSetting, match="cannot be shared by 3"):
        planned(size("qwen2.5-7b-yarn"), make_rig(HOST, gpu_gib=24, num_gpus=3))


@pytest.mark.parametrize(
    ("device", "num_gpus", "gpus", "problem"),
    [
        ("cuda", 2, 1, "asks for 2 GPUs, of which this machine has 1"),
        ("auto", 2, 1, "asks for 2 GPUs, of which this machine has 1"),
        ("auto", 2, 0, "of which this machine has none"),
        ("cpu", 5, 0, "cannot be shared by 5 GPUs"),
        ("cpu", 9, 0, "--gpus 9 is not usable"),
        ("cpu", 0, 0, "--gpus 0 is not usable"),
    ],
)
def test_ranks_that_cannot_be_are_refused(device: Any, num_gpus: int, gpus: int, problem: str) -> None:
    with pytest.raises(CoreError, match=problem):
        config = replace(TWO, device=device, num_gpus=num_gpus)
        machine = replace(GAMER, gpus=GAMER.gpus * gpus)
        make_plan(size_in(HARBOUR), None, config, machine)


def test_gpus_that_cannot_share_a_model_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(HOST, gpus=(Gpu("A", 80 * GIB, 79 * GIB),) * 2)
    monkeypatch.setattr(planning, "ON_WINDOWS", True)
    qwen, described = size("qwen2.5-7b-yarn"), make_rig(here, assume="2x4090")
    with pytest.raises(NotPossibleHere, match="GPUs cannot share a model under Windows") as refused:
        planned(qwen, make_rig(here, num_gpus=2), 8192)
    assert refused.value.hint == "Start it in WSL2, or leave out --gpus."
    assert planned(qwen, make_rig(here), 8192).ranks == 1
    assert planned(qwen, described, 8192).ranks == 2, "that machine may run Linux"
    assert make_plan(qwen, None, replace(TWO, context=8192), HOST).ranks == 2, "processes on the processor can"
    monkeypatch.setattr(planning, "ON_WINDOWS", False)
    with pytest.raises(InvalidSetting, match="Quantised weights are not shared"):
        planned(size("llama-3.1-8b"), cards(2), 8192, bits=8)
    with pytest.raises(NotPossibleHere, match="layers of this family cannot be shared"):
        planned(replace(qwen, divisible=False), cards(2), 8192)


# -------------------- machines that are described


def test_descriptions_replace_the_parts_of_this_machine() -> None:
    here = Machine("cpu", 2, 16 * GIB, 9 * GIB, (Gpu("A", 8 * GIB, 7 * GIB),) * 2)
    assert make_rig(here) == Rig(machine=Machine("cpu", 2, 16 * GIB, 9 * GIB, here.gpus[:1]))
    assert len(make_rig(here, num_gpus=2).machine.gpus) == 2 and make_rig(here, num_gpus=2).assumed == ()
    rig = make_rig(here, assume="2x4090")
    assert [gpu.total_bytes for gpu in rig.machine.gpus] == [24 * GIB] * 2 and rig.kind is not None
    assert rig.machine.free_ram_bytes == 16 * GIB, "what other programs hold here says nothing about that machine"
    assert "2 x RTX 4090" in rig.assumed[0] and "16.0 GiB" in rig.assumed[1]
    assert make_rig(here, assume="cpu").machine.gpus == ()
    own = make_rig(here, host_gib=64)
    assert own.machine.ram_bytes == 64 * GIB and own.kind is None and own.assumed == ("64 GiB of host memory",)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"assume": "2x9999"}, "2x9999"),
        ({"assume": "0x4090"}, "0x4090"),
        ({"assume": ""}, "''"),
        ({"assume": "4090", "gpu_gib": 24.0}, "described twice"),
        ({"assume": "cpu", "num_gpus": 2}, "described twice"),
        ({"host_gib": -1.0}, "--host-memory -1"),
        ({"host_gib": float("nan")}, "--host-memory nan"),
        ({"gpu": described_gpu("A,24,1008,25"), "assume": "4090"}, "described twice"),
    ],
)
def test_descriptions_that_describe_nothing_are_refused(description: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        make_rig(HOST, **description)
    assert words in error.value.problem and error.value.hint
