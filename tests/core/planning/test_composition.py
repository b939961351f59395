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
from core.planning.choices import Choice, Composition
from core.planning.composition import compose
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.forecast import PUBLISHED, bandwidths, pass_cost, planned_reads, predict
from core.planning.hardware import Machine
from core.planning.plan import Plan
from core.planning.sizes import DRAFT_WEIGHTS, DRAFTING_WEIGHTS, EMBEDDINGS, TARGET_WEIGHTS, WIDENED, PlanRow
from tests.core.planning.plans import sizes_of

GIB = 1 << 30
HOST = Machine("cpu", 16, 256 * GIB, 256 * GIB, ())
KERNEL = replace(HOST, compiles=True)
LLAMA, MIXTURE = "llama-3.1-8b", "qwen3-30b-a3b-2507"


def composed(model: str, rig: Rig | str, *, draft: bool = True, **settings: Any) -> Plan:
    """The plan for a machine, or for one that is named."""
    target, small = sizes_of(model)
    config = EngineConfig(**{"retrieval": RetrievalConfig(budget=4096), **settings})
    rig = make_rig(HOST, assume=rig, host_gib=256) if isinstance(rig, str) else rig
    return compose(target, small.dims if small and draft else None, config, rig)


def chosen(plan: Plan) -> Composition:
    assert plan.composition is not None
    return plan.composition.value


