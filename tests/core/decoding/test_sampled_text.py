"""Sampled answers of whole engines follow the target's law where both levels reject most of what is guessed.

The toy has a budget of 80 of 300 tokens and a draft that is mostly wrong. Every measurement has its negative controls:
the same number of answers by a rule that is wrong must be caught.
"""

from typing import Any

import pytest
import torch
from torch import Generator

from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding import methods
from core.decoding.speculative import Rule, Speculative
from core.decoding.stats import LevelStats
from core.decoding.verify import verify
from core.engine import Engine
from core.generation.decode_loop import sampler_behind
from core.generation.events import Finished
from tests.core.decoding.test_output_law import accept_everything, verify_without_residual
from tests.core.laws import LanguageModel, chi_square, counted, fits, marginal, sequence_law
from tests.core.toys import last_event, random_prompt, tiny_engine

RUNS = 180  # another temperature is noticed; wrong rules take `WRONG_RUNS` by level
WRONG_RUNS = {1: 1200, 2: 300}
PROMPT = random_prompt(300)
SHAPE = SpeculationConfig(gamma1=2, gamma2=2, adaptive=False)
SAMPLING = SamplingParams(temperature=0.8, top_k=3)


def rejecting_engine() -> Engine:
    return tiny_engine(context=512, budget=80)


def write(
    engine: Engine, seed: int, num_tokens: int, method: str = "triforce", written: tuple[int, ...] = ()
) -> Finished:
    config = GenerationConfig(max_new_tokens=num_tokens, sampling=SAMPLING, speculation=SHAPE, method=method, seed=seed)
    return last_event(engine.generate(PROMPT, config, written=written))


@pytest.fixture(scope="module")
def law() -> LanguageModel:
    return sequence_law(rejecting_engine(), PROMPT, SAMPLING, 4)


def acceptance(level: list[LevelStats | None]) -> float:
    return sum(one.accepted for one in level if one) / sum(one.tested for one in level if one)


@pytest.mark.slow
def test_sampled_text_follows_the_target_where_both_levels_reject(law: LanguageModel) -> None:
    """Three tokens: the first round's guess, its correction and what another round adds, against 27 outcomes."""
    engine, expected = rejecting_engine(), marginal(law, 0, 3)
    answers = [write(engine, seed, 3) for seed in range(RUNS)]
    assert 0.1 < acceptance([a.stats.level1 for a in answers]) < 0.5
    assert 0.05 < acceptance([a.stats.level2 for a in answers]) < 0.5
    found = counted([a.token_ids for a in answers], 0, 3)
    assert fits(found, expected) and chi_square(found, expected).freedom >= 10
    total = sum(p**1.5 for p in expected.values())
    cooler = {tokens: p**1.5 / total for tokens, p in expected.items()}
    assert not fits(found, cooler), "another temperature must be noticed"


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("rule", [accept_everything, verify_without_residual])
def test_a_wrong_rule_at_either_level_is_caught(
    law: LanguageModel, rule: Rule, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Level 2 mends little of what level 1 does wrong, but rejects most of it: that takes more answers to see."""
    made = []

    def make(*args: Any, **kwargs: Any) -> Speculative:
        made.append(args)
        return Speculative(*args, **kwargs, rule=rule if 1 + (len(made) - 1) % 2 == level else verify)

    monkeypatch.setattr(methods, "Speculative", make)
    engine = rejecting_engine()
    drawn = [write(engine, seed, 3).token_ids for seed in range(WRONG_RUNS[level])]
    assert not fits(counted(drawn, 0, 3), marginal(law, 0, 3))


# -------------------- continued answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [("triforce", "triforce"), ("triforce", "autoregressive"), ("autoregressive", "triforce")]
)
def test_a_continued_sampled_answer_follows_the_target(law: LanguageModel, first: str, then: str) -> None:
    """Two tokens, and two more behind them with the same seed, as Continue asks for them."""
    engine, found = rejecting_engine(), []
    for seed in range(500):
        found.append(write(engine, seed, 2, then, written=write(engine, seed, 2, first).token_ids).token_ids)
    for start, stop in ((0, 2), (1, 3), (1, 4), (2, 4)):  # what was written, the seam, what follows
        assert fits(counted(found, start, stop), marginal(law, start, stop))


def test_draws_behind_written_tokens_begin_elsewhere_for_every_length_and_seed() -> None:
    def draws(generator: Generator, count: int) -> list[float]:
        return [float(torch.rand(1, dtype=torch.float64, generator=generator)) for _ in range(count)]

    rng = Generator()
    begun = {
        draws(sampler_behind(rng, seed, written, speculative=True)._rng, 1)[0]
        for seed in range(40)
        for written in range(40)
    }
    used = {number for seed in range(40) for number in draws(rng.manual_seed(seed), 41)}
    assert len(begun) == 1600 and not begun & used, "nor with any number that plain decoding draws"
