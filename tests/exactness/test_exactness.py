"""Exactness under fire, in small samples; all of it is `launch.py test --long`. What measures is measured too."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Generator, Tensor

from core.caches.tokens import Context
from core.config import GenerationConfig, SamplingParams
from core.decoding.sampling import TokenSampler, to_probs
from core.decoding.speculative import AutoregressiveProposer, Rule, Speculative, alone
from core.decoding.verify import verify
from core.generation.decode_loop import Answer
from tests.core.decoding.test_output_law import verify_without_residual
from tests.core.toys import Letters, TableModel
from tests.exactness.cases import Continue, Race, Reopen, World, draw_case
from tests.exactness.controls import CONTROLS, Control
from tests.exactness.judging import ending_of, near_cut, shown_text
from tests.exactness.playing import play
from tests.exactness.run import detect, run_suite
from tests.exactness.uniformity import BINS, ChiSquare, Pool, Stretch, following, leaning, transformed

V = 6


# -------------------- cases


def test_a_number_gives_the_same_case_every_time_and_another_number_another_one() -> None:
    assert draw_case(417) == draw_case(417) != draw_case(418)
    assert draw_case(3, "bundled") == draw_case(3, "bundled")
    assert draw_case(3, "bundled").world == "bundled" != draw_case(3).world


def test_many_cases_hold_everything_that_is_promised() -> None:
    cases = [draw_case(number) for number in range(300)]
    actions = [action for case in cases for action in case.actions]
    assert {type(action).__name__ for action in actions} == {
        "Ask", "Edit", "Regenerate", "Continue", "Race", "Open", "Reopen", "Compare", "Look", "Forget",
    }  # fmt: skip
    assert {case.setup.placement for case in cases} == {"resident", "split", "offloaded"}
    wanted = [action.wanted for action in actions if isinstance(action, Continue)]
    assert {type(action).__name__ for action in draw_case(19).actions} == {"Ask", "Continue"}, "every tenth case"
    assert {one.interruption for one in wanted} == {None, "cancel", "close", "cancel reading", "close reading"}
    seeds = [one.config.seed for one in wanted]
    assert len(set(seeds)) == len(seeds), "equal seeds would give equal draws, which statistics would count twice"
    assert any(isinstance(action, Race) and len(action.lanes) > 2 for action in actions)
    assert any(isinstance(action, Reopen) and action.damaged is not None for action in actions)


@pytest.mark.parametrize(("world", "number"), [("tiny", 6), ("tiny", 20), ("windowed", 1), ("windowed", 5)])
def test_a_case_is_exact(world: World, number: int) -> None:
    outcome = play(draw_case(number, world), stop_on_error=True)
    assert outcome.mismatches == [] and sum(outcome.methods.values()) > 1


@pytest.mark.slow
def test_thirty_cases_are_exact() -> None:
    report = run_suite(tiny=30, bundled=0, windowed=0, first=5000, controls=())
    assert report.failures == []
    outcome = report.worlds["tiny"]
    assert outcome.tokens["greedy"] > 300 < outcome.tokens["sampled"] and len(outcome.acceptance) > 15
    assert min(outcome.acceptance) < 0.2 and max(outcome.acceptance) > 0.7, "easy and hard ones must be among them"


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS[:6], ids=lambda control: control.name)
def test_an_engine_with_one_thing_wrong_is_noticed(control: Control) -> None:
    assert detect(control).detected


@pytest.mark.slow
def test_a_case_on_the_bundled_pair_is_exact() -> None:
    outcome = play(draw_case(4, "bundled"), stop_on_error=True)
    assert outcome.mismatches == [] and outcome.tokens["greedy"] + outcome.tokens["sampled"] > 20


# -------------------- playing


def test_what_breaks_is_told_with_its_case_and_the_suite_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Answer) -> None:
        raise ZeroDivisionError("of no number")

    monkeypatch.setattr(Answer, "round", broken)
    outcome = play(draw_case(2))
    assert len(outcome.mismatches) == 1
    assert outcome.mismatches[0].startswith("case 2, action 0 (Ask): ZeroDivisionError: of no number (")
    with pytest.raises(ZeroDivisionError):
        play(draw_case(2), stop_on_error=True)


# -------------------- judging


def test_an_answer_ends_where_its_settings_say() -> None:
    text, settings = Letters(frozenset({9})), GenerationConfig(max_new_tokens=4, stop_strings=("DE",))
    assert ending_of(text, 10, 0, [1, 2], settings, 500) is None
    assert ending_of(text, 10, 0, [1, 2, 5, 6, 7], settings, 500) == (4, "max_new_tokens")
    assert ending_of(text, 10, 3, [1, 2, 5, 6, 7], settings, 500) is None
    assert ending_of(text, 10, 0, [3, 4, 9], settings, 500) == (2, "stop_string")
    assert ending_of(text, 10, 0, [3, 9, 4], settings, 500) == (2, "end_of_text")
    assert ending_of(text, 10, 0, [1, 2, 5], settings, 10 + 2 + 63) == (2, "context_full")
    assert shown_text(text, [1, 2, 3, 4], ("DE",)) == "BC" and shown_text(text, [1, 9], ()) == "B"


def test_where_rounding_decides_what_is_kept_a_token_is_left_out() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.9999, 1.0], [4.0, 3.9, 1.0, 0.0]])
    assert near_cut(logits, SamplingParams(temperature=1.0, top_k=2)).tolist() == [False, True, False]
    mass = float(torch.softmax(logits[2], -1)[0])
    assert near_cut(logits, SamplingParams(temperature=1.0, top_p=mass)).tolist() == [False, False, True]
    assert not near_cut(logits, SamplingParams(temperature=1.0)).any()


# -------------------- statistics


def tables(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.softmax(1.5 * torch.randn(V, V, generator=generator), -1) for _ in range(2))
    return p, q


def written_by(rule: Rule, p: Tensor, q: Tensor, num_tokens: int, seed: int) -> list[int]:
    """Tokens behind token 0 by speculation with two guesses a round."""
    top = Speculative(AutoregressiveProposer(TableModel("draft", q)), TableModel("full", p), 2, rule)
    sampler, tokens = TokenSampler(Generator().manual_seed(seed)), [0]
    while len(tokens) <= num_tokens:
        tokens += alone(top.round(Context(tokens), sampler)).tokens
    return tokens[: num_tokens + 1]


def pooled(rule: Rule, seeds: Sequence[int], num_tokens: int = 60) -> Pool:
    pool = Pool()
    for seed in seeds:
        p, q = tables(seed)
        tokens = torch.tensor(written_by(rule, p, q, num_tokens, seed))
        drawn, own, other = tokens[1:], p[tokens[:-1]].double(), q[tokens[:-1]].double()
        uniform = torch.rand(num_tokens, generator=Generator().manual_seed(seed), dtype=torch.float64)
        ids = -torch.arange(V).expand_as(own)
        u = {
            "token id": transformed(own, drawn, ids, uniform).tolist(),
            "q / p": transformed(own, drawn, other / own, uniform).tolist(),
        }
        pool.add(Stretch("triforce", u, {"leaning": leaning(own, own, other, drawn)}))
    return pool


@pytest.fixture(scope="module")
def exact() -> Iterator[Pool]:
    yield pooled(verify, range(40))


def test_exact_speculation_gives_uniform_numbers_and_the_wrong_rule_does_not(exact: Pool) -> None:
    assert exact.alarms() == [] and len(exact.tests()) >= 6
    names = {test.name for test in pooled(verify_without_residual, range(40)).alarms()}
    assert "all, leaning" in names and "all, by q / p" in names


def test_p_values_of_exact_draws_are_spread_evenly() -> None:
    generator = Generator().manual_seed(1)
    low = 0
    for _ in range(400):
        pool = Pool()
        values = torch.rand(400, generator=generator).tolist()
        pool.add(Stretch("draft", {"token id": values}, {}))
        low += next(test.p_value for test in pool.tests() if test.name == "all, by token id") < 0.1
    assert 20 <= low <= 62, "40 expected, standard deviation 6"


def test_chi_square_and_its_p_value_are_the_known_ones() -> None:
    assert ChiSquare("", 100, 36.191, 19).p_value == pytest.approx(0.01, rel=1e-3)
    assert ChiSquare("", 100, 10.828, 1).p_value == pytest.approx(0.001, rel=1e-3)
    pool = Pool()
    pool.add(Stretch("draft", {"token id": [(n % BINS + 0.5) / BINS for n in range(400)]}, {}))
    assert next(test.statistic for test in pool.tests() if test.name == "all, by token id") == 0


def test_a_token_that_follows_the_one_before_is_noticed() -> None:
    values = torch.rand(3000, generator=Generator().manual_seed(2)).tolist()
    for number in range(1, 3000, 2):  # every other one is close to the one before
        values[number] = (values[number - 1] + 0.3 * values[number]) % 1
    pool = Pool()
    pool.add(Stretch("draft", {"token id": values}, {}))
    assert [test.name for test in pool.alarms()] == ["after the token before, by token id"]


def test_replayed_random_numbers_give_neighbouring_u() -> None:
    sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for seed in range(100):
        (p, q), (other, _) = tables(seed), tables(seed + 1000)
        for replayed, total in sums.items():
            first = u_of(p, written_by(verify, p, q, 20, seed), seed)
            second = u_of(other, written_by(verify, other, q, 20, seed if replayed else seed + 500), seed + 1)
            _, score, variance = following(second, first)
            total[0] += score
            total[1] += variance
    assert sums[True][0] ** 2 / sums[True][1] > 25 > 9 > sums[False][0] ** 2 / sums[False][1]


def u_of(p: Tensor, tokens: list[int], seed: int) -> Tensor:
    """u by token id of all tokens but the first."""
    behind, drawn = p[torch.tensor(tokens[:-1])].double(), torch.tensor(tokens[1:])
    uniform = torch.rand(len(drawn), generator=Generator().manual_seed(seed), dtype=torch.float64)
    return transformed(behind, drawn, -torch.arange(p.shape[1]).expand_as(behind), uniform)


def test_probabilities_of_the_reference_are_those_that_tokens_are_drawn_with() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    p = to_probs(logits, SamplingParams(temperature=0.5)).double()
    own = transformed(p, torch.tensor([1]), p, torch.tensor([0.25], dtype=torch.float64))
    assert float(own) == pytest.approx(float(p[0, 0] + 0.25 * p[0, 1]))
