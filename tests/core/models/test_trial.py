"""The trial of a loaded model, and families that nobody compared: one line, never a traceback."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from core import TriForce
from core.caches.full import FullCache
from core.errors import UnsupportedModel
from core.models import trial
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import find
from core.models.loader import LoadedModel, dims_of, load_tokenizer
from core.models.trial import try_out
from core.models.weights import prepared
from core.ops.reach import Asked, Reach
from tests.core.models.tiny_families import tiny_family
from tests.core.toys import CPU, FAMILIES, tiny_config

Patch = pytest.MonkeyPatch


def biased(largest: float) -> Callable[[nn.Module], None]:
    """Bias as Qwen2.5 has it: hundreds in the pairs of the keys that hardly turn, some in the others; or everywhere."""

    def change(model: Any) -> None:
        for layer in model.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                nn.init.normal_(part.bias)
            layer.self_attn.k_proj.bias.data.view(-1, 2, 8)[:, :, 5:] *= 300
            if largest:  # nearly every row of attention gives all to one token
                layer.self_attn.k_proj.bias.data.uniform_(-largest, largest)

    return change


def model_named(name: str, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """A family, and how its keys are biased."""
    family, _, keys = name.partition(" ")
    if family in FAMILIES:
        config = tiny_config(family, kv_heads=2)
    else:  # gemma2: windows in every second layer, soft caps
        config = tiny_family(family, sliding_window=8, attn_logit_softcapping=5.0)
    if family == "qwen2":
        config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
    register()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    if keys:
        biased(400.0 if keys == "sharp" else 0.0)(model)
    return prepared(model.eval(), dims_of(model.config, "toy", weight_bytes=1), dtype, CPU)


def test_what_does_not_run_is_refused_in_one_line(monkeypatch: Patch) -> None:
    monkeypatch.setattr(trial, "forward", lambda *given: given[0].nothing)
    with pytest.raises(UnsupportedModel, match=r"does not run through the caches here \(AttributeError\)"):
        try_out(model_named("llama"), "toy", torch.float32)


# -------------------- wrong engines

REAL_STAGE, REAL_ATTEND, REAL_CACHED, REAL_FORWARD = FullCache.stage, FullCache.attend, trial._cached, trial.forward
Fault = Callable[[Patch], None]


def replacing(name: str, call: Callable[..., Any]) -> Fault:
    """`name`: of the trial, or of the cache if it begins with a dot."""
    return lambda patch: patch.setattr(FullCache if name[0] == "." else trial, name.lstrip("."), call)


def staging(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Fault:
    return replacing(".stage", lambda cache, layer, k, v: REAL_STAGE(cache, layer, *change(k, v)))


def attending(change: Callable[[Tensor, float, Any], tuple[Tensor, float, Any]]) -> Fault:
    def attend(cache: FullCache, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        return REAL_ATTEND(cache, layer, *change(q, scaling, asked))

    return replacing(".attend", attend)


def positioned(change: Callable[[Tensor], Tensor]) -> Fault:
    return replacing("forward", lambda module, tokens, at, *more: REAL_FORWARD(module, tokens, change(at), *more))


def within(kinds: str, change: Callable[[Any, Any, Tensor], Any]) -> Fault:
    """While the engine computes, modules whose name ends so put out what `change` of module, input and output gives."""

    def cached(module: nn.Module, *others: Any) -> Tensor:
        def put(part: nn.Module, given: Any, named: Any, out: Any) -> Any:
            return change(part, (*given, *named.values()), out)

        parts = [part for name, part in module.named_modules() if name.endswith(kinds)]
        hooks = [part.register_forward_hook(put, with_kwargs=True) for part in parts]
        try:
            return REAL_CACHED(module, *others)
        finally:
            for hook in hooks:
                hook.remove()

    return replacing("_cached", cached)


def without_bias(name: str) -> Fault:
    return within(name, lambda part, given, out: out - part.bias)


def seeing_the_next(cache: FullCache, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
    """Attention whose rows see a token too many."""
    heads, count, total = q.shape[1], q.shape[2], cache.length + q.shape[2]
    k, v = (rows.repeat_interleave(heads // len(rows), 0) for rows in cache.rows(layer, 0, total))
    seen = torch.ones(count, total).tril(total - count + 1).bool()
    return torch.softmax((q[0] @ k.mT * scaling).masked_fill(~seen, -1e9), -1)[None] @ v


def reaching(reach: Reach | None) -> Fault:
    """Layers with a window have another one."""

    def cached(module: nn.Module, tokens: Tensor, cache: FullCache) -> Tensor:
        reaches = tuple(old and reach for old in cache.shape.reaches)
        return REAL_CACHED(module, tokens, FullCache(cache.shape._replace(reaches=reaches), 64, 8))

    def fault(patch: Patch) -> None:
        replacing("_cached", cached)(patch)
        attending(lambda q, scale, asked: (q, scale, asked and asked._replace(reach=asked.reach and reach)))(patch)

    return fault


def other_theta(part: Any, given: Any, out: Any) -> Any:
    angles = (given[1][..., None] * part.inv_freq**1.05).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


EVERY = ("llama", "qwen2 slow", "qwen2 sharp", "gemma2", "qwen3")
BIASED, PLAIN, GEMMA, QWEN3 = EVERY[1:3], ("llama", "qwen2 slow", "qwen2 sharp", "qwen3"), ("gemma2",), ("qwen3",)
WRONG: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "later positions one too far": (positioned(lambda at: at + (at[0] > 0)), EVERY),
    "k bias dropped": (without_bias("k_proj"), BIASED),
    "v bias dropped": (without_bias("v_proj"), BIASED),
    "window ignored": (reaching(None), GEMMA),
    "window one too wide": (reaching(Reach(9)), GEMMA),
    "soft cap ignored": (attending(lambda q, scale, asked: (q, scale, asked and asked._replace(softcap=None))), GEMMA),
    "wrong scale": (attending(lambda q, scale, asked: (q, 0.9 * scale, asked)), EVERY),
    "V heads swapped": (staging(lambda k, v: (k, v.flip(1))), EVERY),
    "the next token seen": (replacing(".attend", seeing_the_next), PLAIN),
    "another theta": (within("rotary_emb", other_theta), EVERY),
    "norm of keys dropped": (within("k_norm", lambda part, given, out: given[0]), QWEN3),
}


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in EVERY), ("llama", torch.bfloat16)])
def test_an_engine_that_is_right_passes_whatever_its_keys_and_keeps_its_attention(
    name: str, dtype: torch.dtype
) -> None:
    """And rounded keys, which attention of Qwen2.5 would notice, are not a wrong engine."""
    model = model_named(name, dtype)
    narrow = replace(model, shape=model.shape._replace(narrow=torch.bfloat16))
    assert try_out(model, "toy", dtype) and try_out(narrow, "toy", dtype)
    assert model.module.config._attn_implementation == ATTENTION_NAME


@pytest.mark.parametrize(
    ("fault", "name"),
    [(fault, name) for at, (fault, (_, names)) in enumerate(WRONG.items()) for name in names[at % 2 :: 2] or names],
)
def test_a_wrong_engine_is_refused_whatever_the_keys(fault: str, name: str, monkeypatch: Patch) -> None:
    model = model_named(name)
    WRONG[fault][0](monkeypatch)
    with pytest.raises(UnsupportedModel, match="toy computes something else here than in transformers"):
        try_out(model, "toy", torch.float32)


def test_modules_of_programs_are_tried_too(monkeypatch: Patch) -> None:
    tokenizer = load_tokenizer(find("harbour").target)
    monkeypatch.setattr(trial, "forward", lambda *given: -REAL_FORWARD(*given))
    with pytest.raises(UnsupportedModel, match="a trial of 20 tokens"):
        model = AutoModelForCausalLM.from_config(tiny_config(vocab_size=len(tokenizer)))
        TriForce.from_modules(model, tokenizer, context=512)


def test_some_tokens_of_a_mixture_may_go_to_other_experts_and_none_of_another_model() -> None:
    right = torch.randn(20, 8, generator=torch.Generator().manual_seed(3))
    other = [torch.cat((right[:count] + 0.5, right[count:])) for count in (3, 12)]

    def passes(computed: Tensor, *, mixed: bool) -> bool:
        apart, allowed = trial._judged([computed], [right], torch.float32, mixed=mixed)
        return apart <= allowed

    assert [passes(computed, mixed=True) for computed in other] == [True, False]
    assert not passes(other[0], mixed=False) and passes(right + 1e-5, mixed=False)
    assert not passes(right * float("nan"), mixed=True)


# -------------------- the type of keys and values


def kept(model: LoadedModel, tried: trial.Trial | None, asked: bool = False) -> trial.KeptAs:
    return trial.kv_type(model, tried, planned=torch.float16, asked=asked)


def test_float16_is_for_keys_that_fit_and_cost_little_and_for_these_only(monkeypatch: Patch) -> None:
    model = model_named("llama")
    tried = try_out(model, "toy", torch.float32)
    found = kept(model, tried)
    assert found.dtype == torch.float16 and "float16 holds 65,504" in found.because
    assert "half the memory" in found.because and kept(model, None).dtype == torch.float16
    for share, dtype in ((-1, torch.float16), (1, torch.bfloat16)):  # room for larger keys than those of the trial
        edge = tried._replace(largest=65_504 / trial.SAFE + share)
        assert kept(model, edge, asked=True).dtype == dtype
    with monkeypatch.context() as patch:
        patch.setattr(trial, "MOST_LOSS", 0.0)
        found = kept(model, tried)
        assert found.dtype is None and all(f"{one} would cost" in found.because for one in ("float16", "bfloat16"))
        assert kept(model, tried, asked=True).dtype == torch.float16
    for layer in model.module.model.layers:  # large values, which bfloat16 rounds as it does small ones
        for part, factor in (("v_proj", 1e5), ("o_proj", 1e-5), ("q_proj", 0.02)):
            getattr(layer.self_attn, part).weight.data *= factor
    found = kept(model, try_out(model, "toy", torch.float32))
    assert found.dtype == torch.bfloat16 and "float16 holds 65,504" in found.because and "nats" in found.because
