"""The ablation suite: each variant is one change, and what it says is what was measured."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from assets.tools.bench import ablation
from assets.tools.bench.ablation import PAPER, PLUS, SHIPPED, VARIANTS, Ablation, Variant
from assets.tools.bench.checkpoint import Checkpoint
from core.config import EngineConfig, RetrievalConfig
from core.engine import Engine
from core.engine_builder import LoadedPair
from core.errors import InvalidSetting, NotEnoughMemory
from core.planning.plan import Plan


def test_every_variant_but_the_first_is_one_change() -> None:
    shipped, paper, *others = VARIANTS
    assert shipped.part == SHIPPED and shipped.applied(EngineConfig()) == EngineConfig()
    assert len({(variant.part, variant.name) for variant in VARIANTS}) == len(VARIANTS)
    assert paper == PAPER and paper.applied(EngineConfig()) is not None and not paper.speculation.adaptive
    for variant in others:
        if variant.part == PLUS:
            assert additions(variant) == 1, f"{variant.name} adds more than one part"
            continue
        config = variant.applied(EngineConfig())
        assert config is not None
        changed = [name for name, value in asdict(config).items() if value != asdict(EngineConfig())[name]]
        changes = len(variant.retrieval) + len(variant.draft)
        changes += (variant.method != shipped.method) + (variant.speculation != shipped.speculation)
        changes += variant.temperature != 0
        assert changes == 1, f"{variant.part} {variant.name} changes {changes} parts"
        assert bool(changed) == bool(variant.retrieval or variant.draft), "a change that changes nothing"


def additions(variant: Variant) -> int:
    """Parts in which a variant is as shipped and not as published; the policy and its interval are one."""
    missing = set(PAPER.retrieval) - set(variant.retrieval)
    assert variant.retrieval == {name: PAPER.retrieval[name] for name in set(PAPER.retrieval) - missing}
    parts = len(missing - {"reselect_interval"})
    return parts + (variant.method != PAPER.method) + (variant.speculation != PAPER.speculation)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects what other tests left
def test_rows_come_variant_by_variant_with_plain_decoding_first(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [
        v for v in VARIANTS if v.part == SHIPPED or v.name == "fixed, 2 and 8" or (v.part, v.name) == ("budget", "256")
    ]
    broken = ablation.Variant("local window", "2000", retrieval={"local_window": 2000})
    monkeypatch.setattr(ablation, "VARIANTS", (*chosen, broken))
    said: list[str] = []
    bench = Ablation(EngineConfig(device="cpu"), 768 + 12)
    assert bench.config.context == 1088 and bench.info.model == "harbour"
    rows = list(bench.rows((768,), books=1, repeats=1, max_new_tokens=12, seed=900_000, progress=said.append))
    assert [(row.part, row.variant) for row in rows] == [
        ("autoregressive", ""),
        ("as shipped", ""),
        ("rounds", "fixed, 2 and 8"),
        ("budget", "256"),
    ]
    plain, *others = rows
    assert plain.speedup_vs_autoregressive == 1.0 and plain.acceptance_level2 is None
    assert all(row.identical_to_autoregressive and row.new_tokens == plain.new_tokens for row in others)
    assert all(row.ms_per_token > 0 for row in others)
    assert [row.acceptance_level2 for row in others if row.part == "rounds"] != [None], "rounds of a fixed shape guess"
    assert said == ["Not measured: local window 2000. It does not go with the other settings."]
    assert float(torch.tensor(1e-38) * 0.1) == 0.0, "numbers that slow a processor down are zero, as in every suite"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects what other tests left
def test_what_cannot_be_measured_is_told_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = [ablation.Variant("budget", str(n), "retrieval", {"budget": n}) for n in (256, 512, 1024)]
    monkeypatch.setattr(ablation, "VARIANTS", (VARIANTS[0], *budgets))
    made = Engine.of

    def full(pair: LoadedPair, config: EngineConfig, plan: Plan) -> Engine:
        if config.retrieval.budget == 256:
            raise NotEnoughMemory("The device is full.", hint="")
        return made(pair, config, plan)

    monkeypatch.setattr(Engine, "of", full)
    said: list[str] = []
    bench = Ablation(EngineConfig(device="cpu", draft_model="none"), 768 + 6)
    rows = list(bench.rows((768,), books=1, repeats=1, max_new_tokens=6, seed=900_000, progress=said.append))
    assert [(row.part, row.variant) for row in rows] == [("autoregressive", ""), ("budget", "512")]
    assert said == [
        "Not measured: as shipped. There is no draft model.",
        "Not measured: budget 256. The device is full.",
        "Not measured: budget 1024. The settings say so already.",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects what other tests left
def test_counts_without_times_go_on_from_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    oracle = next(variant for variant in VARIANTS if variant.is_oracle)
    hot = next(variant for variant in VARIANTS if variant.part == "temperature")
    adaptive = next(variant for variant in VARIANTS if variant.part == PLUS and variant.speculation.adaptive)
    monkeypatch.setattr(ablation, "VARIANTS", (VARIANTS[0], PAPER, adaptive, oracle, hot))
    shape: dict[str, Any] = {"books": 1, "repeats": 1, "max_new_tokens": 24, "seed": 900_000, "counted": True}
    small = EngineConfig(device="cpu", retrieval=RetrievalConfig(budget=256))
    bench, file, said = Ablation(small, 768 + 24), tmp_path / "a.jsonl", list[str]()
    assert list(bench.rows((768,), **shape, checkpoint=Checkpoint(file, {}), minutes=0)) == [] and bench.out_of_time
    rows = list(bench.rows((768,), **shape, checkpoint=Checkpoint(file, {}), progress=said.append))
    assert [row.variant for row in rows] == ["", "", "", "the attention to come", "0.3"]
    assert [row.part for row in rows][1:3] == [SHIPPED, "as published"]
    assert said == ["Not measured: published plus rounds that adapt. Counts are compared in fixed rounds."]
    assert all(row.ms_per_token is None and row.speedup_vs_autoregressive is None for row in rows)
    assert all(row.identical_to_autoregressive for row in rows[:4]) and rows[4].identical_to_autoregressive is None
    assert all(row.acceptance_level2 is not None and row.tokens_per_full_pass for row in rows[1:])
    monkeypatch.setattr(Engine, "generate", lambda *_: pytest.fail("it is measured already"))
    again = bench.rows((768,), **shape, checkpoint=Checkpoint(file, {}), minutes=0)
    assert list(again) == rows
    only = bench.rows((768,), **shape, checkpoint=Checkpoint(file, {}), parts=("temperature",))
    assert [row.part for row in only] == ["autoregressive", "temperature"]
    with pytest.raises(InvalidSetting, match="no part 'magic'"):
        ablation.chosen(("magic",))
