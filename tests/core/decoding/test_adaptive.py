import pytest

from core.decoding.adaptive import (
    MeasuredCost,
    PassCost,
    RecentAcceptance,
    TableCost,
    best_gamma,
    expected_tokens,
)
from core.decoding.stats import LevelCounter


def test_expected_tokens_is_the_geometric_sum() -> None:
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens(1.0, 7) == 8
    assert expected_tokens(0.0, 7) == 1


def test_free_guesses_are_taken_and_useless_ones_are_not() -> None:
    judge = PassCost(1.0, 0.0)
    assert best_gamma(0.9, 0.0, judge, 12) == 12
    assert best_gamma(0.0, 0.1, judge, 12) == 0
    assert best_gamma(0.3, 1.0, judge, 12) == 0  # a guess as dear as the judge loses


def test_better_acceptance_and_a_dearer_judge_make_rounds_longer() -> None:
    gammas = [best_gamma(a, 0.1, PassCost(1.0, 0.05), 24) for a in (0.3, 0.6, 0.9, 0.97)]
    assert gammas == sorted(gammas) and gammas[0] < gammas[-1]
    assert best_gamma(0.9, 0.1, PassCost(5.0, 0.05), 24) > best_gamma(0.9, 0.1, PassCost(0.3, 0.05), 24)


def test_acceptance_counts_only_what_was_tested() -> None:
    counter = LevelCounter()
    counter.add(4, 4)  # all accepted: four tests
    counter.add(4, 1)  # the second test failed, two guesses were never tested
    stats = counter.snapshot()
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


def test_costs_lie_between_what_was_measured_and_go_on_as_steeply() -> None:
    table = TableCost({1: 4.0, 3: 5.0, 9: 11.0})
    assert [table.of(rows - 1) for rows in (1, 2, 3, 6, 9, 12)] == [4, 4.5, 5, 8, 11, 14]
    assert TableCost({1: 4.0}).of(7) == 4.0


def test_what_passes_take_now_scales_what_they_took_before() -> None:
    table = TableCost({1: 4.0, 3: 5.0, 9: 11.0})
    assert MeasuredCost({}, table).of(2) == 5.0
    assert MeasuredCost({3: 10.0}, table, overhead=0.5).of(8) == 22.5, "twice as slow, all of them"
    assert MeasuredCost({3: 10.0, 9: 11.0}, table).of(2) == 10.0
    assert MeasuredCost({3: 5.0, 9: 40.0}, table).of(8) == 1.5 * table.of(8), "one disturbed pass is not believed"
    assert MeasuredCost({3: 10.0, 9: 11.0}, table).of(5) == pytest.approx(8 * 1.5), "half way between twice and once"


def test_a_step_between_one_row_and_several_makes_guessing_lose() -> None:
    """What a measurement without the step would not see: one row costs half of what three do."""
    assert best_gamma(0.6, 2.0, TableCost({3: 8.0}), 6) > 0
    assert best_gamma(0.6, 2.0, TableCost({1: 4.0, 3: 8.0}), 6) == 0