@pytest.mark.parametrize(
    ("machine", "settings", "has_draft", "because"),
    [
        ("1xh100", {"context": 8192}, True, "the draft fits, too"),
        ("cpu", {"context": 8192}, True, "the draft fits, too"),
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
    plan = composed(LLAMA, machine, **settings)
    assert chosen(plan) == Composition(default_method(has_draft=has_draft), has_draft)
    assert because in plan.why_guesser
    assert bool(plan.bytes_of(DRAFT_WEIGHTS)) is has_draft, "its memory is planned, or it is not loaded"
    if not has_draft:
        assert plan.resident_layers == 32


def test_a_target_without_a_draft_guesses_by_itself() -> None:
    plan = composed(LLAMA, "1xh100", context=8192, draft=False)
    assert plan.composition == Choice(Composition("lookup"), "there is no draft with its tokens")


def test_a_draft_whose_weights_do_not_fit_is_left_out_with_the_reason() -> None:
    for gib in range(17, 24):  # a card that holds the target alone
        rig = make_rig(HOST, gpu_gib=gib, host_gib=1)
        try:
            composed(LLAMA, rig, draft=False, context=8192)
        except NotEnoughMemory:
            continue
        break
    plan = composed(LLAMA, rig, context=8192)
    assert not chosen(plan).has_draft and plan.why_guesser.startswith("with the draft: ")
    with pytest.raises(NotEnoughMemory):
        composed(LLAMA, rig, context=8192, draft_model="llama-3.2-1b")


@pytest.mark.parametrize(
    ("model", "machine", "settings", "copied"),
    [
        (LLAMA, KERNEL, {}, True),
        (LLAMA, HOST, {}, False),  # torch's own products are slower on a processor
        (LLAMA, replace(KERNEL, ram_bytes=36 * GIB, free_ram_bytes=36 * GIB), {}, False),  # it would take context away
        (LLAMA, KERNEL, {"context": 131072, "gpu_memory_gib": 60}, True),
        (LLAMA, KERNEL, {"context": 131072, "gpu_memory_gib": 30}, False),  # it would move layers beyond the limit
        ("llama-68m", KERNEL, {}, False),  # too small
        (MIXTURE, KERNEL, {}, False),  # its experts are never rounded
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


# -------------------- mixtures


def test_a_token_of_a_mixture_reads_the_experts_that_it_uses_and_more_guesses_read_more() -> None:
    size = sizes_of(MIXTURE)[0]
    assert size.experts is not None and size.experts.used == 8 / 128
    assert size.experts.parameters == 48 * 128 * 3 * 2048 * 768
    assert size.active_parameters == size.num_parameters - size.experts.parameters * 120 // 128
    assert 3.3e9 < size.active_parameters < 3.4e9, "as its name says"
    plan = composed(MIXTURE, "1xh100", context=8192)
    # 3.4e9 parameters less embeddings, in 16 bits, and 0.8 GB of keys and values at 3350 GB/s, and 48 layers of 0.25 ms
    read = 2 * (size.active_parameters - 151_936 * 2048) + 0.8e9
    found = predict(plan, plan.nominal, PUBLISHED)
    assert found.plain_ms_per_token == pytest.approx(1e3 * read / 3350e9 + 12, rel=0.01)
    assert PassCost(0.0, 0.0, experts=1.0, used=8 / 128).of(8) == pytest.approx(1 - (120 / 128) ** 9)
    dense = composed("qwen3-8b-yarn", "1xh100", context=8192)
    costs = [pass_cost("cuda", planned_reads(one, 8192).full, one.nominal) for one in (dense, plan)]
    further = [cost.of(8) / cost.of(0) for cost in costs]
    assert further[0] < 1.05 and further[1] > 1.3


# -------------------- loading


def test_what_is_chosen_is_loaded_and_told() -> None:
    engine, usual = Engine.load(EngineConfig(device="cpu", context=4096)), default_method(has_draft=True)
    plan = engine.info.plan
    assert chosen(plan) == Composition(usual, has_draft=True) and "measured in each answer" in plan.why_guesser
    assert engine.info.has_draft and engine.info.usual_method == usual
    files = replace(PairFiles.find("harbour", "auto"), draft=None)
    alone = composed_plan(files, EngineConfig(device="cpu"), HOST)
    assert chosen(alone) == Composition(default_method(has_draft=False))


# -------------------- the card as it really is


GROWING = RetrievalConfig(budget=4096, grows=True)


def on_card(gib: float, context: int, model: str = "llama2-7b-128k", **settings: Any) -> Plan:
    rig = make_rig(HOST, gpu=described_gpu(f"RTX 4090,{gib},1008,25"), host_gib=128)
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


def test_a_dense_model_of_four_bits_keeps_its_weights_on_the_card_and_its_context_in_host_memory() -> None:
    plan = on_card(22, 131072, "qwen3-14b-yarn", bits=4)
    assert plan.placement.value == "split" and plan.prefill_block.value and chosen(plan).has_draft
    size, embeddings = sizes_of("qwen3-14b-yarn")[0], 151_936 * 5120 * 2
    assert plan.bytes_of(TARGET_WEIGHTS) == size.weight_bytes(4) - embeddings, "the host has what a pass hardly reads"
    assert plan.embeds_from_host and plan.host_rows[0] == PlanRow(EMBEDDINGS, 1 << 31) and embeddings < 1 << 31
    short, tied = on_card(22, 8192, "qwen3-14b-yarn", bits=4), replace(size, dims=replace(size.dims, tied=True))
    assert not short.layers_away and short.bytes_of(TARGET_WEIGHTS) == size.weight_bytes(4), "not where all fits"
    assert not replace(plan, size=tied).embeds_from_host, "nor what the output layer reads whole"
    assert plan.bytes_of(WIDENED) == 1 << 26 and str(plan.kv.value or plan.dtype.value) == "torch.bfloat16"
    eight = on_card(22, 8192, "qwen3-14b-yarn", bits=8)
    assert eight.bytes_of(WIDENED) == 4 * 17408 * 5120 * 2, "int8 is widened by every pass, before and after scaling"
    reads = [planned_reads(one, 4096).full for one in (plan, eight)]
    assert reads[1].weights > 4 * reads[0].weights, "and each pass writes and reads what is widened"
    assert reads[0].in_bits == plan.size.layer_parameters and not reads[1].in_bits
    here = replace(reads[0], link=0, host=0)  # which would hide what each row takes
    one, other = (pass_cost("cuda", replace(here, in_bits=count), bandwidths(plan)) for count in (here.in_bits, 0))
    assert one.of(0) == other.of(0) and one.of(8) - other.of(8) == pytest.approx(8 * 13.2e9 / 1.5e13, rel=0.02)
