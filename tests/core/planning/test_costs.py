"""One model of costs: rounds of sampled texts are shaped by what the plan's own forecast says that passes cost.

No weights are loaded: the engine's own arithmetic runs on plans of models and machines that are not here.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from core.caches.full_parts import Offload
from core.config import MOST_GUESSES, MOST_GUESSES_OVER_LINK, EngineConfig, RetrievalConfig, SamplingParams
from core.config import SpeculationConfig as Shape
from core.decoding import methods
from core.decoding.adaptive import best_gamma, cost_per_token
from core.decoding.methods import Decoder, Parts
from core.errors import InvalidSetting
from core.generation.levels import Levels
from core.models.cached_model import CachedModel
from core.models.hub.catalog import find
from core.models.hub.shapes import find_shape
from core.models.loader import ModelDims
from core.models.param_count import ModelSize, size_in, size_of
from core.planning.choices import Choice
from core.planning.cost_model import PassReads, fixed_seconds, pass_cost
from core.planning.hardware import Machine
from core.planning.machine_spec import HOST_BANDWIDTH, Bandwidths, kind_of, make_rig, nominal_bandwidths
from core.planning.memory_plan import Plan
from core.planning.planner import make_plan
from core.planning.rig_plan import RigPlan, plan_rig
from core.planning.sizes import kv_bytes_per_token
from core.planning.speed_model import Acceptance, Prediction, predict, reading_seconds
from core.planning.tp_planning import one_share, share_of
from tests.core.toys import random_prompt, tiny_engine

GIB = 1 << 30
HOST = Machine("cpu", 16, 256 * GIB, 256 * GIB, ())
BUDGET = 4096
LEVEL1, LEVEL2 = (0.3, 0.6), (0.3, 0.6, 0.8, 0.9, 0.923, 0.95, 0.97)
GOLDEN = Path(__file__).with_name("costs.json")


@dataclass(frozen=True)
class Case:
    """A model on a machine."""

    model: str
    machine: str  # as `doctor --assume` takes it
    context: int = 131072
    cpu_attention_share: float | None = None
    self_draft_bits: int = 16
    bits: int | None = None  # of the target's weights; None: as they are on disk

    @property
    def name(self) -> str:
        extra = "" if self.cpu_attention_share is None else f", host attends to {self.cpu_attention_share:.0%}"
        extra += "" if self.self_draft_bits == 16 else f", drafting in {self.self_draft_bits} bits"
        return f"{self.model} {self.context // 1024}K on {self.machine}{extra}"

    @property
    def sizes(self) -> tuple[ModelSize, ModelSize]:
        return sizes_of(self.model)

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(
            context=self.context,
            retrieval=RetrievalConfig(budget=BUDGET),
            cpu_attention_share=self.cpu_attention_share,
            self_draft_bits=self.self_draft_bits,
            bits=self.bits,
        )

    @property
    def told(self) -> RigPlan:
        """As `doctor` plans it."""
        target, draft = self.sizes
        return plan_rig(target, draft, self.config, make_rig(HOST, assume=self.machine, host_gib=256), self.bits)

    def plan(self, folder: Path) -> Plan:
        """As the engine would plan it before it loads; of two GPUs, as the first process does."""
        target, draft = self.sizes
        machine, config = make_rig(HOST, assume=self.machine, host_gib=256).machine, self.config
        dims = on_disk(target)
        if len(machine.gpus) > 1:
            shape = find_shape(self.model)
            assert shape is not None
            shape.config.save_pretrained(folder)
            config = replace(config, num_gpus=len(machine.gpus))
            dims, machine = one_share(folder, dims, config, machine)
        return make_plan(dims, on_disk(draft), config, machine, target)


@cache
def sizes_of(model: str) -> tuple[ModelSize, ModelSize]:
    """Of a target and of its draft."""
    shape = find_shape(model)
    if shape is None:
        entry = find(model)
        assert entry.draft is not None
        return size_in(entry.target), size_in(entry.draft)
    assert shape.draft is not None
    return size_of(shape.config, shape.name), size_of(shape.draft.config, shape.draft.name)


def on_disk(size: ModelSize) -> ModelDims:
    """As if its weights were there, in 16 bits."""
    return replace(size.dims, weight_bytes=size.weight_bytes(16), disk_dtype=torch.bfloat16)


CASES = [
    Case("llama2-7b-128k", "1x4090"),
    Case("llama2-7b-128k", "1x4090", cpu_attention_share=0.25),
    Case("llama2-7b-128k", "2x4090"),
    Case("llama2-7b-128k", "1xa100"),
    Case("llama2-7b-128k", "1xh200"),
    Case("llama-3.1-8b", "1x4090"),
    Case("llama-3.1-8b", "1xa100"),
    Case("llama-3.1-8b", "1xa100", self_draft_bits=4),
    Case("llama-3.1-8b", "1xh100"),
    Case("harbour", "cpu"),
    Case("harbour", "cpu", context=8192),
]


def forecast(case: Case, level1: float, level2: float) -> Prediction:
    """`doctor`'s prediction, from the plan's nominal bandwidths."""
    target, draft = case.sizes
    plan = case.told.plan
    rates = replace(plan.nominal, host=plan.nominal.host if plan.cpu_attention.value else None)
    return predict(target, draft, case.config, plan, rates, Acceptance(level1, level2, "chosen"))


class Weights:
    """A model of which only the number of bytes is known."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes = size_bytes

    def parameters(self) -> list[Any]:
        return [SimpleNamespace(nbytes=self._bytes)]


