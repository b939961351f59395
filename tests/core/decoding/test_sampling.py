from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.caches.tokens import Context
from core.config import LEAST_TEMPERATURE, MOST_QUERIES, EngineConfig, RetrievalConfig, SamplingParams
from core.decoding.sampling import TokenSampler, to_probs
from core.decoding.speculative import SampledModel
from core.errors import InvalidSetting
from tests.core.laws import fits


def test_temperature_zero_is_certain_of_the_first_of_the_largest() -> None:
    model: Any = SimpleNamespace(device=torch.device("cpu"), graphs=None)
    logits = torch.tensor([[1.0, 3.0, 3.0], [-1.0, -2.0, -1e9]])
    assert SampledModel(model, SamplingParams()).probs_of(logits, Context([0, 1]), 2).tolist() == [1, 0]


def test_temperatures_too_low_to_divide_by_are_greedy() -> None:
    assert SamplingParams(temperature=1e-37).greedy and SamplingParams(temperature=1e-6).greedy
    lowest = SamplingParams(temperature=LEAST_TEMPERATURE)
    assert not lowest.greedy and to_probs(torch.tensor([1e6, 0.99e6, 3e4]), lowest).tolist() == [1, 0, 0]


def nucleus_by_sorting(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    outside = torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, index, ordered.cumsum(-1) - ordered >= top_p)
    kept = probs.masked_fill(outside, 0.0)
    return kept / kept.sum(-1, keepdim=True)


@pytest.mark.parametrize("spread", [0.1, 3.0])  # nearly every token may be inside; few may
@pytest.mark.parametrize("step", [0.0, 0.5, 100.0])  # of logits: no ties, many, all tied
def test_a_nucleus_is_that_of_a_whole_sort(spread: float, step: float) -> None:
    logits = spread * torch.randn(40, 500, generator=torch.Generator().manual_seed(4))
    logits = (logits / step).round() * step if step else logits
    alone = to_probs(logits, SamplingParams(temperature=1, top_p=1e-50))
    assert torch.equal(alone, torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float())
    for top_p in (0.01, 0.5, 0.9, 0.999):
        found = to_probs(logits, SamplingParams(temperature=1, top_p=top_p))
        wanted = nucleus_by_sorting(torch.softmax(logits, -1), top_p)
        assert torch.equal(found > 0, wanted > 0)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=0)


@given(
    seed=st.integers(0, 1000), temperature=st.floats(0.05, 5), top_p=st.floats(0.01, 0.999), top_k=st.integers(0, 40)
)
@settings(max_examples=60, deadline=None)
def test_options_apply_in_their_order(seed: int, temperature: float, top_p: float, top_k: int) -> None:
    """Temperature, the k most likely of 30, then the nucleus of these."""
    logits = 4 * torch.randn(3, 30, generator=torch.Generator().manual_seed(seed))
    probs = to_probs(logits, SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k))
    least = logits.sort(descending=True).values[:, (min(top_k, 30) or 30) - 1, None]
    expected = torch.softmax((logits / temperature).masked_fill(logits < least, float("-inf")), -1)
    assert torch.allclose(probs, nucleus_by_sorting(expected, top_p), atol=1e-6)


UNUSABLE: list[tuple[type, str, tuple[object, ...]]] = [
    (SamplingParams, "temperature", (-1,)),
    (SamplingParams, "top_p", (0, 1.5)),
    (SamplingParams, "top_k", (-2,)),
    (RetrievalConfig, "local_window", (0, -8)),
    (RetrievalConfig, "query_window", (0, MOST_QUERIES + 1)),
    (RetrievalConfig, "reselect_interval", (0,)),
    (RetrievalConfig, "chunk_size", (0,)),
    (RetrievalConfig, "neighbor_bonus", (1.5,)),
    *((EngineConfig, name, (0,)) for name in ("context", "prefill_chunk", "gpu_memory_gib", "num_gpus")),
    (EngineConfig, "bits", (5,)),
]


@pytest.mark.parametrize(("settings", "name", "values"), UNUSABLE, ids=str)
def test_unusable_settings_are_refused_with_an_action(settings: type, name: str, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidSetting) as error:
            settings(**{name: value})
        assert error.value.hint


# -------------------- draws


def drawn(weights: torch.Tensor, numbers: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """What is drawn with these random numbers, float64."""
    left = iter(numbers)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *_, **__: next(left)[None])
        return torch.tensor([TokenSampler(torch.Generator()).draw(weights) for _ in numbers])


def test_draws_have_the_law_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random numbers that lie evenly each token has its share, but for its two ends; some weigh nothing."""
    weights = torch.softmax(2 * torch.randn(60, generator=torch.Generator().manual_seed(0)), -1)
    weights[[0, 7, 8, 59]] = 0.0
    evenly = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    counts = torch.bincount(drawn(weights, evenly, monkeypatch), minlength=60)
    assert (counts - 10_000 * weights.double() / weights.double().sum()).abs().max() <= 1
    assert not counts[weights == 0].any()


def test_the_ends_of_a_draw_are_tokens_that_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    for seed in range(50):
        weights = torch.rand(9, generator=torch.Generator().manual_seed(seed)) if seed else torch.ones(9)
        weights[[0, 1, 8]] = 0.0
        assert drawn(weights, ends, monkeypatch).tolist() == [2, 7]


def test_unlikely_tokens_of_a_large_vocabulary_are_drawn_as_often_as_others_of_their_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One token of nearly all the mass, then 150,000 that share a ten-thousandth: sums of 32 bits would merge 180."""
    weights = torch.cat((torch.tensor([1.0]), torch.full((150_000,), 1e-4 / 150_000)))
    places = torch.arange(500, dtype=torch.float64) * 300 + 0.5
    found = drawn(weights, (1 + places * weights[1].double()) / weights.double().sum(), monkeypatch)
    assert (found - 1 == places.long()).all()


def test_every_guess_has_a_coin_of_its_own() -> None:
    """Three guesses at fractional ratios: lengths of the accepted prefix as independent coins give them.

    4,000 trials; negative control: one coin for a whole round keeps a prefix as often as its least likely guess.
    """
    p, q, kept = torch.tensor([0.3, 0.2, 0.45]), torch.tensor([0.4, 0.4, 0.5]), [0.75, 0.5, 0.9]
    law = {(0,): 1 - kept[0], (1,): kept[0] * (1 - kept[1]), (2,): kept[0] * kept[1] * (1 - kept[2])}
    law[3,] = 1 - sum(law.values())
    for shared in (False, True):
        rng = torch.Generator().manual_seed(4)
        sampler, counts = TokenSampler(rng), Counter[tuple[int, ...]]()
        for _ in range(4000):
            coin = float(torch.rand(1, generator=rng))
            together = next((i for i, ratio in enumerate(kept) if coin >= ratio), 3)
            counts[(together if shared else sampler.accept(p, q),)] += 1
        assert fits(counts, law) is not shared
    one = torch.ones(3)
    assert [sampler.accept(torch.tensor(p), one) for p in ([1.0, 1, 1], [0.0, 0, 0], [1.0, 1, 0])] == [3, 0, 2]
