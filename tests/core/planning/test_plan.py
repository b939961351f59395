"""What fits where: figures of many plans, some worked out by hand, what is chosen, who guesses, and what is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from core import engine_builder
from core.config import EngineConfig, RetrievalConfig
from core.decoding.registry import PLAIN, default_method
from core.engine import Engine
from core.engine_builder import planned_pair
from core.errors import CoreError, NotEnoughMemory, NotPossibleHere
from core.models.hub.catalog import find
from core.models.loader import ModelDims, read_dims
from core.models.param_count import ModelSize, size_in
from core.planning import fit
from core.planning.choices import Choice, Composition
from core.planning.composition import compose, tiers_of
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.fit import placed
from core.planning.hardware import Gpu, Machine
from core.planning.plan import Plan, make_plan
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    DRAFTING_WEIGHTS,
    STREAMING,
    TARGET_WEIGHTS,
    kv_bytes_per_token,
)
from tests.core.planning.plans import FILE, Case, few_cases, figures, sizes_of
from tests.core.toys import sized

GIB = 1 << 30
LAPTOP = Machine("cpu", 2, 16 * GIB, 12 * GIB, ())
HOST = Machine("cpu", 16, 128 * GIB, 120 * GIB, ())
ROOMY = Machine("cpu", 16, 256 * GIB, 256 * GIB, ())
KERNEL = replace(ROOMY, compiles=True)
GAMER = replace(HOST, gpus=(Gpu("RTX 4090", 24 * GIB, 23 * GIB),))
HUGE = replace(HOST, gpus=(Gpu("H200", 300 * GIB, 299 * GIB),))
SMALL = sized(ModelDims(4, 4, 4, 64, 256, 2048, 131072, 8_528_432, torch.float16))
LLAMA, LARGE, GROUPED, HARBOUR = "llama2-7b-128k", "llama2-13b-128k", "llama-3.1-8b", find("harbour").target
KEPT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def card(gib: float = 24, count: int = 1, host_gib: float = 128) -> Rig:
    return make_rig(HOST, gpu_gib=gib, num_gpus=count, host_gib=host_gib)


def planned(model: str | ModelSize, machine: Machine | Rig, budget: int = 4096, **settings: Any) -> Plan:
    """Without a draft."""
    size = sizes_of(model)[0] if isinstance(model, str) else model
    return make_plan(size, None, EngineConfig(retrieval=RetrievalConfig(budget=budget), **settings), machine)


@pytest.mark.parametrize("case", few_cases(), ids=lambda case: case.name)
def test_a_plan_has_the_figures_that_were_recorded(case: Case) -> None:
    found = json.loads(json.dumps(figures(case)))
    assert found == KEPT[case.name]
    assert all(fast <= plain for plain, fast in found.get("ms", [])), "where no guess pays none is made"


# -------------------- figures by hand


def test_llama2_7b_weighs_what_is_published() -> None:
    """A layer has 4 * 4096^2 + 3 * 4096 * 11008 linear weights; beside them embeddings, output layer and 65 norms."""
    found, in_layers = sizes_of(LLAMA)[0], 32 * 202_375_168
    others = 2 * 32000 * 4096 + 65 * 4096
    assert (found.layer_parameters, found.num_parameters) == (in_layers, in_layers + others)
    assert found.weight_bytes(16) == 13_476_831_232 and found.weight_bytes(8) == in_layers + 2 * others
    assert found.weight_bytes(4) == in_layers * 9 // 16 + 2 * others, "4 bits and a float32 scale for every 64"
    assert 131_072 * kv_bytes_per_token(found.dims, torch.float16) == 64 * GIB


def test_counted_weights_are_as_large_as_their_files() -> None:
    counted = size_in(HARBOUR)
    sizes = counted, replace(counted, dims=read_dims(HARBOUR))
    shown, stored = (planned(size, HOST).bytes_of(TARGET_WEIGHTS) for size in sizes)
    assert shown == pytest.approx(stored, rel=1e-3) and shown < stored, "a file has a header, too"


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_experts_are_computed_in_32_bits_on_a_processor(bits: int | None) -> None:
    size = sizes_of("qwen3-30b-a3b-2507")[0]
    assert size.experts is not None
    rest = size.num_parameters - size.experts.parameters
    weights = planned(size, KERNEL, bits=bits, context=1024).bytes_of(TARGET_WEIGHTS) - 4 * size.experts.parameters
    assert rest / 2 < weights <= 2 * rest


def test_fewer_bits_never_take_more_than_the_file_has() -> None:
    size = sizes_of(GROUPED)[0]
    stored = replace(size, dims=replace(size.dims, packed_bytes=size.num_parameters // 2))
    plans = [planned(stored, KERNEL, bits=bits, context=1024) for bits in (None, 8, 4)]
    assert {plan.bytes_of(TARGET_WEIGHTS) for plan in plans} == {size.num_parameters // 2}


@pytest.mark.parametrize("is_there", [True, False])
def test_weights_are_planned_wide_where_the_kernel_is_not_to_be_had(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_builder, "this_machine", lambda: KERNEL)
    monkeypatch.setattr(engine_builder, "kernel_here", lambda: object() if is_there else None)
    monkeypatch.setattr(engine_builder, "loaded_pair", lambda files, config, plan: (None, plan))
    plan = planned_pair(EngineConfig(context=1024, device="cpu"))[1]
    assert plan.packs is is_there


@pytest.mark.parametrize("model", [LLAMA, "qwen3-0.6b", "harbour"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_layers_that_fit_are_those_of_trying_each(model: str, device: str) -> None:
    cache = planned(model, HUGE, 1024, context=64, layerwise=False, device=device).sizes
    for context in (64, 200, 1000, 8192, 40_000, 131_072):
        low, high = sorted(cache.device_bytes(context, layers) for layers in (cache.layers, 0))
        step, blocks = (high - low) // 23 + 1, cache.host_bytes(context, 0)
        for room in range(max(0, low - 2 * step), high + 2 * step, step):
            for most, host in ((most, host) for most in (cache.layers - 1, 1, 0) for host in (blocks, blocks // 2)):
                tried = (n for n in range(most, -1, -1) if cache.device_bytes(context, n) <= room)
                here = next(tried, None)
                beside = sum(row.size_bytes for row in cache.host_rows(context, most)) - cache.host_bytes(context, most)
                fits = here is not None and cache.host_bytes(context, here) + beside <= host
                assert cache.layers_within(context, most, room, host) == (here if fits else None)


def test_a_full_device_holds_all_layers_that_fit_and_may_be_left_fewer() -> None:
    plan = planned(LLAMA, GAMER, context=65536)
    assert plan.placement.value == "split" and "cross the link" in plan.placement.because
    assert plan.usable_bytes - (1 << 30) < plan.total_bytes <= plan.usable_bytes, "a layer more is a GiB"
    fewer = placed(plan, 3, "the device ran out of memory")
    assert fewer.placement.value == "split" and "3 of 32 layers stay" in fewer.placement.because
    assert fewer.total_bytes < plan.total_bytes and fewer.host_bytes > plan.host_bytes
    assert fewer.offload is not None and fewer.offload.num_resident == 3, "as it is laid out again"
    assert placed(plan, 0, "so").placement.value == "offloaded"


def test_of_several_gpus_each_has_its_share_and_the_fullest_decides() -> None:
    target, draft = sizes_of(LLAMA)
    machine = replace(HOST, gpus=tuple(Gpu(f"of {gib}", gib * GIB, gib * GIB) for gib in (24, 20)))
    assert draft is not None
    plan = make_plan(target, draft.dims, EngineConfig(context=131072, num_gpus=2), machine)
    assert 0 < plan.resident_layers < 32 and plan.available_bytes == 20 * GIB
    plan = make_plan(target, draft.dims, EngineConfig(context=8192, num_gpus=2, device="cpu"), machine)
    (memory,) = tiers_of(plan)
    assert memory.used_bytes == 2 * plan.total_bytes - plan.bytes_of(DRAFT_WEIGHTS) - plan.bytes_of(STREAMING)


# -------------------- what is chosen


# -------------------- who guesses


def composed(model: str, rig: Rig | str, *, draft: bool = True, **settings: Any) -> Plan:
    """The plan for a machine, or for one that is named."""
    target, small = sizes_of(model)
    config = EngineConfig(**{"retrieval": RetrievalConfig(budget=4096), **settings})
    rig = make_rig(ROOMY, assume=rig, host_gib=256) if isinstance(rig, str) else rig
    return compose(target, small.dims if small and draft else None, config, rig)


def chosen(plan: Plan) -> Composition:
    assert plan.composition is not None
    return plan.composition.value


@pytest.mark.parametrize(
    ("machine", "settings", "has_draft", "because"),
    [
        ("1x4090", {"context": 49152}, False, "of 32 layers of the full cache would wait"),  # fits without it alone
        ("1x4090", {"context": 131072}, True, "the draft fits, too"),  # waits in host memory either way
        ("1x4090", {"context": 49152, "draft_model": "llama-3.2-1b"}, True, "the draft was asked for"),
        ("1x4090", {"context": 49152, "methods": ("triforce",)}, True, "the draft was asked for"),
        ("1xh100", {"context": 8192, "methods": (PLAIN, "triforce-lookup")}, True, "the draft was asked for"),
        ("1xh100", {"context": 8192, "methods": ("lookup",)}, False, "no method that was asked for needs the draft"),
    ],
)
def test_a_draft_is_loaded_unless_it_alone_moves_the_cache_away_or_nobody_needs_it(
    machine: str, settings: dict[str, Any], has_draft: bool, because: str
) -> None:
    plan = composed(GROUPED, machine, **settings)
    assert chosen(plan) == Composition(default_method(has_draft=has_draft), has_draft)
    assert because in plan.why_guesser
    assert bool(plan.bytes_of(DRAFT_WEIGHTS)) is has_draft, "its memory is planned, or it is not loaded"
    if not has_draft:
        assert plan.resident_layers == 32


def test_a_draft_whose_weights_do_not_fit_is_left_out_with_the_reason() -> None:
    rig = make_rig(ROOMY, gpu_gib=19, host_gib=1)  # a card that holds the target alone
    plan = composed(GROUPED, rig, context=8192)
    assert not chosen(plan).has_draft and plan.why_guesser.startswith("with the draft: ")
    with pytest.raises(NotEnoughMemory):
        composed(GROUPED, rig, context=8192, draft_model="llama-3.2-1b")


@pytest.mark.parametrize(
    ("model", "machine", "settings", "copied"),
    [
        (GROUPED, KERNEL, {}, True),
        (GROUPED, ROOMY, {}, False),  # torch's own products are slower on a processor
        (GROUPED, KERNEL, {"context": 131072, "gpu_memory_gib": 30}, False),  # it would move layers beyond the limit
        ("qwen3-30b-a3b-2507", KERNEL, {}, False),  # its experts are never rounded
    ],
)
def test_a_processor_guesses_with_a_copy_in_four_bits_where_that_costs_nothing_else(
    model: str, machine: Machine, settings: dict[str, Any], copied: bool
) -> None:
    for asked in (None, 16):
        plan = composed(model, make_rig(machine), draft=False, **settings, self_draft_bits=asked)
        wanted = 4 if copied and asked is None else 16
        assert chosen(plan).self_draft_bits == plan.settled(EngineConfig()).self_draft_bits == wanted
        assert bool(plan.bytes_of(DRAFTING_WEIGHTS)) is (wanted == 4)


def test_what_is_chosen_is_loaded_and_told() -> None:
    engine, usual = Engine.load(EngineConfig(device="cpu", context=4096)), default_method(has_draft=True)
    plan = engine.info.plan
    assert chosen(plan) == Composition(usual, has_draft=True) and "measured in each answer" in plan.why_guesser
    assert engine.info.has_draft and engine.info.usual_method == usual


GROWING = RetrievalConfig(budget=4096, grows=True)


def on_card(gib: float, context: int, model: str = LLAMA, **settings: Any) -> Plan:
    rig = make_rig(ROOMY, gpu=described_gpu(f"RTX 4090,{gib},1008,25"), host_gib=128)
    return composed(model, rig, context=context, **{"retrieval": GROWING, **settings})


def test_a_budget_that_was_asked_for_stays_and_one_without_room_falls_back() -> None:
    grown = on_card(23.2, 122880)
    assert grown.budget is not None and grown.budget.value > 4096 and "forecast" in grown.budget.because
    config = EngineConfig(context=122880, retrieval=GROWING)
    kept = grown.settled(config).retrieval
    assert kept == RetrievalConfig(budget=grown.budget.value), "the caches are as large as planned"
    asked = on_card(23.2, 122880, retrieval=RetrievalConfig(budget=4096))
    assert asked.budget is None and asked.settled(config) == replace(config, self_draft_bits=16)
    assert on_card(19, 65536).budget == Choice(4096, "as usual for the model"), "8,192 do not fit"
    small = on_card(16.7, 16384)
    assert small.budget is not None and small.budget.value == 2048 and "no room" in small.budget.because
    with pytest.raises(NotEnoughMemory, match="lies beside them need"):
        on_card(12, 122880)


def test_embeddings_wait_in_host_memory_where_layers_do_unless_the_output_layer_reads_them_whole() -> None:
    plan = on_card(22, 131072, "qwen3-14b-yarn", bits=4)
    assert plan.layers_away and plan.embeds_from_host
    assert not replace(plan, size=replace(plan.size, dims=replace(plan.size.dims, tied=True))).embeds_from_host


# -------------------- what is refused


@pytest.mark.parametrize(
    ("model", "machine", "needs"),
    [
        (LLAMA, card(host_gib=64), "layers fit on the GPU, the others need"),
        (LLAMA, card(16.9), "its buffers need"),
        (SMALL, replace(LAPTOP, free_ram_bytes=3 * GIB // 2), "it needs .* beside the weights"),
    ],
)
def test_a_context_that_does_not_fit_is_refused_with_the_largest_that_does(
    model: str | ModelSize, machine: Machine | Rig, needs: str
) -> None:
    with pytest.raises(NotEnoughMemory, match=f"a context of 131,072 tokens does not: .*{needs}") as refused:
        planned(model, machine, context=131072)
    largest = refused.value.largest_context
    assert largest is not None and refused.value.hint.startswith(f"Use --context {largest} or less")
    assert planned(model, machine, context=largest).context == Choice(largest, "asked for")
    assert planned(model, machine).context.value == largest
    with pytest.raises(NotEnoughMemory):
        planned(model, machine, context=largest + 64)


def test_a_context_whose_blocks_fit_worse_than_a_longer_one_s_gets_the_longer_one() -> None:
    machine = card(3.6, host_gib=2.9609)
    with pytest.raises(NotEnoughMemory) as refused:
        planned("qwen3-0.6b", machine, context=40_000)
    largest = refused.value.largest_context or 0
    for asked in range(largest - 600, largest, 40):
        assert asked <= planned("qwen3-0.6b", machine, context=asked).context.value <= largest


SMALLER, ONE = "Choose a smaller model, or close other programs that take memory.", "Leave out --gpus."
WITH_4 = "With --bits 4 they would fit; answers are then exact for the quantised model."
QWEN = "qwen2.5-7b-yarn"
COPIED = {"self_draft_bits": 4, "placement": "resident"}
UNDIVIDED = replace(sizes_of(QWEN)[0], divisible=False)


@pytest.mark.parametrize(
    ("code", "model", "machine", "settings", "problem", "hint"),
    [
        (1, LARGE, card(), {}, "lies beside them need .* at 16 bits", WITH_4.replace("4", "8")),
        (1, SMALL, replace(KERNEL, free_ram_bytes=GIB // 2), {}, "beside them need .* as they are stored", SMALLER),
        (1, LLAMA, card(9), {}, "weights", WITH_4),
        (1, LARGE, card(4), {}, "weights", SMALLER),
        (1, LARGE, card(9), {"bits": 4, "budget": 1024}, "weights", SMALLER),
        (1, GROUPED, card(19), {"self_draft_bits": 4}, "weights", "Leave out --self-draft-bits."),
        (1, GROUPED, card(), {**COPIED, "context": 90_000}, "does not", "Use --context 23616 or less."),
        (1, LLAMA, LAPTOP, {"gpu_memory_gib": 0.5}, "beside them need", "Raise --gpu-memory, or choose"),
        (2, "qwen3-8b", card(), {"context": 65536}, "this model reads at most", "Use --context"),
        (1, SMALL, LAPTOP, {"device": "cuda"}, "no CUDA device", "Use --device cpu."),
        (1, SMALL, LAPTOP, {"bits": 16}, "of 16 bits are not used on the cpu", "Leave out --bits"),
        (1, QWEN, GAMER, {"device": "cuda", "num_gpus": 2}, "for 2 GPUs, of which .* has 1", ONE),
        (1, QWEN, GAMER, {"num_gpus": 2}, "for 2 GPUs, of which this machine has 1", ONE),
        (1, QWEN, LAPTOP, {"num_gpus": 2}, "of which this machine has none", ONE),
        (2, QWEN, LAPTOP, {"device": "cpu", "num_gpus": 3}, "cannot be shared by 3 GPUs", "Use a number"),
        (2, QWEN, LAPTOP, {"num_gpus": 9}, "--gpus 9 is not usable", "Use 1 to 8."),
        (2, GROUPED, card(24, 2), {"num_gpus": 2, "bits": 8}, "weights are not shared", "Leave out --bits"),
        (1, UNDIVIDED, card(24, 2), {"num_gpus": 2}, "layers of this family cannot be shared", ONE),
    ],
)
def test_what_cannot_be_is_refused_with_the_smallest_change_that_helps(
    code: int,
    model: str | ModelSize,
    machine: Machine | Rig,
    settings: dict[str, Any],
    problem: str,
    hint: str,
) -> None:
    with pytest.raises(CoreError, match=problem) as refused:
        planned(model, machine, **settings)
    assert refused.value.wrong_usage is (code == 2), "what commands end with"
    assert refused.value.hint.startswith(hint)


def test_gpus_share_no_model_under_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(HOST, gpus=(Gpu("A", 80 * GIB, 79 * GIB),) * 2)
    monkeypatch.setattr(fit, "ON_WINDOWS", True)
    with pytest.raises(NotPossibleHere, match="GPUs cannot share a model under Windows") as refused:
        planned(QWEN, here, context=8192, num_gpus=2)
    assert refused.value.hint == "Start it in WSL2, or leave out --gpus."
    assert planned(QWEN, here, context=8192).ranks == 1
    assert planned(QWEN, card(24, 2), context=8192, num_gpus=2).ranks == 2, "that machine may run Linux"
    assert planned(QWEN, HOST, context=8192, num_gpus=2, device="cpu").ranks == 2, "processes on the processor can"


# -------------------- machines that are described


def test_descriptions_replace_the_parts_of_this_machine() -> None:
    here = Machine("cpu", 2, 16 * GIB, 9 * GIB, (Gpu("A", 8 * GIB, 7 * GIB),) * 2)
    assert make_rig(here) == Rig(machine=replace(here, gpus=here.gpus[:1]))
    assert make_rig(here, num_gpus=2) == Rig(machine=here)
    rig = make_rig(here, assume="2x4090")
    assert [gpu.total_bytes for gpu in rig.machine.gpus] == [24 * GIB] * 2 and rig.kind is not None
    assert rig.machine.free_ram_bytes == 16 * GIB, "what other programs hold here says nothing about that machine"
    assert "2 x RTX 4090" in rig.assumed[0] and "16.0 GiB" in rig.assumed[1]
    assert make_rig(here, assume="cpu").machine.gpus == ()
    own = make_rig(here, host_gib=64)
    assert own.machine.ram_bytes == 64 * GIB and own.kind is None and own.assumed == ("64 GiB of host memory",)
