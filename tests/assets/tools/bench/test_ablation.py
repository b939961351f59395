"""The ablation suite: each variant is one change, and what it says is what was measured."""

import pytest
import torch

from assets.tools.bench import ablation
from assets.tools.bench.ablation import SHIPPED, VARIANTS, Ablation
from core.config import EngineConfig


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