def decoder(case: Case, plan: Plan) -> Decoder:
    """TriForce over caches as full as the context, with the engine's own costs and without its tensors."""
    target, draft = case.sizes
    shares = max(1, case.told.num_gpus)
    kv = kv_bytes_per_token(target.dims, plan.dtype.value)
    weights = share_of(target, shares).weight_bytes(plan.bits.value)
    guessing = target.self_draft_pass_bytes // shares if case.self_draft_bits == 4 else weights

    def judge(name: str, kv_bytes: int, weight_bytes: int) -> CachedModel:
        cache = SimpleNamespace(nbytes=kv_bytes)
        return cast(
            CachedModel,
            SimpleNamespace(
                name=name, cache=cache, module=Weights(weight_bytes), device=torch.device("cpu"), graphs=None
            ),
        )

    def model(size: ModelSize, weight_bytes: int) -> Any:
        return SimpleNamespace(dims=size.dims, weight_bytes=weight_bytes)

    window = case.config.draft.window * kv_bytes_per_token(draft.dims, plan.dtype.value)
    draft_bytes = draft.weight_bytes(8 * plan.dtype.value.itemsize)
    levels = SimpleNamespace(
        _config=case.config if shares == 1 else replace(case.config, num_gpus=shares),
        _plan_now=lambda: plan,
        _models=SimpleNamespace(target=model(target, weights), draft=model(draft, draft_bytes)),
        _weights_read={},
        _experts=None,
    )
    levels.parts = Parts(
        full=judge("full", kv * case.context // shares, weights),
        retrieval=judge("retrieval", kv * BUDGET // shares, guessing),
        draft=judge("draft", window, draft_bytes),
        index=cast(Any, None),
        vocab=target.dims.vocab_size,
        evicting=cast(Any, None),
        config=case.config.retrieval,
        nominal_cost=lambda one: Levels.nominal_cost(cast(Levels, levels), one),
        most_guesses=lambda: plan.most_guesses.value,
    )
    return Decoder("triforce", levels.parts, SamplingParams(temperature=0.6), Shape())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rounds_of_sampled_texts_are_those_of_the_plan_s_own_forecast(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = case.plan(tmp_path)
    assert plan.resident_layers == case.told.plan.resident_layers and plan.nominal == case.told.plan.nominal
    for level1 in LEVEL1:
        for level2 in LEVEL2:
            monkeypatch.setattr(methods, "PRIOR_LEVEL1", level1)
            monkeypatch.setattr(methods, "PRIOR_LEVEL2", level2)
            chosen = decoder(case, plan)
            chosen._adapt()
            found = forecast(case, level1, level2)
            gammas = [level.gamma for level in chosen.levels]
            assert gammas == [found.gamma1, found.gamma2], (case.name, level1, level2)


@pytest.mark.parametrize("model", ["llama2-7b-128k", "llama-3.1-8b"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("machine", ["1x4090", "cpu"])
def test_what_doctor_shows_of_quantised_models_is_what_the_engine_plans(
    model: str, bits: int, machine: str, tmp_path: Path
) -> None:
    case = Case(model, machine, bits=bits)
    plan, told = case.plan(tmp_path), case.told
    assert plan.resident_layers == told.plan.resident_layers and plan.rows == told.tiers[0].rows


def golden() -> list[dict[str, Any]]:
    """What the model of costs says now; `python -m tests.core.planning.test_costs` writes it down."""
    rows = []
    for case in CASES:
        for level1 in LEVEL1:
            found = {level2: forecast(case, level1, level2) for level2 in LEVEL2}
            rows.append(
                {
                    "plan": case.name,
                    "resident_layers": case.told.plan.resident_layers,
                    "plain_ms": round(found[LEVEL2[0]].plain_ms_per_token, 1),
                    "level1": level1,
                    "gamma1, gamma2, ms by level2": {
                        str(level2): [one.gamma1, one.gamma2, round(one.triforce_ms_per_token, 1)]
                        for level2, one in found.items()
                    },
                }
            )
    return rows


def test_gammas_and_speeds_are_those_written_down() -> None:
    """A change of the model of costs shows here, plan by plan."""
    written = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for before, after in zip(written, golden(), strict=True):
        assert after == before


def test_a_pass_that_waits_for_the_link_is_worth_longer_rounds(tmp_path: Path) -> None:
    """The story: costs of sampled texts left the link out, a pass that brings 64 GiB counted as 0.1 s instead of 2.8.

    Rounds then had 8 guesses instead of more than 24, and a token took half as long again.
    """
    case = CASES[0]
    plan = case.plan(tmp_path)
    assert plan.resident_layers == 0
    parts = decoder(case, plan)._parts
    full = parts.nominal_cost(parts.full)
    assert full.of(0) == pytest.approx(64 * GIB / 25e9 + fixed_seconds("cuda", 32), rel=1e-6)
    retrieval, draft = parts.nominal_cost(parts.retrieval), parts.nominal_cost(cast(CachedModel, parts.draft))
    gamma1 = best_gamma(0.3, draft.of(0), retrieval, 6)
    guess = cost_per_token(0.3, draft.of(0), retrieval, gamma1)
    blind = pass_cost("cuda", PassReads.of(32, case.sizes[0].weight_bytes(16), 64 * GIB), plan.nominal)
    short = best_gamma(0.923, guess, blind, 24)
    ms = {most: 1e3 * cost_per_token(0.923, guess, full, best_gamma(0.923, guess, full, most)) for most in (24, 48)}
    assert short <= 9 and best_gamma(0.923, guess, full, 24) == 24 and best_gamma(0.923, guess, full, 48) > 24
    assert 1e3 * cost_per_token(0.923, guess, full, short) > 1.45 * ms[24] and ms[48] < ms[24]


# -------------------- where the figures come from


def test_costs_know_nothing_that_was_measured(tmp_path: Path) -> None:
    """The engine's link and the host's share are readings: two starts on one machine may take different ones."""
    case = CASES[0]
    plan = case.plan(tmp_path)
    assert plan.cpu_attention.value is None, "measured when the model is loaded"
    measured = replace(plan, cpu_attention=Choice(0.4, "measured"))
    one, other = (decoder(case, p)._parts for p in (plan, measured))
    assert one.nominal_cost(one.full) == other.nominal_cost(other.full)
    asked = CASES[1]
    given = decoder(asked, asked.plan(tmp_path))._parts
    cost = given.nominal_cost(given.full)
    assert cost.of(0) == pytest.approx(48 * GIB / 25e9 + fixed_seconds("cuda", 32), rel=1e-6)
    busy = replace(asked, cpu_attention_share=0.5)
    slow = decoder(busy, busy.plan(tmp_path))._parts
    expected = 32 * GIB / HOST_BANDWIDTH + fixed_seconds("cuda", 32)
    assert slow.nominal_cost(slow.full).of(0) == pytest.approx(expected, rel=1e-6), "the host is the slower one"


def test_a_layer_that_moves_counts_from_the_next_round_on(tmp_path: Path) -> None:
    case = Case("llama2-7b-128k", "1xa100")
    plan = case.plan(tmp_path)
    assert 1 < plan.resident_layers < 32
    costs = []
    for resident in (plan.resident_layers, plan.resident_layers - 1):
        parts = decoder(case, replace(plan, resident_layers=resident))._parts
        costs.append(parts.nominal_cost(parts.full).of(0))
    assert costs[1] - costs[0] == pytest.approx(2 * GIB / 25e9, rel=1e-6), "one layer of 128K tokens"


def test_an_engine_on_a_processor_has_no_link_and_costs_what_it_reads() -> None:
    engine, apart = tiny_engine(context=1024), tiny_engine(context=1024, offload=Offload(num_resident=0, block_rows=64))
    for one in (engine, apart):
        for _ in one.read(random_prompt(700)):
            pass
    full, other = engine._levels.parts.full, apart._levels.parts.full
    assert apart.plan.resident_layers == 0
    assert engine._levels.nominal_cost(full) == apart._levels.nominal_cost(other)
    bytes_read = full.cache.nbytes + engine.info.target_weight_bytes
    assert engine._levels.nominal_cost(full).of(0) == pytest.approx(
        fixed_seconds("cpu", 2) + bytes_read / HOST_BANDWIDTH
    )
    moved = replace(apart.plan, device=Choice("cuda", "test"), nominal=nominal_bandwidths("cuda", "NVIDIA L40"))
    apart._placement.plan = moved
    assert apart._levels.nominal_cost(other).of(0) == pytest.approx(
        fixed_seconds("cuda", 2)
        + max(other.cache.nbytes / 25e9, apart.info.target_weight_bytes / moved.nominal.memory.value)
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA L40S", "L40"),
        ("NVIDIA RTX A1000", None),
        ("Tesla T4", None),
    ],
)
def test_a_gpu_is_known_by_the_driver_s_name(name: str, kind: str | None) -> None:
    found = kind_of(name)
    assert (found.name if found else None) == kind
    rates = nominal_bandwidths("cuda", name)
    assert (f"as {name} is not known" in rates.memory.because) == (kind is None)


def test_further_rows_cost_the_device_and_not_the_link() -> None:
    rates = Bandwidths(Choice(1e12, "chosen"), Choice(25e9, "chosen"))
    resident, away = PassReads.of(32, 10**10, 10**10), PassReads.of(32, 10**10, 10**10, 0)
    assert (away.here, away.link, away.host) == (10**10, 10**10, 0)
    near, far = pass_cost("cuda", resident, rates), pass_cost("cuda", away, rates)
    assert near.of(40) > 1.1 * near.of(0) and far.of(40) == far.of(0) == fixed_seconds("cuda", 32) + 0.4
    half = pass_cost("cuda", PassReads.of(32, 10**10, 10**8, 16), rates)  # little crosses: the device takes longer
    assert half.of(0) == pytest.approx(fixed_seconds("cuda", 32) + 0.01 + 5e7 / 1e12) and half.of(9) > half.of(0)
    shared = PassReads.of(32, 10**10, 10**10, 16, 0.5)
    assert (shared.here, shared.link, shared.host) == (15 * 10**9, 25 * 10**8, 25 * 10**8)


# -------------------- the longest round


def test_rounds_are_longer_only_where_passes_come_over_the_link(tmp_path: Path) -> None:
    most = {case.name: case.plan(tmp_path).most_guesses for case in CASES}
    for case in CASES:
        over_link = case.told.plan.resident_layers < case.told.plan.num_layers
        choice = most[case.name]
        assert choice.value == (MOST_GUESSES_OVER_LINK if over_link else MOST_GUESSES) and choice.because
    apart = tiny_engine(offload=Offload(num_resident=0, block_rows=64))
    assert apart.plan.most_guesses.value == MOST_GUESSES, "a processor has no link, and equal bits up to 32 rows"


def test_what_the_settings_say_of_the_longest_round_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "PRIOR_LEVEL2", 0.97)
    plan = CASES[0].plan(tmp_path)
    chosen = []
    for most in (None, 10, 48):
        one = decoder(CASES[0], plan)
        one = Decoder(one.name, one._parts, SamplingParams(temperature=1.0), Shape(max_gamma2=most))
        one._adapt()
        chosen.append(one.levels[-1].gamma)
    assert chosen == [48, 10, 48]
    for most, gamma2 in ((None, 25), (48, 49), (8, 9)):
        with pytest.raises(InvalidSetting, match="not usable"):
            Shape(gamma2=gamma2, max_gamma2=most)
    assert Shape(gamma2=40, max_gamma2=48).gamma2 == 40
    with pytest.raises(InvalidSetting):
        Shape(max_gamma2=49)


if __name__ == "__main__":
    rows = golden()
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


def test_reading_takes_two_operations_a_weight_and_the_attention_to_what_came_before() -> None:
    dims = size_of(find_shape("qwen3-8b").config, "m").dims  # type: ignore[union-attr]
    short, long = (reading_seconds(tokens, dims, 8_190_735_360, 1e12) for tokens in (1_000, 2_000))
    weights = 2 * 8_190_735_360 * 1_000 / 1e12
    scores_and_sums = 4 * dims.num_layers * dims.num_heads * dims.head_dim * 1_000 * 1_000 / 2 / 1e12
    assert short == pytest.approx(weights + scores_and_sums)
    assert long == pytest.approx(2 * weights + 4 * scores_and_sums)
