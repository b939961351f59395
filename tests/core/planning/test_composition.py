"""Who guesses for a target: what is sure on machines that are not here, and what loading does with the choice."""

from dataclasses import replace
from typing import Any

import pytest

from core.config import EngineConfig, RetrievalConfig
from core.decoding.adaptive import PassCost
from core.decoding.registry import PLAIN, default_method
from core.engine import Engine
from core.engine_builder import PairFiles, composed_plan
from core.errors import NotEnoughMemory
from core.models.param_count import ModelSize
from core.planning.choices import Choice, Composition
from core.planning.composition import compose
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.forecast import PUBLISHED, pass_cost, planned_reads, predict
from core.planning.hardware import Machine
from core.planning.plan import Plan
from core.planning.sizes import DRAFT_WEIGHTS, DRAFTING_WEIGHTS, TARGET_WEIGHTS, WIDENED
from tests.core.planning.plans import sizes_of

GIB = 1 << 30
HOST = Machine("cpu", 16, 256 * GIB, 256 * GIB, ())
AS_IT_IS = EngineConfig()


def counted(target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig) -> Plan:
    config = replace(config, num_gpus=max(1, len(rig.machine.gpus)))
    return compose(target, draft.dims if draft else None, config, rig)


def composed(
    model: str, machine: str, context: int | None, config: EngineConfig = AS_IT_IS, *, draft: bool = True
) -> Plan:
    target, small = sizes_of(model)
    config = replace(config, context=context, retrieval=RetrievalConfig(budget=4096))
    return counted(target, small if draft else None, config, make_rig(HOST, assume=machine, host_gib=256))


def chosen(plan: Plan) -> tuple[Composition, str]:
    assert plan.composition is not None
    return plan.composition.value, plan.composition.because


@pytest.mark.parametrize(
    ("model", "machine", "context", "has_draft"),
    [
        ("llama-3.1-8b", "1xh100", 8192, True),  # all of it fits
        ("llama-3.1-8b", "1x4090", 49152, False),  # fits without the draft alone
        ("llama-3.1-8b", "1x4090", 131072, True),  # waits in host memory either way
        ("llama2-7b-128k", "1x4090", 131072, True),
        ("qwen3-4b-2507", "cpu", 8192, True),
    ],
)
def test_a_draft_is_loaded_unless_it_alone_moves_the_cache_away(
    model: str, machine: str, context: int, has_draft: bool
) -> None:
    plan = composed(model, machine, context)
    assert chosen(plan)[0] == Composition(default_method(has_draft=has_draft), has_draft)
    assert bool(plan.bytes_of(DRAFT_WEIGHTS)) is has_draft, "its memory is planned, or it is not loaded"


def test_a_draft_that_pushes_the_cache_off_the_card_is_left_out_unless_it_was_asked_for() -> None:
    plan = composed("llama-3.1-8b", "1x4090", 49152)
    assert "of 32 layers of the full cache would wait" in chosen(plan)[1] and plan.resident_layers == 32
    asked = composed("llama-3.1-8b", "1x4090", 49152, EngineConfig(draft_model="llama-3.2-1b"))
    assert chosen(asked)[0].has_draft and asked.resident_layers < 32, "--draft overrides it"
    assert chosen(composed("llama-3.1-8b", "1xh100", 8192, draft=False)) == (
        Composition("lookup"),
        "there is no draft with its tokens",
    )


def test_a_draft_whose_weights_do_not_fit_is_left_out_with_the_reason() -> None:
    target, small = sizes_of("llama-3.1-8b")
    config = EngineConfig(context=8192)
    for gib in range(17, 24):  # a card that holds the target alone
        rig = make_rig(HOST, gpu_gib=gib, host_gib=1)
        try:
            counted(target, None, config, rig)
        except NotEnoughMemory:
            continue
        plan = counted(target, small, config, rig)
        break
    assert not chosen(plan)[0].has_draft and chosen(plan)[1].startswith("with the draft: ")
    with pytest.raises(NotEnoughMemory):
        counted(target, small, replace(config, draft_model="llama-3.2-1b"), rig)


@pytest.mark.parametrize(
    ("model", "changed", "copied"),
    [
        ("llama-3.1-8b", {}, True),
        ("llama-3.1-8b", {"compiles": False}, False),  # torch's own products are slower on a processor
        ("llama-3.1-8b", {"ram_bytes": 36 * GIB, "free_ram_bytes": 36 * GIB}, False),  # it would take context away
        ("llama-68m", {}, False),  # too small
        ("qwen3-30b-a3b-2507", {}, False),  # its experts are never rounded
    ],
)
def test_a_processor_guesses_with_a_copy_in_four_bits_where_that_costs_nothing_else(
    model: str, changed: dict[str, Any], copied: bool
) -> None:
    machine = replace(HOST, **({"compiles": True} | changed))
    for asked in (None, 16):
        config = EngineConfig(self_draft_bits=asked)
        plan = counted(sizes_of(model)[0], None, config, make_rig(machine))
        wanted = 4 if copied and asked is None else 16
        assert chosen(plan)[0].self_draft_bits == wanted and bool(plan.bytes_of(DRAFTING_WEIGHTS)) is (wanted == 4)
        assert plan.settled(config).self_draft_bits == wanted


@pytest.mark.parametrize(("gib", "bits"), [(30, 16), (60, 4)])
def test_a_copy_moves_no_layer_beyond_the_limit(gib: float, bits: int) -> None:
    config = EngineConfig(context=131072, gpu_memory_gib=gib)
    plan = counted(sizes_of("llama-3.1-8b")[0], None, config, make_rig(replace(HOST, compiles=True)))
    assert (0 < plan.resident_layers < 32) is (bits == 16) and chosen(plan)[0].self_draft_bits == bits


