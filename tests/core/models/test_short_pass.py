"""Passes of few tokens through the kernel, beside the modules of transformers."""

import copy
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from transformers import GemmaConfig, MistralConfig, PreTrainedConfig

from core.caches.full import FullCache
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig, RetrievalConfig
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.loader import LoadedModel
from core.models.short_pass import short_pass_of
from core.models.weights import prepared
from core.ops.backend import STOCK, Backend
from core.ops.native import MOST_TOKENS, SmallRows
from tests.core.toys import CPU, VOCAB, loaded, random_prompt, tiny_config


def compiled(
    kernel: SmallRows, config: PreTrainedConfig, change: Callable[[torch.nn.Module], None] | None = None
) -> LoadedModel:
    tiny = loaded(config, 5)
    if change:
        change(tiny.module)
    return prepared(tiny.module, tiny.dims, torch.float32, CPU, Backend("compiled", kernel, "test", kernel=kernel))


def logits(model: LoadedModel, tokens: list[int], sizes: list[int], backend: Backend = STOCK) -> torch.Tensor:
    """Of every token, in passes of these sizes."""
    cache = FullCache(model.shape, 2048, 8, backend=backend)
    judge, found, at = CachedModel("full", model.module, cache, CPU), [], 0
    for size in sizes:
        found.append(judge.feed(Context(tokens), range(at, at + size), size))
        at += size
    return torch.cat(found)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_short_passes_give_the_logits_of_the_modules(kernel: SmallRows, family: str, heads: int, kv_heads: int) -> None:
    config, tokens = tiny_config(family, layers=3, heads=heads, kv_heads=kv_heads), random_prompt(60)

    def biases_too(model: torch.nn.Module) -> None:
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += torch.randn_like(parameter)

    fast, slow = compiled(kernel, config, biases_too), loaded(config, 5)
    biases_too(slow.module)
    assert short_pass_of(fast.module) is not None
    assert short_pass_of(slow.module) is None, "the slow twin goes through its modules"
    sizes = [1, 6, 13, MOST_TOKENS, 8]
    assert torch.allclose(logits(fast, tokens, sizes), logits(slow, tokens, [60]), atol=1e-3)


def test_rows_of_a_short_pass_do_not_depend_on_one_another(kernel: SmallRows) -> None:
    model, tokens = compiled(kernel, tiny_config("qwen3", heads=6, kv_heads=2)), random_prompt(40)
    backend = Backend("compiled", kernel, "test", kernel=kernel)
    alone = logits(model, tokens, [1] * 40, backend)
    for sizes in ([13, 13, 14], [2, 5, 32, 1], [32, 8]):
        assert torch.equal(logits(model, tokens, sizes, backend), alone)
    assert not torch.equal(logits(model, tokens, [32, 8]), alone), "torch's attention sums in another order"


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, head_dim=16, sliding_window=8,
        ),
        GemmaConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, head_dim=16,
        ),
    ],
    ids=["windows", "another family"],
)  # fmt: skip
def test_other_models_go_through_their_modules(kernel: SmallRows, config: PreTrainedConfig) -> None:
    assert short_pass_of(compiled(kernel, config).module) is None


def test_a_model_whose_modules_compute_something_else_is_found_out(kernel: SmallRows) -> None:
    model = copy.deepcopy(loaded(tiny_config(), 5))
    model.module.model.layers[1].mlp.register_forward_hook(lambda *_: torch.zeros(1))
    chosen = Backend("compiled", kernel, "test", kernel=kernel)
    assert short_pass_of(prepared(model.module, model.dims, torch.float32, CPU, chosen).module) is None


TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int16)


def streamed(
    model: LoadedModel, kernel: SmallRows, kept_as: torch.dtype, twin: StreamingCache | None = None
) -> tuple[CachedModel, StreamingCache]:
    backend, config = Backend("compiled", kernel, "test", kernel=kernel), DraftConfig(num_sink=4, window=68)
    cache = StreamingCache(model.shape._replace(narrow=kept_as), config, lambda keys, _: keys.clone(), backend=backend)
    return CachedModel("draft", model.module, cache, CPU), cache


