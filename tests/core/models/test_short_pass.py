"""Passes of few tokens through the kernel, beside the modules of transformers."""

from collections.abc import Callable
from itertools import product, starmap
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.caches.full import FullCache
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig, RetrievalConfig
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.hf_attention import ATTENTION_NAME
from core.models.loader import LoadedModel, dims_of
from core.models.short_pass import short_pass_of
from core.models.weights import prepared
from core.ops.backend import Backend
from core.ops.native import MOST_TOKENS
from tests.core.models.tiny_families import tiny_family, twin_models
from tests.core.toys import CPU, VOCAB, loaded, random_prompt, tiny_config


def compiled(backend: Backend, config: Any, change: Callable[[nn.Module], Any] = lambda _: None) -> LoadedModel:
    tiny = loaded(config, 5)
    change(tiny.module)
    return prepared(tiny.module, tiny.dims, torch.float32, CPU, backend)


def logits(model: LoadedModel, tokens: list[int], sizes: list[int]) -> Tensor:
    """Of every token, in passes of these sizes."""
    judge, found, at = CachedModel("full", model.module, FullCache(model.shape, 2048, 8), CPU), [], 0
    for size in sizes:
        found.append(judge.feed(Context(tokens), range(at, at + size), size))
        at += size
    return torch.cat(found)


def test_a_family_that_looks_at_its_embeddings_writes_what_transformers_writes(backend: Backend) -> None:
    config, prompt = tiny_family("llama4_text"), random_prompt(30)
    stock, ours = twin_models(config, ATTENTION_NAME)
    model = prepared(ours, dims_of(config, "llama4_text", weight_bytes=1 << 20), torch.float32, CPU, backend)
    with torch.no_grad():
        wanted = stock(torch.tensor([prompt])).logits[0]
    assert torch.allclose(logits(model, prompt, [30])[:, : wanted.shape[1]], wanted, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_short_passes_give_the_logits_of_the_modules(backend: Backend, family: str) -> None:
    config, tokens = tiny_config(family, layers=3, heads=6, kv_heads=2), random_prompt(60)

    def biases_too(model: nn.Module) -> None:
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += torch.randn_like(parameter)

    fast, slow = compiled(backend, config, biases_too), loaded(config, 5)
    biases_too(slow.module)
    assert short_pass_of(fast.module) is not None
    assert short_pass_of(slow.module) is None, "the slow twin goes through its modules"
    sizes = [1, 6, 13, MOST_TOKENS, 8]
    assert torch.allclose(logits(fast, tokens, sizes), logits(slow, tokens, [60]), atol=1e-3)


def test_other_models_go_through_their_modules(backend: Backend) -> None:
    """With windows, of another family, and one whose modules compute something else, which is found out."""

    def hooked(model: Any) -> None:
        model.model.layers[1].mlp.register_forward_hook(lambda *_: torch.zeros(1))

    for config in (tiny_family("mistral", sliding_window=8), tiny_family("gemma")):
        assert short_pass_of(compiled(backend, config).module) is None
    assert short_pass_of(compiled(backend, tiny_config(), hooked).module) is None


# -------------------- passes in one call

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int16)
LENGTH = 1500


def streamed(model: LoadedModel, backend: Backend, kept_as: torch.dtype, twin: Any = None) -> CachedModel:
    config = DraftConfig(num_sink=4, window=68)
    cache = StreamingCache(model.shape._replace(narrow=kept_as), config, lambda keys, _: keys.clone(), backend=backend)
    return CachedModel("draft", model.module, cache, CPU)


def whole(model: LoadedModel, backend: Backend, kept_as: torch.dtype, twin: Any = None) -> CachedModel:
    cache = FullCache(model.shape._replace(narrow=kept_as), 2048, 8, backend=backend)
    judge = CachedModel("full", model.module, cache, CPU)
    judge.feed(Context(random_prompt(LENGTH)), range(LENGTH), 1)
    return judge


def retrieved(model: LoadedModel, backend: Backend, kept_as: torch.dtype, twin: Any = None) -> CachedModel:
    """Over the full cache of its twin, where there is one."""
    full = twin.cache._full if twin else whole(model, backend, kept_as).cache
    cache = RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=1152, local_window=16)))  # two shares of keys
    cache.select()
    return CachedModel("retrieval", model.module, cache, CPU)


def model_in(backend: Backend, kept_as: torch.dtype, family: str = "llama", **sizes: int) -> LoadedModel:
    """A model whose keys and values are kept in a type."""
    if kept_as not in backend.kernel.puts:
        pytest.skip(f"this processor does not round to {kept_as}")
    if kept_as == torch.int16:
        sizes["head_dim"] = 64  # the kernel multiplies integers of wide heads alone
    return compiled(backend, tiny_config(family, **sizes))


def left(cache: Any, counts: bool) -> list[Tensor]:
    """What passes have left in a cache."""
    if not isinstance(cache, FullCache):
        held = cache.fixed().held
        return [rows[:, :, :held] for rows in (*cache.k, *cache.v)]
    found, end = [], cache.length
    for layer in range(3):
        found += [*cache.rows(layer, 0, end), cache.recent_queries(layer, 100), cache.samples_to_save(layer, end)]
        votes = cache.votes.newest(layer, end)
        assert (votes is not None) == counts
        found += [votes] if counts else []
    return found


