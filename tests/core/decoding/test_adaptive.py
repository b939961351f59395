"""What rounds are worth: arithmetic of acceptance and cost, what passes cost, and the methods' names."""

from pathlib import Path

import pytest

from core.config import GenerationConfig
from core.decoding import pace
from core.decoding.adaptive import MeasuredCost, PassCost, RecentAcceptance, TableCost, best_gamma, expected_tokens
from core.decoding.pace import kept_costs
from core.decoding.speculative import SampledModel
from core.decoding.stats import LevelStats
from tests.core.toys import random_prompt, tiny_engine


def test_rounds_are_as_long_as_pays() -> None:
    """Free guesses are taken, useless and dear ones are not; acceptance and a dearer verifier make rounds longer."""
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125) and expected_tokens(1.0, 7) == 8
    free = PassCost(1.0, 0.0)
    assert [best_gamma(a, cost, free, 12) for a, cost in ((0.9, 0.0), (0.0, 0.1), (0.3, 1.0))] == [12, 0, 0]
    gammas = [best_gamma(a, 0.1, PassCost(1.0, 0.05), 24) for a in (0.3, 0.6, 0.9, 0.97)]
    assert gammas == sorted(gammas) and gammas[0] < gammas[-1]
    assert best_gamma(0.9, 0.1, PassCost(5.0, 0.05), 24) > best_gamma(0.9, 0.1, PassCost(0.3, 0.05), 24)
    # a step that a measurement of several rows alone would not see: one row costs half of what three do
    assert best_gamma(0.6, 2.0, TableCost({3: 8.0}), 6) > 0 == best_gamma(0.6, 2.0, TableCost({1: 4.0, 3: 8.0}), 6)


def test_acceptance_counts_only_what_was_tested() -> None:
    stats = LevelStats().after(4, 4)  # all accepted: four tests
    stats = stats.after(4, 1)  # the second test failed, two guesses were never tested
    assert (stats.tested, stats.accepted, stats.acceptance) == (6, 5, 5 / 6)
    assert stats.tested_at == (2, 2, 1, 1) and stats.accepted_at == (2, 1, 1, 1)
    assert stats.committed_per_round == {2: 1, 5: 1}


def test_recent_acceptance_starts_at_its_prior_and_follows_what_happens() -> None:
    recent = RecentAcceptance(0.5)
    assert recent.value == 0.5
    for _ in range(60):
        recent.add(4, 4)
    assert recent.value > 0.95
    for _ in range(60):
        recent.add(1, 0)
    assert (low := recent.value) < 0.3, "old rounds must fade"
    recent.add(0, 0)  # a round without guesses teaches nothing
    assert recent.value == low
    recent.doubt()
    assert low < recent.value < 0.5


def test_costs_lie_between_what_was_measured_and_are_scaled_by_what_passes_take_now() -> None:
    table = TableCost({1: 4.0, 3: 5.0, 9: 11.0})
    assert [table.of(rows - 1) for rows in (1, 2, 3, 6, 9, 12)] == [4, 4.5, 5, 8, 11, 14]
    assert TableCost({1: 4.0}).of(7) == 4.0 and MeasuredCost({}, table).of(2) == 5.0
    assert MeasuredCost({3: 10.0}, table, overhead=0.5).of(8) == 22.5, "twice as slow, all of them"
    assert MeasuredCost({3: 10.0, 9: 11.0}, table).of(2) == 10.0
    assert MeasuredCost({3: 5.0, 9: 40.0}, table).of(8) == 1.5 * table.of(8), "one disturbed pass is not believed"
    assert MeasuredCost({3: 10.0, 9: 11.0}, table).of(5) == pytest.approx(8 * 1.5), "half way between twice and once"


# -------------------- what passes cost


def costs(folder: Path, took: float, length: int = 8, model: str = "full", about: str = "a model") -> float:
    """The cost of three rows, measured as twice that of one."""
    return kept_costs(folder, about, model, length, lambda: {1: took, 3: 2 * took})[1]


def test_costs_are_measured_once_for_each_length_and_survive_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert costs(tmp_path, 1.0, 1000) == costs(tmp_path, 2.0, 1010) == 1.0, "lengths that are nearly the same share"
    assert costs(tmp_path, 3.0, 2000) == 3.0
    assert costs(tmp_path, 4.0, 1000, model="draft") == 4.0 and costs(tmp_path, 5.0, 1000, about="other") == 5.0
    monkeypatch.setattr(pace, "_known", {})  # another process
    assert costs(tmp_path, 6.0, 1000) == 1.0
    assert kept_costs(tmp_path, "b", "full", 8, lambda: {9: 5.0, 1: 2.0, 3: 1.0}) == {1: 2.0, 3: 2.0, 9: 5.0}, "rising"


@pytest.mark.parametrize("damaged", ["", "[]", '{"full 12": 3}', '{"full 12": {"x": 1}}'])
def test_a_damaged_file_and_a_folder_that_cannot_be_written_do_not_matter(
    tmp_path: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert costs(tmp_path, 1.0) == 1.0
    (file,) = tmp_path.glob("*.json")
    file.write_text(damaged, encoding="utf-8")
    monkeypatch.setattr(pace, "_known", {})
    assert costs(tmp_path, 2.0) == 2.0
    (tmp_path / "file").touch()
    assert costs(tmp_path / "file", 3.0) == 3.0


@pytest.mark.parametrize("method", ["retrieval", "draft"])
def test_passes_are_timed_as_rounds_compute_them(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification counts what it attends to where a retrieval cache guesses, and nowhere else."""
    engine, counted, timed = tiny_engine(), set(), SampledModel.time

    def time(model: SampledModel, rows: int) -> float:
        if model.name == "full":
            counted.add((rows > 1, engine.full_cache.votes.wanted))
        return timed(model, rows)

    monkeypatch.setattr(SampledModel, "time", time)
    monkeypatch.setattr(pace, "kept_costs", lambda folder, about, model, length, measure: measure())
    list(engine.generate(random_prompt(200), GenerationConfig(method=method, max_new_tokens=1)))
    assert counted == {(False, False), (True, method == "retrieval")} and not engine.full_cache.votes.wanted
