"""Plans for machines that are not here, from config.json files alone, against figures worked out by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from core.config import EngineConfig, PlacementWish, RetrievalConfig
from core.errors import ContextTooSmall, InvalidSetting, ModelNotHere, NotEnoughMemory, UnsupportedModel
from core.models.hub.catalog import entries, find
from core.models.hub.shapes import find_shape
from core.models.loader import read_dims
from core.models.param_count import ModelSize, size_in, size_of
from core.planning import rig_plan
from core.planning.choices import Choice
from core.planning.hardware import Gpu, Machine
from core.planning.machine_spec import Bandwidths, Rig, gpu_kinds, make_rig
from core.planning.memory_plan import Plan
from core.planning.planner import make_plan
from core.planning.rig_plan import RigPlan, plan_rig
from core.planning.sizes import GRAPHS, RUNTIME_BYTES, TARGET_WEIGHTS, kv_bytes_per_token
from core.planning.speed_model import PUBLISHED, Acceptance, bandwidths, predict
from core.planning.tp_planning import one_share, share_of

GIB = 1 << 30
KIB = 1 << 10
HOST = Machine("cpu", 16, 128 * GIB, 120 * GIB, ())

# Sizes as the models' public config.json files state them.
LLAMA2_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA2_13B = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama2-7b": {"model_type": "llama", "vocab_size": 32000, "dtype": "float16", **LLAMA2_7B},
    "llama2-13b": {"model_type": "llama", "vocab_size": 32000, "dtype": "float16", **LLAMA2_13B},
    "llama-3.1-8b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "dtype": "bfloat16",
        "num_key_value_heads": 8,
        **LLAMA2_7B,
        "intermediate_size": 14336,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "dtype": "bfloat16",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}

Write = Callable[[str], ModelSize]


@pytest.fixture
def size(tmp_path: Path) -> Write:
    """The sizes of a model of which only config.json is there."""

    def write(name: str, **changes: Any) -> ModelSize:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        fields = {"max_position_embeddings": 131072, **CONFIGS[name], **changes}
        (folder / "config.json").write_text(json.dumps(fields))
        return size_in(folder)

    return write


def rig_4090(count: int = 1, host_gib: float = 128) -> Rig:
    return make_rig(HOST, assume=f"{count}x4090", host_gib=host_gib)


def planned(
    size: ModelSize,
    rig: Rig,
    context: int | None = 131072,
    bits: int | None = None,
    budget: int = 4096,
    placement: PlacementWish = "auto",
) -> RigPlan:
    config = EngineConfig(context=context, retrieval=RetrievalConfig(budget=budget), placement=placement)
    return plan_rig(size, None, config, rig, bits)


# By hand, for Llama2-7B: a layer has 4 * 4096^2 + 3 * 4096 * 11008 = 202,375,168 linear weights, 32 layers
# 6,476,005,376; embeddings and output layer 2 * 32000 * 4096 = 262,144,000; 65 norms of 4096 = 266,240.
@pytest.mark.parametrize(
    ("name", "parameters", "in_layers", "kv_kib"),
    [
        ("llama2-7b", 6_738_415_616, 6_476_005_376, 512),
        ("llama2-13b", 13_015_864_320, 40 * (4 * 5120**2 + 3 * 5120 * 13824), 800),
        ("llama-3.1-8b", 8_030_261_248, 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 128),
        ("qwen2.5-7b", 7_615_616_512, 28 * (2 * 3584**2 + 2 * 3584 * 512 + 3 * 3584 * 18944), 56),
    ],
)
def test_parameters_and_kv_bytes_are_those_of_the_published_models(
    size: Write, name: str, parameters: int, in_layers: int, kv_kib: int
) -> None:
    found = size(name)
    assert (found.num_parameters, found.layer_parameters) == (parameters, in_layers)
    assert kv_bytes_per_token(found.dims, torch.float16) == kv_kib * KIB
    assert found.weight_bytes(16) == 2 * parameters
    others = 2 * (parameters - in_layers)
    assert found.weight_bytes(8) == in_layers + others, "quantised: the layers; 16 bit: embeddings, output, norms"
    assert found.weight_bytes(4) == in_layers * 9 // 16 + others, "4 bits and a float32 scale for every 64"


def test_llama2_7b_at_128k_takes_64_gib_of_keys_and_values_and_a_24_gb_card_cannot_hold_it(size: Write) -> None:
    llama = size("llama2-7b")
    assert 131072 * kv_bytes_per_token(llama.dims, torch.float16) == 64 * GIB
    assert llama.weight_bytes(16) == 13_476_831_232  # the published 13.5 GB
    told = planned(llama, rig_4090(), placement="offloaded")
    sizes = told.plan.cache_sizes
    # 24 GiB - 800 = 23776 MiB; less weights 12852.5, retrieval cache (4096 + 8 + 192 + 1) * 0.5 = 2148.5
    # and the numbers of 496 chunks in 1024 heads, 3.9, prefill 3968 * (3 * 8192 + 4096 * 18 + 1024 + 544) bytes =
    # 377.9, what chunks are chosen by, 49 blocks of 256 rows of 16 KiB and 3968 rows of a layer on their way to the
    # host, 32 recorded passes of half a MiB a layer, and for each layer 256 + 192 + 1 newest rows and 256 + 127 of a
    # long pass.
    assert told.plan.placement.value == "offloaded" and told.plan.resident_layers == 0 and told.cpu_attention_share == 1
    gpu, host = ({row.name: row.size_bytes / (1 << 20) for row in tier.rows} for tier in told.tiers)
    assert gpu == pytest.approx(
        {
            "target weights": 12852.5,
            "retrieval cache": 2148.5 + 3.875,
            "prefill buffers": 3968 * 99872 / (1 << 20),
            "CUDA graphs": 512,
            "votes, query log": sizes.beside_bytes(131072, 0) / (1 << 20),
            "newest rows of offloaded layers": 32 * 13,
            "ring of copies": 196 + 62,
            # reading layer by layer: a layer's 2048 and a row, hidden states of 31744 tokens, 248; 2152.4 are lent
            # or of all tokens, 1023, where there is room
            "prefill, layer by layer": 2048 + 1 / 64 + told.plan.prefill_block.value / 128 - 2152.375,
        },
        rel=1e-5,
    )
    assert host == pytest.approx({"runtime": 600, "full cache, host": 64 * 1024}, rel=1e-5)
    usable = [24 * GIB - (800 << 20), int(0.9 * 128 * GIB)]
    assert [tier.usable_bytes for tier in told.tiers] == usable
    assert all(tier.used_bytes <= tier.usable_bytes for tier in told.tiers)
    # Without the host, reading 1024 rows at a time: 23776 - 12852.5 - 2152.4 - 97.5 - 512 - a row of 0.5
    left = (8161.1 - sizes.fixed_bytes / (1 << 20)) / (
        0.5 + (sizes.side_bytes + 32 * sizes.landmark_bytes + sizes.sample_bytes) / (1 << 20)
    )
    assert told.most_resident == planned(llama, rig_4090()).most_resident == left // 64 * 64
    assert told.runs.value and "host memory" in told.runs.because


def test_some_layers_stay_where_there_is_room_for_them(size: Write) -> None:
    told = planned(size("llama2-7b"), make_rig(HOST, gpu_gib=32.2, host_gib=128))
    # 32.2 GiB - 800 - 12852.5 - 2152.4 - 377.9 - 512 - buffers as above 674 - reading a block 143.7: 15460.3 MiB, less
    # what chunks are chosen by; a layer takes 2035 more than its newest rows, and 120 for landmarks
    here = int((15460.3 - told.plan.cache_sizes.beside_bytes(131072, 0) / (1 << 20)) / 2155)
    assert told.plan.placement.value == "split" and told.plan.resident_layers == here > 3
    assert told.cpu_attention_share == pytest.approx((32 - here) / 32)
    assert f"{here} of 32 layers" in told.plan.placement.because and told.runs.value
    rows = {row.name: row.size_bytes for tier in told.tiers for row in tier.rows}
    kept = here * (131072 + 1) * 16 * KIB  # an odd number of rows
    assert rows[f"full cache, {here} of 32 layers"] == kept
    assert rows[f"full cache, {32 - here} of 32 layers, host"] == 2 * (32 - here) * GIB
    config = EngineConfig(context=131072, retrieval=RetrievalConfig(budget=4096), graphs=False)
    unrecorded = plan_rig(size("llama2-7b"), None, config, make_rig(HOST, gpu_gib=32.2, host_gib=128))
    assert unrecorded.plan.resident_layers - told.plan.resident_layers in (0, 1)
    assert "CUDA graphs" not in {row.name for row in unrecorded.plan.rows}


def test_a_card_with_no_room_for_buffers_takes_a_shorter_context(size: Write) -> None:
    small = make_rig(HOST, gpu_gib=16.9, host_gib=128)
    with pytest.raises(NotEnoughMemory, match="its buffers need") as error:
        planned(size("llama2-7b"), small)
    assert error.value.largest_context is not None
    assert planned(size("llama2-7b"), small, error.value.largest_context).plan.context == Choice(
        error.value.largest_context, "asked for"
    )


def test_two_cards_share_layers_and_caches_by_heads(size: Write) -> None:
    llama = size("llama2-7b")
    told = planned(llama, rig_4090(2))
    first, second, _ = ({row.name: row.size_bytes for row in tier.rows} for tier in told.tiers)
    # half of the layers' weights, all of embeddings, output layer and norms: 6,476,005,376 + 524,820,480
    assert first == second and first["target weights"] == 7_000_825_856
    assert first["retrieval cache"] == 4297 * 256 * KIB + 496 * 512 * 8
    # 23776 - 6676.5 - 1076.2 - prefill 3968 * (4 * 8192 + 3 * 22016 + 544) bytes = 376.0, as with half of the
    # heads the MLP takes more - ring 49 * 4 + 31 = 15420.3 MiB, less what chunks are chosen by; each half layer has
    # 512 + 193 newest rows of 8 KiB and 512 + 127 of a long pass = 10.5, and takes 1024 - 10.5 more, 60 for landmarks
    assert first["prefill buffers"] == 3968 * (4 * 8192 + 3 * 22016 + 544)
    left = 15420.3 - told.plan.cache_sizes.beside_bytes(131072, 0) / (1 << 20)
    here = int((left - 32 * 10.5) / 1073.5)
    assert told.plan.resident_layers == here >= 12 and told.num_gpus == 2
    assert told.cpu_attention_share == pytest.approx((32 - here) / 32)
    assert "--gpus 2" in told.runs.because


def test_the_draft_lies_on_the_first_card(size: Write) -> None:
    shape = find_shape("llama-68m")
    assert shape is not None
    draft = size_of(shape.config, shape.name)
    told = plan_rig(size("llama2-7b"), draft, EngineConfig(), rig_4090(2))
    names = [{row.name for row in tier.rows} for tier in told.tiers]
    assert [("draft weights" in found, "streaming cache" in found) for found in names] == [
        (True, True),
        (False, False),
        (False, False),
    ]


def test_weights_and_context_are_two_refusals(size: Write) -> None:
    with pytest.raises(NotEnoughMemory, match="weights do not fit: at 16 bits") as weights:
        planned(size("llama2-13b"), rig_4090())
    assert weights.value.largest_context is None and "--bits 8" in weights.value.hint
    assert planned(size("llama2-13b"), rig_4090(), 40960, bits=8).plan.bits.value == 8
    with pytest.raises(NotEnoughMemory, match=r"weights fit, a context of 131,072 tokens does not") as context:
        planned(size("llama2-7b"), rig_4090(host_gib=64))
    largest = context.value.largest_context
    assert largest is not None and context.value.hint.startswith(f"Use --context {largest} or less, or --bits ")
    assert planned(size("llama2-7b"), rig_4090(host_gib=64), largest).plan.context.value == largest
    with pytest.raises(NotEnoughMemory):
        planned(size("llama2-7b"), rig_4090(host_gib=64), largest + 64)
    assert planned(size("llama2-7b"), rig_4090(host_gib=64), None).plan.context.value == largest


def test_what_would_help_is_the_smallest_change_that_does(size: Write) -> None:
    with pytest.raises(NotEnoughMemory, match="weights") as small:
        planned(size("llama2-7b"), make_rig(HOST, gpu_gib=9))
    assert "--bits 4" in small.value.hint and "quantised model" in small.value.hint
    with pytest.raises(NotEnoughMemory, match="weights") as tiny:
        planned(size("llama2-13b"), make_rig(HOST, gpu_gib=4))
    assert "smaller model" in tiny.value.hint
    with pytest.raises(NotEnoughMemory, match="weights") as four:
        planned(size("llama2-13b"), make_rig(HOST, gpu_gib=9), bits=4, budget=1024)
    assert "two such GPUs" in four.value.hint


@pytest.mark.parametrize(
    ("name", "count", "gib"), [("llama2-7b", 1, 96), ("llama-3.1-8b", 1, 48), ("qwen2.5-7b", 2, 24)]
)
def test_what_fits_stays_on_the_gpu(size: Write, name: str, count: int, gib: float) -> None:
    told = planned(size(name), make_rig(HOST, gpu_gib=gib, num_gpus=count))
    assert told.plan.placement.value == "resident" and told.cpu_attention_share == 0
    assert told.most_resident == told.plan.most_context == 131072
    assert all("ring" not in row.name for tier in told.tiers for row in tier.rows)
    assert told.runs.value and ("--gpus 2" in told.runs.because) is (count == 2)


def test_four_kv_heads_are_shared_by_two_or_four_but_not_three(size: Write) -> None:
    assert planned(size("qwen2.5-7b"), make_rig(HOST, gpu_gib=24, num_gpus=4)).num_gpus == 4
    with pytest.raises(InvalidSetting, match="cannot be shared by 3"):
        planned(size("qwen2.5-7b"), make_rig(HOST, gpu_gib=24, num_gpus=3))


def test_the_processor_computes_in_32_bits_and_from_one_memory(size: Write) -> None:
    told = planned(size("qwen2.5-7b"), make_rig(HOST, assume="cpu"), 32768)
    plan = told.plan
    assert (plan.device.value, plan.bits.value, plan.dtype.value, told.num_gpus) == ("cpu", 32, torch.float32, 0)
    (memory,) = told.tiers
    assert memory.name == "memory" and told.runs.value
    kept = {row.name: row.size_bytes for row in memory.rows}["full cache, landmarks, query log"]
    query, row = 28 * 28 * 128 * 4, 2 * 56 * KIB
    assert kept == 32768 * row * (1 + 1 / 16) + 32768 / 8 * 28 * 4 * 4 + (32768 / 64 + 130) * query + 1.5 * row
    with pytest.raises(NotEnoughMemory, match="weights"):
        planned(size("qwen2.5-7b"), make_rig(HOST, assume="cpu", host_gib=16))


@pytest.mark.parametrize("context", [None, 8192])
@pytest.mark.parametrize(
    "machine",
    [
        HOST,
        Machine("cpu", 2, 2 * GIB, 2 * GIB, ()),
        Machine("c", 2, GIB, GIB, (Gpu("g", 1121 << 20, 1121 << 20),)),
        Machine("c", 2, 8 * GIB, 8 * GIB, (Gpu("g", 1000 << 20, 1000 << 20),)),
    ],
)
def test_what_is_shown_of_one_device_is_the_plan_that_loads(machine: Machine, context: int | None) -> None:
    target, draft = pair("harbour")
    config = EngineConfig(context=context)
    loading = make_plan(share_of(target, 1).dims, share_of(draft, 1).dims, config, machine)
    told = plan_rig(target, draft, config, make_rig(machine))
    assert figures(told.plan) == figures(loading)
    assert told.tiers[0].rows == loading.rows and told.tiers[0].free_bytes == loading.available_bytes
    assert told.tiers[0].usable_bytes == loading.usable_bytes
    if machine.gpus:
        assert told.tiers[1].rows[1:] == loading.host_rows
    entry = find("harbour")
    files = make_plan(read_dims(entry.target), share_of(draft, 1).dims, config, machine)
    counted, stored = (plan.bytes_of(TARGET_WEIGHTS) for plan in (loading, files))
    assert counted == pytest.approx(stored, rel=1e-3) and counted < stored, "a file has a header, too"


@pytest.mark.parametrize("memories", [(24, 24), (24, 20)])
def test_what_is_shown_of_several_gpus_is_what_each_rank_plans(tmp_path: Path, memories: tuple[int, int]) -> None:
    shape = find_shape("llama2-7b-128k")
    assert shape is not None and shape.draft is not None
    shape.config.save_pretrained(tmp_path)
    target, draft = size_of(shape.config, "target"), size_of(shape.draft.config, "draft")
    machine = replace(HOST, gpus=tuple(Gpu(f"of {gib}", gib * GIB, gib * GIB) for gib in memories))
    config = EngineConfig(context=131072, num_gpus=2)
    dims, share = one_share(tmp_path, target.dims, config, machine)
    rank = make_plan(dims, share_of(draft, 1).dims, config, share)
    told = plan_rig(target, draft, config, make_rig(machine, num_gpus=2))
    assert figures(told.plan) == figures(rank) and 0 < rank.resident_layers < 32
    first, second, host = told.tiers
    assert first.rows == rank.rows
    assert {row.name for row in set(first.rows) - set(second.rows)} == {"draft weights", "streaming cache", GRAPHS}
    assert set(second.rows) < set(first.rows), "all else is on each"
    assert [row.size_bytes for row in host.rows[1:]] == [2 * row.size_bytes for row in rank.host_rows]
    assert host.rows[0].size_bytes == 2 * RUNTIME_BYTES, "each process has its own"


def pair(name: str) -> tuple[ModelSize, ModelSize]:
    entry = find(name)
    assert entry.draft is not None
    return size_in(entry.target), size_in(entry.draft)


def figures(plan: Plan) -> Plan:
    """All of a plan but the words, which are others for who loads it."""
    words = ("device", "bits", "placement", "context")
    return replace(plan, **{word: Choice(getattr(plan, word).value, "") for word in words})


def test_gpus_that_cannot_share_a_model_are_told_where_they_are(size: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig_plan, "ON_WINDOWS", True)
    here = replace(HOST, gpus=(Gpu("A", 80 * GIB, 79 * GIB),) * 2)
    runs = planned(size("qwen2.5-7b"), make_rig(here, num_gpus=2), 8192).runs
    assert not runs.value and "use WSL2" in runs.because
    assert planned(size("qwen2.5-7b"), make_rig(here), 8192).runs.value
    assert planned(size("qwen2.5-7b"), make_rig(here, assume="2x4090"), 8192).runs.value, "that machine may run Linux"


def test_a_context_beyond_the_model_and_odd_models_are_refused(size: Write) -> None:
    with pytest.raises(ContextTooSmall):
        planned(size("llama2-7b", max_position_embeddings=4096), rig_4090(), 8192)
    with pytest.raises(UnsupportedModel):
        size("llama2-7b", model_type="t5")


# -------------------- machines that are described


def test_descriptions_replace_the_parts_of_this_machine() -> None:
    here = Machine("cpu", 2, 16 * GIB, 9 * GIB, (Gpu("A", 8 * GIB, 7 * GIB),) * 2)
    assert make_rig(here) == Rig(machine=Machine("cpu", 2, 16 * GIB, 9 * GIB, here.gpus[:1]))
    assert len(make_rig(here, num_gpus=2).machine.gpus) == 2 and make_rig(here, num_gpus=2).assumed == ()
    rig = make_rig(here, assume="2x4090")
    assert [gpu.total_bytes for gpu in rig.machine.gpus] == [24 * GIB] * 2 and not rig.gpus_are_here
    assert rig.machine.free_ram_bytes == 16 * GIB, "what other programs hold here says nothing about that machine"
    assert "2 x RTX 4090" in rig.assumed[0] and "16.0 GiB" in rig.assumed[1]
    assert make_rig(here, assume="cpu").machine.gpus == ()
    own = make_rig(here, host_gib=64)
    assert own.machine.ram_bytes == 64 * GIB and own.gpus_are_here and own.assumed == ("64 GiB of host memory",)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"assume": "2x9999"}, "2x9999"),
        ({"assume": "0x4090"}, "0x4090"),
        ({"assume": ""}, "''"),
        ({"assume": "4090", "gpu_gib": 24.0}, "--assume"),
        ({"gpu_gib": 0.0}, "--gpu-memory 0"),
        ({"gpu_gib": float("nan")}, "--gpu-memory nan"),
        ({"host_gib": -1.0}, "--host-memory -1"),
        ({"gpu_gib": 24.0, "num_gpus": 0}, "--gpus 0"),
        ({"num_gpus": 2}, "no GPU"),
    ],
)
def test_descriptions_that_describe_nothing_are_refused(description: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        make_rig(HOST, **description)
    assert words in error.value.problem and error.value.hint


def test_known_gpus_and_shapes_are_usable() -> None:
    for name in gpu_kinds():
        assert make_rig(HOST, assume=f"1x{name}").machine.gpus[0].total_bytes >= 24 * GIB
    for name in (name for name, row in entries().items() if row.config):
        shape = find_shape(name)
        assert shape is not None and shape.description
        with pytest.raises(ModelNotHere, match="is not on this machine"):
            find(name)
    assert find_shape("nope") is None


# -------------------- speed


# Published for two RTX 4090 (arXiv 2404.11912), milliseconds a token with about 120K tokens of context.
@pytest.mark.parametrize(
    ("name", "layers", "plain_ms", "triforce_ms"),
    [("llama2-7b-128k", 12, 840, 108), ("llama2-13b-128k", 5, 1794, 226)],
)
def test_the_model_meets_the_published_speeds_on_two_4090(
    name: str, layers: int, plain_ms: float, triforce_ms: float
) -> None:
    """With as many layers on the cards as the published system has room for."""
    shape, config = find_shape(name), EngineConfig(context=131072, retrieval=RetrievalConfig(budget=4096))
    assert shape is not None and shape.draft is not None
    target, draft = size_of(shape.config, name), size_of(shape.draft.config, "draft")
    rig = rig_4090(2, host_gib=256)
    told = plan_rig(target, draft, config, rig)
    rates = bandwidths(told.plan, rig)
    assert rates.link is not None and "nominal" in rates.link.because and "4090" in rates.memory.because
    found = predict(target, draft, config, replace(told.plan, resident_layers=layers), rates, PUBLISHED)
    assert found.plain_ms_per_token == pytest.approx(plain_ms, rel=0.1)
    assert found.triforce_ms_per_token == pytest.approx(triforce_ms, rel=0.1)
    assert found.plain_tokens_per_second == pytest.approx(1e3 / found.plain_ms_per_token)


def test_the_link_is_what_bounds_an_offloaded_pass(size: Write) -> None:
    llama, rig = size("llama2-7b"), rig_4090()
    told = planned(llama, rig, placement="offloaded")
    found = predict(llama, None, EngineConfig(context=131072), told.plan, bandwidths(told.plan, rig), PUBLISHED)
    assert found.link_bytes_per_full_pass == 64 * GIB  # all layers
    # 64 GiB at 25 GB/s = 2749 ms, and 32 layers of 0.25 ms
    assert found.plain_ms_per_token == pytest.approx(2749 + 8, abs=1)
    assert found.acceptance1 is None and found.gamma1 == 0, "no draft, no level 1"


def test_what_the_host_attends_to_does_not_cross_and_bounds_a_pass_too(size: Write) -> None:
    llama, rig = size("llama2-7b"), rig_4090()
    config = EngineConfig(context=131072, cpu_attention_share=0.25, placement="offloaded")
    told = plan_rig(llama, None, config, rig)
    assert told.plan.cpu_attention == Choice(0.25, "asked for") and planned(llama, rig).plan.cpu_attention.value is None
    found = predict(llama, None, config, told.plan, bandwidths(told.plan, rig), PUBLISHED)
    assert (found.link_bytes_per_full_pass, found.host_bytes_per_full_pass) == (48 * GIB, 16 * GIB)
    # 48 GiB at 25 GB/s = 2062 ms, beside 16 GiB at 12 GB/s = 1432 ms
    assert found.plain_ms_per_token == pytest.approx(2062 + 8, abs=1) and "nominal" in (found.host_because or "")
    told = plan_rig(llama, None, replace(config, cpu_attention_share=0.5), rig)
    found = predict(llama, None, config, told.plan, bandwidths(told.plan, rig), PUBLISHED)
    assert found.plain_ms_per_token == pytest.approx(2863 + 8, abs=1), "the host is the slower one"
    two, pair = plan_rig(llama, None, config, rig_4090(2)).plan, rig_4090(2)
    assert two.cpu_attention == Choice(0.25, "asked for")
    host, alone = bandwidths(two, pair).host, bandwidths(told.plan, rig).host
    assert host and alone and host.value == alone.value / 2 and host.because.endswith("; 2 GPUs share it")


def test_more_acceptance_is_more_speed_and_its_source_is_told(size: Write) -> None:
    llama, rig = size("llama2-7b"), rig_4090()
    told = planned(llama, rig)
    slow, fast = (
        predict(llama, None, EngineConfig(), told.plan, bandwidths(told.plan, rig), Acceptance(0.3, level2, "seen"))
        for level2 in (0.5, 0.97)
    )
    assert fast.triforce_ms_per_token < slow.triforce_ms_per_token < slow.plain_ms_per_token
    assert fast.acceptance_because == "seen" and fast.gamma2 > slow.gamma2


def test_the_modelled_speedup_grows_with_the_context() -> None:
    entry = find("harbour")
    size, rig = size_in(entry.target), make_rig(HOST, assume="cpu")
    speedups = []
    for context in (4096, 32768, 131072):
        config = EngineConfig(context=context)
        told = plan_rig(size, size, config, rig)
        rates = Bandwidths(Choice(10e9, "chosen"), None)
        found = predict(size, size, config, told.plan, rates, Acceptance(0.6, 0.93, "as before"))
        speedups.append(found.plain_ms_per_token / found.triforce_ms_per_token)
    assert speedups == sorted(speedups) and speedups[-1] > 2


def test_drafting_weights_lie_on_the_device_and_make_guessing_cheaper(size: Write) -> None:
    llama = size("llama-3.1-8b")
    configs = [EngineConfig(context=65536, self_draft_bits=bits) for bits in (16, 4)]
    plans = [plan_rig(llama, None, config, make_rig(HOST, gpu_gib=48)) for config in configs]
    rows = {row.name: row.size_bytes for row in plans[1].tiers[0].rows}
    assert rows["self-draft weights, 4 bit"] == (llama.layer_parameters + 128256 * 4096) * 9 // 16
    assert plans[1].tiers[0].used_bytes == plans[0].tiers[0].used_bytes + rows["self-draft weights, 4 bit"]
    assert plans[1].self_draft_bits.value == 4 and plans[0].self_draft_bits.value == 16 and plans[1].runs.value
    rig, seen = make_rig(HOST, gpu_gib=48), Acceptance(0.3, 0.9, "seen")
    slow, fast = (
        predict(llama, None, config, told.plan, bandwidths(told.plan, rig), seen)
        for config, told in zip(configs, plans, strict=True)
    )
    assert (
        fast.triforce_ms_per_token < slow.triforce_ms_per_token and fast.plain_ms_per_token == slow.plain_ms_per_token
    )
    with pytest.raises(NotEnoughMemory, match="weights do not fit") as refused:
        plan_rig(llama, None, configs[1], make_rig(HOST, gpu_gib=20))
    assert refused.value.hint == "Leave out --self-draft-bits."
    two = plan_rig(llama, None, configs[1], rig_4090(2))
    assert not two.runs.value and "self-draft weights" in two.runs.because