SHAPES = (("llama", 2, 2), ("qwen3", 3, 2), ("qwen2", 1, 3))  # family, heads of keys, threads
# Two caches have each shape and each type once, the full one each type with votes, and one without
CASES = [
    (made, *SHAPES[s], TYPES[t], False)
    for (m, made), s, t in product(enumerate((streamed, retrieved)), range(3), range(4))
    if (s + m) % 3 == t or (s, t) == (1, 3)
]
CASES += [(whole, "llama", 2, 2, TYPES[1], False), *((whole, "llama", 2, 2, kept_as, True) for kept_as in TYPES)]


@pytest.mark.parametrize(("made", "family", "kv_heads", "threads", "kept_as", "counts"), CASES)
def test_a_pass_in_one_call_is_that_of_its_parts_and_leaves_what_they_leave(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, made: Any, family: str, kv_heads: int, threads: int,
    kept_as: torch.dtype, counts: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(backend.kernel, "_threads", SimpleNamespace(now=lambda: threads))  # not torch's own
    model = model_in(backend, kept_as, family, layers=3, heads=6, kv_heads=kv_heads)
    judges = [first := made(model, backend, kept_as), made(model, backend, kept_as, first)]
    caches = [judge.cache for judge in judges]
    calls, call, slow = [], backend.kernel.whole_pass, caches[1].fixed
    monkeypatch.setattr(caches[1], "fixed", lambda: slow()._replace(attend=None))
    monkeypatch.setattr(backend.kernel, "whole_pass", lambda *given: calls.append(given) or call(*given))
    for cache in caches if made is whole else ():
        cache.count_votes(counts)
    start, prompt = caches[0].length, Context(random_prompt(1700, 3))
    for number, (size, rejected) in enumerate(((1, 0), (13, 5), (32, 0), (2, 0), (7, 6), (20, 0), (1, 0))):
        keep = size if counts else min(size, number + 1)
        found, wanted = (judge.feed(prompt, range(start, start + size), keep) for judge in judges)
        assert torch.equal(found, wanted) and found.shape == (keep, VOCAB)
        start += size
        if made is whole:  # the ring of queries begins anew
            start -= rejected
            for cache in caches:
                cache.truncate(start)
        assert all(starmap(torch.equal, zip(*(left(cache, counts) for cache in caches), strict=True)))
    assert len(calls) == 7, "one call for each pass, and none for its twin"
    if made is whole:
        for judge in judges:
            judge.feed(prompt, range(start, start + 40), 1)  # through the modules, behind passes in one call
        for layer in range(3):
            assert torch.equal(*(cache.landmarks(layer, cache.length // 8) for cache in caches))
    else:
        assert caches[0].fixed().held > 20 and caches[0].k[0].dtype == kept_as


@pytest.mark.parametrize(("kept_as", "huge"), [(torch.float16, 1e6), (torch.bfloat16, 3.4e38)], ids=str)
@pytest.mark.parametrize("made", [streamed, retrieved])
def test_keys_too_large_for_16_bits_are_refused_in_one_call_too(
    backend: Backend, made: Any, kept_as: torch.dtype, huge: float
) -> None:
    model, context = model_in(backend, kept_as), Context(random_prompt(1600))
    judge = made(model, backend, kept_as)
    start = judge.cache.length
    judge.feed(context, range(start, start + 1), 1)
    twin = made(model, backend, kept_as, judge)
    twin.feed(context, range(start, start + 1), 1)
    weights = model.module.model.layers[1].self_attn.v_proj.packed
    before = weights.clone()
    weights.fill_(huge)
    with pytest.raises(UnsupportedModel, match="too large for 16 bits"):
        judge.feed(context, range(start + 1, start + 3), 1)
    assert judge.cache.length == start + 1, "nothing of that pass counts"
    weights.copy_(before)
    again, wanted = (one.feed(context, range(start + 1, start + 4), 3) for one in (judge, twin))
    assert torch.equal(again, wanted), "nor is anything of it left"


@pytest.mark.parametrize(("kept_as", "step"), [(torch.float16, 2.0**-10), (torch.bfloat16, 2.0**-7)], ids=str)
def test_numbers_between_two_are_rounded_to_the_even_one(backend: Backend, kept_as: torch.dtype, step: float) -> None:
    model = model_in(backend, kept_as, "qwen2")
    judge, value = streamed(model, backend, kept_as), model.module.model.layers[0].self_attn.v_proj
    halves = 1 + step * (torch.arange(len(value._bias)) + 0.5)  # each in the middle between two numbers
    value.packed.zero_(), value._bias.copy_(halves)
    judge.feed(Context(random_prompt(9)), range(2), 1)
    rows = judge.cache.v[0][0, :, :2].transpose(0, 1).flatten(1)
    assert torch.equal(rows, halves.to(kept_as).expand(2, -1)) and not torch.equal(rows[0].float(), halves)