def test_a_method_that_was_asked_for_gets_its_models() -> None:
    for methods, has_draft in ((("triforce",), True), (("lookup",), False), ((PLAIN, "triforce-lookup"), True)):
        for machine in ("1x4090", "1xh100"):
            plan = composed("llama-3.1-8b", machine, 32768, EngineConfig(methods=methods))
            assert chosen(plan)[0].has_draft is has_draft, methods


# -------------------- mixtures


def test_a_token_of_a_mixture_reads_the_experts_that_it_uses() -> None:
    size = sizes_of("qwen3-30b-a3b-2507")[0]
    assert size.experts is not None and size.experts.used == 8 / 128
    assert size.experts.parameters == 48 * 128 * 3 * 2048 * 768
    assert size.active_parameters == size.num_parameters - size.experts.parameters * 120 // 128
    assert 3.3e9 < size.active_parameters < 3.4e9, "as its name says"
    assert sizes_of("llama-3.1-8b")[0].experts is None
    plan = composed("qwen3-30b-a3b-2507", "1xh100", 8192)
    found = predict(plan, plan.nominal, PUBLISHED)
    # 3.4e9 parameters less embeddings, in 16 bits, and 0.8 GB of keys and values at 3350 GB/s, and 48 layers of 0.25 ms
    read = 2 * (size.active_parameters - 151_936 * 2048) + 0.8e9
    assert found.plain_ms_per_token == pytest.approx(1e3 * read / 3350e9 + 12, rel=0.01)


def test_verifying_many_guesses_reads_more_experts() -> None:
    """The story: a pass of nine rows over 128 experts of which a row uses 8 reads 44% of them, not 6%."""
    cost = PassCost(0.0, 0.0, experts=1.0, used=8 / 128)
    assert cost.of(0) == pytest.approx(8 / 128) and cost.of(8) == pytest.approx(1 - (120 / 128) ** 9)
    assert cost.of(8) == pytest.approx(0.44, abs=0.01) and PassCost(1.0, 0.0).of(8) == 1.0
    further = []
    for model in ("qwen3-8b-yarn", "qwen3-30b-a3b-2507"):
        plan = composed(model, "1xh100", 8192)
        full = pass_cost("cuda", planned_reads(plan, 8192).full, plan.nominal)
        further.append(full.of(8) / full.of(0))
    assert further[0] < 1.05 and further[1] > 1.3


# -------------------- loading


def test_what_is_chosen_is_loaded_and_told() -> None:
    engine = Engine.load(EngineConfig(device="cpu", context=4096))
    chosen = engine.info.plan.composition
    usual = default_method(has_draft=True)
    assert chosen == Choice(Composition(usual, has_draft=True), chosen.because if chosen else "")
    assert engine.info.has_draft and engine.info.usual_method == usual and "measured in each answer" in chosen.because
    files = replace(PairFiles.find("harbour", "auto"), draft=None)
    alone = composed_plan(files, EngineConfig(device="cpu"), HOST).composition
    assert alone is not None and alone.value == Composition(default_method(has_draft=False))


# -------------------- the card as it really is


def settled(machine: str, config: EngineConfig, model: str = "llama2-7b-128k", count: int = 1) -> Plan:
    target, small = sizes_of(model)
    return counted(target, small, config, make_rig(HOST, gpu=described_gpu(machine), num_gpus=count, host_gib=128))


GROWING = EngineConfig(context=122880, retrieval=RetrievalConfig(budget=4096, grows=True))


def test_a_budget_that_was_asked_for_stays_and_one_without_room_falls_back() -> None:
    grown = settled("RTX 4090,23.2,1008,25", GROWING)
    assert grown.budget is not None and grown.budget.value > 4096 and "forecast" in grown.budget.because
    kept = grown.settled(GROWING).retrieval
    assert kept == RetrievalConfig(budget=grown.budget.value), "the caches are as large as planned"
    asked = settled("RTX 4090,23.2,1008,25", replace(GROWING, retrieval=RetrievalConfig(budget=4096)))
    assert asked.budget is None and asked.settled(GROWING) == replace(GROWING, self_draft_bits=16)
    tight = settled("RTX 4090,19,1008,25", replace(GROWING, context=65536))
    assert tight.budget == Choice(4096, "as usual for the model"), "8,192 do not fit"
    small = settled("RTX 4090,16.9,1008,25", replace(GROWING, context=16384))
    assert small.budget is not None and small.budget.value == 2048 and "no room" in small.budget.because
    with pytest.raises(NotEnoughMemory, match="lies beside them need"):
        settled("RTX 4090,12,1008,25", GROWING)


def test_a_dense_model_of_four_bits_keeps_its_weights_on_the_card_and_its_context_in_host_memory() -> None:
    target, small = sizes_of("qwen3-14b-yarn")
    rig = make_rig(HOST, gpu=described_gpu("RTX 4090,22,1008,25"), host_gib=128)
    plan = counted(target, small, replace(GROWING, context=131072, bits=4), rig)
    assert plan.placement.value == "split" and plan.prefill_block.value
    assert chosen(plan)[0].has_draft and plan.bytes_of(TARGET_WEIGHTS) == target.weight_bytes(4)
    assert not plan.bytes_of(WIDENED) and str(plan.kv.value or plan.dtype.value) == "torch.bfloat16"
    eight = counted(target, small, replace(GROWING, context=8192, bits=8), rig)
    assert eight.bytes_of(WIDENED) == 4 * 17408 * 5120 * 2, "int8 is widened by every pass, before and after scaling"
    reads = [planned_reads(one, 4096).full for one in (plan, eight)]
    assert reads[1].weights > 4 * reads[0].weights, "and each pass writes and reads what is widened"
