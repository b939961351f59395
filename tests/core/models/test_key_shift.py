"""A draft whose window has moved computes what transformers computes of that window alone."""

from typing import Any, cast

import pytest
import torch

from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig
from core.models.cached_model import CachedModel
from core.models.rotary import KeyShift
from tests.core.toys import CPU, FAMILIES, loaded, random_prompt, tiny_config, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_streaming_inside_its_window_equals_stock_and_shifting_keeps_relative_positions(family: str) -> None:
    """After a shift the first layer is that of the window read alone: its keys depend on token and slot only."""
    model = loaded(tiny_config(family, layers=1), 3)
    shift = KeyShift.of(model.module, model.shape)
    cache = StreamingCache(model.shape, DraftConfig(num_sink=4, window=100), shift)
    judge = CachedModel("draft", model.module, cache, CPU)
    tokens = random_prompt(130)
    assert torch.allclose(judge.logits(Context(tokens[:60]), 5), stock_one_layer(family, tokens[:60])[-5:], atol=2e-4)
    for index in range(60, 130):
        logits = judge.logits(Context(tokens[: index + 1]), 1)[0]
    rows = cache.nbytes // model.shape.bytes_per_token
    window = tokens[:4] + tokens[130 - rows + 4 :]
    assert rows < 130 and torch.allclose(logits, stock_one_layer(family, window)[-1], atol=2e-4)


def stock_one_layer(family: str, tokens: list[int]) -> torch.Tensor:
    model = tiny_model(tiny_config(family, layers=1), 3, "eager")
    return cast(torch.Tensor, cast(Any, model)(torch.tensor([tokens])).logits[0])


def test_a_wrong_shift_would_be_noticed() -> None:
    """Negative control: without rotating the keys that stay, the window's logits are far off."""
    model = loaded(tiny_config(layers=1), 3)
    cache = StreamingCache(model.shape, DraftConfig(num_sink=4, window=100), lambda keys, delta: keys.clone())
    judge = CachedModel("draft", model.module, cache, CPU)
    tokens = random_prompt(130)
    for index in range(130):
        logits = judge.logits(Context(tokens[: index + 1]), 1)[0]
    rows = cache.nbytes // model.shape.bytes_per_token
    window = tokens[:4] + tokens[130 - rows + 4 :]
    assert not torch.allclose(logits, stock_one_layer("llama", window)[-1], atol=1e-2)
