"""Our attention and caches against stock transformers, on tiny random models of each family."""

from typing import Any, cast

import pytest
import torch

from core.caches.full import FullCache
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig, RetrievalConfig
from core.models.cached_model import CachedModel
from core.models.rotary import KeyShift
from tests.core.toys import CPU, FAMILIES, loaded, random_prompt, tiny_config, tiny_model

CASES = [(family, kv_heads) for family in FAMILIES for kv_heads in (4, 2)]


def stock_logits(family: str, kv_heads: int, tokens: list[int]) -> torch.Tensor:
    model = tiny_model(tiny_config(family, kv_heads=kv_heads), 3, "eager")
    return cast(torch.Tensor, cast(Any, model)(torch.tensor([tokens])).logits[0])


@pytest.mark.parametrize(("family", "kv_heads"), CASES)
def test_prefill_in_chunks_and_decoding_equal_stock_logits(family: str, kv_heads: int) -> None:
    model = loaded(tiny_config(family, kv_heads=kv_heads), 3)
    judge = CachedModel("full", model.module, FullCache(model.shape, 256, 8), CPU)
    tokens = random_prompt(150)
    expected = stock_logits(family, kv_heads, tokens)
    context = Context(tokens)
    for start, stop in ((0, 70), (70, 100), (100, 107)):
        logits = judge.feed(context, range(start, stop), 1)
        assert torch.allclose(logits[0], expected[stop - 1], atol=2e-4)
    for index in range(107, 150):
        assert torch.allclose(judge.feed(context, range(index, index + 1), 1)[0], expected[index], atol=2e-4)
    judge.cache.truncate(120)  # and again, several rows at once behind a rewind
    assert torch.allclose(judge.logits(context, 20), expected[-20:], atol=2e-4)


@pytest.mark.parametrize(("family", "kv_heads"), CASES)
def test_a_budget_that_holds_everything_makes_retrieval_equal_to_full(family: str, kv_heads: int) -> None:
    model = loaded(tiny_config(family, kv_heads=kv_heads), 3)
    full = FullCache(model.shape, 256, 8)
    retrieval = RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=256, local_window=64)))
    tokens = random_prompt(150)
    CachedModel("full", model.module, full, CPU).feed(Context(tokens), range(0, 140), 1)
    retrieval.select()
    logits = CachedModel("retrieval", model.module, retrieval, CPU).logits(Context(tokens), 10)
    assert torch.allclose(logits, stock_logits(family, kv_heads, tokens)[-10:], atol=2e-4)


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


def test_greedy_text_equals_stock_generate() -> None:
    config = tiny_config("qwen3", kv_heads=2)
    model = loaded(config, 3)
    tokens = random_prompt(90)
    judge = CachedModel("full", model.module, FullCache(model.shape, 256, 8), CPU)
    ours = list(tokens)
    for _ in range(30):
        ours.append(int(judge.logits(Context(ours), 1).argmax()))
    stock = cast(Any, tiny_model(config, 3, "sdpa"))
    stock.generation_config.eos_token_id = None
    ids = torch.tensor([tokens])
    generated = stock.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False)
    assert ours == generated[0].tolist()
