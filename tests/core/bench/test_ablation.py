"""The ablation suite: each variant is one change, and what it says is what was measured."""

from dataclasses import asdict

import pytest

from core.bench import ablation
from core.bench.ablation import SHIPPED, VARIANTS, Ablation
from core.config import DraftConfig, EngineConfig, RetrievalConfig


def test_every_variant_but_the_first_is_one_change() -> None:
    shipped, *others = VARIANTS
    assert shipped.part == SHIPPED and shipped.applied(EngineConfig()) == EngineConfig()
    assert len({(variant.part, variant.name) for variant in VARIANTS}) == len(VARIANTS)
    for variant in others:
        config = variant.applied(EngineConfig())
        assert config is not None
        changed = [name for name, value in asdict(config).items() if value != asdict(EngineConfig())[name]]
        changes = len(variant.retrieval) + len(variant.draft)
        changes += (variant.method != shipped.method) + (variant.speculation != shipped.speculation)
        assert changes == 1, f"{variant.part} {variant.name} changes {changes} parts"
        assert bool(changed) == bool(variant.retrieval or variant.draft), "a change that changes nothing"


def test_a_variant_that_contradicts_the_settings_is_left_out() -> None:
    config = EngineConfig(retrieval=RetrievalConfig(budget=136 + 120, chunk_size=16), draft=DraftConfig(window=80))
    assert ablation.Variant("budget", "152", retrieval={"budget": 152}).applied(config) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects what other tests left
def test_rows_come_variant_by_variant_with_plain_decoding_first(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [v for v in VARIANTS if v.part in (SHIPPED, "rounds") or (v.part, v.name) == ("budget", "256")]
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
    assert all(row.acceptance_level2 is not None and row.ms_per_token > 0 for row in others)
    assert said == ["Not measured: local window 2000. It does not go with the other settings."]
