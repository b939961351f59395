"""Exactness under fire, in small samples; all of it is `launch.py test --long`. What measures is measured too."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from core.caches.tokens import Context
from core.config import GenerationConfig, SamplingParams
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import Rule, alone
from core.decoding.verify import verify
from core.generation.decode_loop import Answer
from tests.core.decoding.test_output_law import levels, verify_without_residual
from tests.core.toys import Letters
from tests.exactness.cases import KIND_WEIGHTS, World, drawing_of
from tests.exactness.controls import CONTROLS, Control
from tests.exactness.judging import ending_of, near_cut, shown_text
from tests.exactness.playing import play
from tests.exactness.run import detect, main
from tests.exactness.uniformity import BINS, ChiSquare, Pool, leaning, transformed


def test_a_number_gives_the_same_case_every_time_and_many_hold_everything_that_is_promised() -> None:
    for world in ("tiny", "bundled", "windowed"):
        cases = [drawing_of(number, world) for number in (417, 417, 418)]
        one, same, other = [(case.setup(), case.first_book()) for case in cases]
        assert one == same != other
    assert drawing_of(19).flavour == "continued", "every tenth case"
    assert {kind for number in range(100) for kind in drawing_of(number).kinds()} == set(KIND_WEIGHTS)
    assert {drawing_of(number).setup().placement for number in range(100)} == {"resident", "split", "offloaded"}
    wanted = [drawing_of(number).wanted() for number in range(300)]
    assert {one.interruption for one in wanted} == {None, "cancel", "close", "cancel reading", "close reading"}
    seeds = [one.config.seed for one in wanted]
    assert len(set(seeds)) == len(seeds), "equal seeds would give equal draws, which statistics would count twice"


@pytest.mark.parametrize(
    ("world", "number"),
    [
        ("tiny", 6),
        ("tiny", 20),
        ("windowed", 1),
        ("windowed", 5),
        pytest.param("bundled", 4, marks=pytest.mark.slow),
    ],
)
def test_a_case_is_exact(world: World, number: int) -> None:
    outcome = play(drawing_of(number, world), stop_on_error=True)
    assert outcome.mismatches == [] and outcome.counts["tokens: greedy"] + outcome.counts["tokens: sampled"] > 20


@pytest.mark.slow
def test_thirty_cases_are_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "told.json"
    sizes = ["--tiny", "30", "--bundled", "0", "--windowed", "0"]
    assert main([*sizes, "--first", "5000", "--no-controls", "--json", str(told)]) == 0
    assert "Everything is as it must be." in capsys.readouterr().out
    figures = json.loads(told.read_text())["worlds"]["tiny"]
    assert figures["tokens: greedy"] > 300 < figures["tokens: sampled"]
    acceptance = figures["level 2 acceptance"]
    assert acceptance["0"] < 0.2 and acceptance["1"] > 0.7, "easy and hard ones must be among them"


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS[:6], ids=lambda control: control.name)
def test_an_engine_with_one_thing_wrong_is_noticed(control: Control) -> None:
    assert detect(control)["detected"]


def test_what_breaks_is_told_with_its_case_and_the_suite_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Answer) -> None:
        raise ZeroDivisionError("of no number")

    monkeypatch.setattr(Answer, "round", broken)
    (mismatch,) = play(drawing_of(2)).mismatches
    assert mismatch.startswith("case 2, action 0 (ask): ZeroDivisionError: of no number (")
    with pytest.raises(ZeroDivisionError):
        play(drawing_of(2), stop_on_error=True)


# -------------------- judging


@pytest.mark.parametrize(
    ("before", "tokens", "context", "due"),
    [
        (0, [1, 2], 500, None),
        (0, [1, 2, 5, 6, 7], 500, (4, "max_new_tokens")),
        (3, [1, 2, 5, 6, 7], 500, None),
        (0, [3, 4, 9], 500, (2, "stop_string")),
        (1, [3, 4, 5], 500, None),
        (0, [3, 9, 4], 500, (2, "end_of_text")),
        (0, [1, 2, 5], 10 + 2 + 63, (2, "context_full")),
    ],
)
def test_an_answer_ends_where_its_settings_say(before: int, tokens: list[int], context: int, due: object) -> None:
    text, settings = Letters(frozenset({9})), GenerationConfig(max_new_tokens=4, stop_strings=("DE",))
    assert ending_of(text, 10, before, tokens, settings, context) == due
    assert shown_text(text, [1, 2, 3, 4], ("DE",)) == "BC" and shown_text(text, [1, 9]) == "B"
    assert shown_text(text, [3, 4, 1, 3, 4], ("DE",), 2) == "DEB"


def test_where_rounding_decides_what_is_kept_a_token_is_left_out() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.9999, 1.0], [4.0, 3.9, 1.0, 0.0]])
    mass = float(torch.softmax(logits[2], -1)[0])
    for options, near in (({"top_k": 2}, [False, True, False]), ({"top_p": mass}, [False, False, True]), ({}, [0] * 3)):
        assert near_cut(logits, SamplingParams(temperature=1.0, **options)).tolist() == near


# -------------------- statistics


def tables(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.softmax(1.5 * torch.randn(6, 6, generator=generator), -1) for _ in range(2)]


def written_by(rule: Rule, q: Tensor, p: Tensor, num_tokens: int, seed: int) -> Tensor:
    """Tokens behind token 0 by speculation with two guesses a round."""
    top, sampler, tokens = levels([q, p], [2], rule), TokenSampler(Generator().manual_seed(seed)), [0]
    while len(tokens) <= num_tokens:
        tokens += alone(top.round(Context(tokens), sampler)).tokens
    return torch.tensor(tokens[: num_tokens + 1])


def u_of(tokens: Tensor, p: Tensor, seed: int, keys: Tensor | None = None) -> Tensor:
    """u of all tokens but the first, by token id or by keys [V, V] of the token before."""
    behind = p[tokens[:-1]].double()
    uniform = torch.rand(len(behind), generator=Generator().manual_seed(seed), dtype=torch.float64)
    order = -torch.arange(len(p)).expand_as(behind) if keys is None else keys[tokens[:-1]]
    return transformed(behind, tokens[1:], order, uniform)


def pooled(rule: Rule, seeds: Sequence[int]) -> Pool:
    pool = Pool()
    for seed in seeds:
        p, q = tables(seed)
        tokens = written_by(rule, q, p, 60, seed)
        own, other = p[tokens[:-1]].double(), q[tokens[:-1]].double()
        u = {"token id": u_of(tokens, p, seed), "q / p": u_of(tokens, p, seed, q / p)}
        pool.add("triforce", u, {"leaning": leaning(own, own, other, tokens[1:])})
    return pool


def test_exact_speculation_gives_uniform_numbers_and_the_wrong_rule_does_not() -> None:
    exact = pooled(verify, range(40))
    assert exact.alarms() == [] and len(exact.tests()) >= 6
    names = {test.name for test in pooled(verify_without_residual, range(40)).alarms()}
    assert {"all, leaning", "all, by q / p"} <= names


def chi_square_of(values: Tensor) -> ChiSquare:
    pool = Pool()
    pool.add("draft", {"token id": values}, {})
    return next(test for test in pool.tests() if test.name == "all, by token id")


def test_chi_square_and_its_p_values_are_the_known_ones_and_those_of_exact_draws_are_spread_evenly() -> None:
    assert ChiSquare("", 100, 36.191, 19).p_value == pytest.approx(0.01, rel=1e-3)
    assert ChiSquare("", 100, 10.828, 1).p_value == pytest.approx(0.001, rel=1e-3)
    assert chi_square_of((torch.arange(400) % BINS + 0.5) / BINS).statistic == 0
    generator = Generator().manual_seed(1)
    low = sum(chi_square_of(torch.rand(400, generator=generator)).p_value < 0.1 for _ in range(400))
    assert 20 <= low <= 62, "40 expected, standard deviation 6"


def test_a_token_that_follows_the_one_before_is_noticed() -> None:
    values, pool = torch.rand(3000, generator=Generator().manual_seed(2)), Pool()
    values[1::2] = (values[::2] + 0.3 * values[1::2]) % 1  # every other one is close to the one before
    pool.add("draft", {"token id": values}, {})
    assert [test.name for test in pool.alarms()] == ["after the token before, by token id"]