def retrieved(
    model: LoadedModel, kernel: SmallRows, kept_as: torch.dtype, twin: RetrievalCache | None = None
) -> tuple[CachedModel, RetrievalCache]:
    """Over the full cache of its twin, where there is one."""
    backend = Backend("compiled", kernel, "test", kernel=kernel)
    full = twin._full if twin else FullCache(model.shape._replace(narrow=kept_as), 2048, 8, backend=backend)
    if twin is None:
        CachedModel("full", model.module, full, CPU).feed(Context(random_prompt(1500)), range(1500), 1)
    cache = RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=1152, local_window=16)))  # two shares of keys
    cache.select()
    return CachedModel("retrieval", model.module, cache, CPU), cache


MADE = (streamed, retrieved)
SHAPES = (("llama", 2, 2), ("qwen3", 3, 2), ("qwen2", 1, 3))  # family, heads of keys, threads


# Each cache has each shape and each type once
CASES = [
    (MADE[m], *SHAPES[s], TYPES[t])
    for m, s, t in itertools.product(range(2), range(3), range(4))
    if (s + m) % 3 == t or (s, t) == (1, 3)
]


@pytest.mark.parametrize(("made", "family", "kv_heads", "threads", "kept_as"), CASES)
def test_a_pass_in_one_call_is_that_of_its_parts(
    kernel: SmallRows,
    family: str,
    kv_heads: int,
    threads: int,
    made: Callable[..., tuple[CachedModel, StreamingCache | RetrievalCache]],
    kept_as: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kept_as not in kernel.puts:
        pytest.skip(f"this processor does not round to {kept_as}")
    config = tiny_config(family, layers=3, heads=6, kv_heads=kv_heads)
    if kept_as == torch.int16:
        cast(Any, config).head_dim = 64  # the kernel multiplies integers of wide heads alone
    model = compiled(kernel, config)
    monkeypatch.setattr(kernel._threads, "now", lambda: threads)
    whole = made(model, kernel, kept_as)
    parts = made(model, kernel, kept_as, whole[1])
    slow = parts[1].fixed
    monkeypatch.setattr(parts[1], "fixed", lambda: slow()._replace(attend=None))
    calls, call = [], kernel.whole_pass
    monkeypatch.setattr(kernel, "whole_pass", lambda *given: calls.append(given) or call(*given))
    start, prompt = whole[1].length, random_prompt(1600, 3)
    for number, size in enumerate((1, 2, 7, 13, 20, 32, 1)):
        keep = min(size, number + 1)
        found, wanted = (judge.feed(Context(prompt), range(start, start + size), keep) for judge, _ in (whole, parts))
        assert torch.equal(found, wanted) and found.shape == (keep, VOCAB)
        start += size
    assert len(calls) == 7, "one call for each pass, and none for its twin"
    for cache, twin in ((whole[1].k, parts[1].k), (whole[1].v, parts[1].v)):
        held = whole[1].fixed().held
        assert held > 20
        for rows, others in zip(cache, twin, strict=True):
            assert rows.dtype == kept_as and torch.equal(rows[:, :, :held], others[:, :, :held])


def same_landmarks(caches: list[FullCache]) -> bool:
    """Whether two caches give the same landmarks of all complete chunks."""
    one, other = ([cache.landmarks(layer, cache.length // 8) for layer in range(2)] for cache in caches)
    return all(itertools.starmap(torch.equal, zip(one, other, strict=True)))


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("kept_as", TYPES, ids=str)
def test_a_pass_over_the_full_cache_in_one_call_leaves_what_its_parts_leave(
    kernel: SmallRows, kept_as: torch.dtype, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept_as not in kernel.puts:
        pytest.skip(f"this processor does not round to {kept_as}")
    config = tiny_config("llama", layers=2, heads=6, kv_heads=2)
    cast(Any, config).head_dim = 64  # the kernel multiplies integers of wide heads alone
    model, backend = compiled(kernel, config), Backend("compiled", kernel, "test", kernel=kernel)
    caches = [FullCache(model.shape._replace(narrow=kept_as), 2048, 8, backend=backend) for _ in range(2)]
    judges = [CachedModel("full", model.module, cache, CPU) for cache in caches]
    prompt, start = Context(random_prompt(1600)), 1500
    for judge, cache in zip(judges, caches, strict=True):
        judge.feed(prompt, range(start), 1)
        cache.count_votes(counts)
    slow = caches[1].fixed
    monkeypatch.setattr(caches[1], "fixed", lambda: slow()._replace(attend=None))
    calls, call = [], kernel.whole_pass
    monkeypatch.setattr(kernel, "whole_pass", lambda *given: calls.append(given) or call(*given))
    for size, rejected in ((1, 0), (13, 5), (32, 0), (2, 0), (7, 6), (1, 0)):  # the ring of queries begins anew
        found, wanted = (judge.feed(prompt, range(start, start + size), size) for judge in judges)
        start += size - rejected
        for cache in caches[: 2 * bool(rejected)]:
            cache.truncate(start)
        assert torch.equal(found, wanted)
        for layer in range(2):
            left = [[*cache.rows(layer, 0, start), cache.recent_queries(layer, 100)] for cache in caches]
            samples = [cache.samples_to_save(layer, start) for cache in caches]
            votes = [cache.votes.newest(layer, start) for cache in caches]
            assert all(itertools.starmap(torch.equal, zip(*left, strict=True))) and torch.equal(*samples)
            assert torch.equal(*votes) if counts else votes == [None, None]  # type: ignore[call-arg]
        if size == 32:  # landmarks of several passes at once
            assert same_landmarks(caches)
    assert len(calls) == 6, "one call for each pass, and none for its twin"
    for judge in judges:
        judge.feed(prompt, range(start, start + 40), 1)  # through the modules, behind passes in one call
    assert same_landmarks(caches)


@pytest.mark.parametrize("kept_as", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("made", [streamed, retrieved])
def test_keys_too_large_for_16_bits_are_refused_in_one_call_too(
    kernel: SmallRows, made: Callable[..., tuple[CachedModel, StreamingCache | RetrievalCache]], kept_as: torch.dtype
) -> None:
    if kept_as not in kernel.puts:
        pytest.skip(f"this processor does not round to {kept_as}")
    huge = 1e6 if kept_as == torch.float16 else 3.4e38
    judge, cache = made(model := compiled(kernel, tiny_config("llama")), kernel, kept_as)
    body, context, start = cast(Any, model.module).model, Context(random_prompt(1600)), cache.length
    judge.feed(context, range(start, start + 1), 1)
    twin, _ = made(model, kernel, kept_as, cache)
    twin.feed(context, range(start, start + 1), 1)
    weights = body.layers[1].self_attn.v_proj.packed
    before = weights.clone()
    weights.fill_(huge)
    with pytest.raises(UnsupportedModel, match="too large for 16 bits"):
        judge.feed(context, range(start + 1, start + 3), 1)
    assert cache.length == start + 1, "nothing of that pass counts"
    weights.copy_(before)
    again = judge.feed(context, range(start + 1, start + 4), 3)
    assert torch.equal(again, twin.feed(context, range(start + 1, start + 4), 3)), "nor is anything of it left"


@pytest.mark.parametrize(("kept_as", "step"), [(torch.float16, 2.0**-10), (torch.bfloat16, 2.0**-7)], ids=str)
def test_numbers_between_two_are_rounded_to_the_even_one(kernel: SmallRows, kept_as: torch.dtype, step: float) -> None:
    if kept_as not in kernel.puts:
        pytest.skip(f"this processor does not round to {kept_as}")
    judge, cache = streamed(model := compiled(kernel, tiny_config("qwen2")), kernel, kept_as)
    value = cast(Any, model.module).model.layers[0].self_attn.v_proj
    halves = 1 + step * (torch.arange(len(value._bias)) + 0.5)  # each in the middle between two numbers
    value.packed.zero_(), value._bias.copy_(halves)
    judge.feed(Context(random_prompt(9)), range(2), 1)
    rows = cast(StreamingCache, cache).v[0][0, :, :2].transpose(0, 1).flatten(1)
    assert torch.equal(rows, halves.to(kept_as).expand(2, -1)) and not torch.equal(rows[0].float(), halves)
