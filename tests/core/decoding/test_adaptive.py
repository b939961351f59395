import pytest

from core.decoding.adaptive import MeasuredCost, PassCost, RecentAcceptance, best_gamma, cost_per_token, expected_tokens
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


def test_cost_per_token_without_guesses_is_the_judge() -> None:
    assert cost_per_token(0.7, 0.1, PassCost(2.0, 0.1), 0) == pytest.approx(2.0)


def test_acceptance_counts_only_what_was_tested() -> None:
    counter = LevelCounter()
    counter.add(4, 4)  # all accepted: four tests
    counter.add(4, 1)  # the second test failed, two guesses were never tested
    stats = counter.snapshot()
    assert (stats.tested, stats.accepted, stats.acceptance) == (6, 5, 5 / 6)
    assert stats.tested_at == (2, 2, 1, 1) and stats.accepted_at == (2, 1, 1, 1)
    assert stats.committed_per_round == {2: 1, 5: 1}


def test_recent_acceptance_starts_at_its_prior_and_follows_what_happens() -> None:
    counter, recent = LevelCounter(), RecentAcceptance(0.5)
    assert recent.update(counter.snapshot()) == 0.5
    for _ in range(60):
        counter.add(4, 4)
        high = recent.update(counter.snapshot())
    assert high > 0.95
    for _ in range(60):
        counter.add(4, 0)
        low = recent.update(counter.snapshot())
    assert low < 0.3, "old rounds must fade"
    counter.add(0, 0)  # a round without guesses teaches nothing
    assert recent.update(counter.snapshot()) == low


def test_measured_costs_are_interpolated_and_the_model_fills_the_gaps() -> None:
    model = PassCost(1.0, 0.1)
    cost = MeasuredCost({1: 4.0, 5: 8.0}, model, overhead=0.5)
    assert cost.of(0) == 4.5 and cost.of(4) == 8.5
    assert cost.of(2) == pytest.approx(6.5)
    assert cost.of(9) == pytest.approx(8.0 * model.of(9) / model.of(4) + 0.5), "beyond: the model's shape"
    assert MeasuredCost({}, model).of(3) == model.of(3)


def test_a_step_between_one_row_and_several_makes_guessing_lose() -> None:
    """What a model without the step would not see: three rows were measured, one row costs half of them."""
    model = PassCost(1.0, 0.05)
    assert best_gamma(0.6, 2.0, MeasuredCost({3: 8.0}, model), 6) > 0
    assert best_gamma(0.6, 2.0, MeasuredCost({1: 4.0, 3: 8.0}, model), 6) == 0
