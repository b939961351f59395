"""The trial of a loaded model, and families that nobody compared: one line, never a traceback."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, PreTrainedConfig

from core import TriForce
from core.caches.full import FullCache
from core.errors import UnsupportedModel
from core.models import trial
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import find
from core.models.loader import LoadedModel, dims_of, load_tokenizer
from core.models.trial import try_out
from core.models.weights import prepared
from core.ops.backend import STOCK, Backend
from core.ops.reach import Asked, Reach
from tests.core.models.tiny_families import tiny_family
from tests.core.toys import tiny_config


def loaded(
    dtype: torch.dtype = torch.float32,
    config: PreTrainedConfig | None = None,
    change: Callable[[nn.Module], None] = lambda _: None,
    backend: Backend = STOCK,
    **sizes: Any,
) -> LoadedModel:
    register()
    torch.manual_seed(1)
    config = config or tiny_config(**sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    change(model)
    dims = dims_of(model.config, "toy", weight_bytes=1)
    return prepared(model.eval(), dims, dtype, torch.device("cpu"), backend)


def slow_keys(model: nn.Module) -> None:
    """Bias as Qwen2.5 has it: hundreds in the pairs of the keys that hardly turn, some in the others."""
    for layer in cast(Any, model).model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            nn.init.normal_(part.bias)
        layer.self_attn.k_proj.bias.data.view(-1, 2, 8)[:, :, 5:] *= 300


def sharp_keys(model: nn.Module) -> None:
    """Bias in the hundreds everywhere: nearly every row of attention gives all to one token."""
    slow_keys(model)
    for layer in cast(Any, model).model.layers:
        layer.self_attn.k_proj.bias.data.uniform_(-400, 400)


def model_named(name: str, backend: Backend = STOCK) -> LoadedModel:
    if name == "gemma2":  # windows in every second layer, soft caps
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        sizes |= {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64, "sliding_window": 8}
        config = Gemma2Config(**sizes, attn_logit_softcapping=5.0, initializer_range=0.4, pad_token_id=0)
        return loaded(config=config, backend=backend)
    family, _, keys = name.partition(" ")
    changes = {"": lambda _: None, "slow": slow_keys, "sharp": sharp_keys}
    config = tiny_config(family, heads=4, kv_heads=2)
    if family == "qwen2":
        cast(Any, config).rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
    return loaded(config=config, change=changes[keys], backend=backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_computes_the_same_passes_and_keeps_its_attention(dtype: torch.dtype) -> None:
    model = loaded(dtype)
    assert try_out(model, "toy", dtype)
    assert cast(Any, model.module).config._attn_implementation == ATTENTION_NAME


def test_a_model_that_computes_something_else_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = loaded(), trial.forward

    def without_the_past(module: Any, tokens: Any, positions: Any, cache: Any, keep: int) -> Any:
        return real(module, tokens, torch.zeros_like(positions), cache, keep)  # every token at the first position

    monkeypatch.setattr(trial, "forward", without_the_past)
    with pytest.raises(UnsupportedModel, match="toy computes something else here than in transformers"):
        try_out(model, "toy", torch.float32)
    monkeypatch.setattr(trial, "forward", lambda *given: given[0].nothing)
    with pytest.raises(UnsupportedModel, match=r"does not run through the caches here \(AttributeError\)"):
        try_out(model, "toy", torch.float32)


# -------------------- wrong engines

Patch = pytest.MonkeyPatch
REAL_STAGE, REAL_ATTEND, REAL_CACHED, REAL_FORWARD = FullCache.stage, FullCache.attend, trial._cached, trial.forward


def staging(patch: Patch, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    patch.setattr(FullCache, "stage", lambda cache, layer, k, v: REAL_STAGE(cache, layer, *change(k, v)))


def attending(
    patch: Patch, change: Callable[[Tensor, float, Asked | None], tuple[Tensor, float, Asked | None]]
) -> None:
    patch.setattr(
        FullCache,
        "attend",
        lambda cache, layer, q, scaling, asked=None: REAL_ATTEND(cache, layer, *change(q, scaling, asked)),
    )


def within(patch: Patch, kinds: str, change: Callable[[Any, Any, Tensor], Any]) -> None:
    """While the engine computes, modules whose name ends so put out what `change` of module, input and output gives."""

    def cached(module: nn.Module, *others: Any) -> Tensor:
        parts = [part for name, part in module.named_modules() if name.endswith(kinds)]
        hooks = [
            part.register_forward_hook(
                lambda part, given, named, out: change(part, (*given, *named.values()), out), with_kwargs=True
            )
            for part in parts
        ]
        try:
            return REAL_CACHED(module, *others)
        finally:
            for hook in hooks:
                hook.remove()

    patch.setattr(trial, "_cached", cached)


def masked(patch: Patch, diagonal: int) -> None:
    """Attention whose rows see `diagonal` tokens too many or too few."""

    def attend(cache: FullCache, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        heads, count, total = q.shape[1], q.shape[2], cache.length + q.shape[2]
        k, v = (rows.repeat_interleave(heads // len(rows), 0) for rows in cache.rows(layer, 0, total))
        seen = torch.ones(count, total).tril(total - count + diagonal).bool()
        seen[:, 0] = True
        return torch.softmax((q[0] @ k.mT * scaling).masked_fill(~seen, -1e9), -1)[None] @ v

    patch.setattr(FullCache, "attend", attend)


def positioned(patch: Patch, change: Callable[[Tensor], Tensor]) -> None:
    def forward(module: Any, tokens: Tensor, positions: Tensor, cache: Any, keep: int) -> Tensor:
        return REAL_FORWARD(module, tokens, change(positions), cache, keep)

    patch.setattr(trial, "forward", forward)


def reaching(patch: Patch, reach: Reach | None) -> None:
    """Layers with a window have another one."""

    def cached(module: nn.Module, tokens: Tensor, cache: FullCache) -> Tensor:
        reaches = tuple(old and reach for old in cache.shape.reaches)
        return REAL_CACHED(module, tokens, FullCache(cache.shape._replace(reaches=reaches), 64, 8))

    patch.setattr(trial, "_cached", cached)
    attending(patch, lambda q, scale, asked: (q, scale, asked and asked._replace(reach=asked.reach and reach)))


def regrouped(patch: Patch) -> None:
    """Query heads take turns over the KV heads, where each KV head serves neighbours."""

    def attend(cache: FullCache, layer: int, q: Tensor, *asked: Any) -> Tensor:
        turns = torch.arange(q.shape[1]).view(2, -1).T.flatten()
        return REAL_ATTEND(cache, layer, q[:, turns], *asked)[:, turns.argsort()]

    patch.setattr(FullCache, "attend", attend)


def turned_by_one(q: Tensor) -> Tensor:
    angles = 10_000.0 ** (-torch.arange(0, 1, 2 / q.shape[-1])).repeat(2)
    a, b = q.chunk(2, -1)
    return q * angles.cos() + torch.cat((-b, a), -1) * angles.sin()


def turned(patch: Patch, power: float) -> None:
    """Another rope theta."""

    def rotation(part: Any, given: Any, out: Any) -> Any:
        _, positions = given
        angles = (positions[..., None] * part.inv_freq**power).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    within(patch, "rotary_emb", rotation)


def other_eps(patch: Patch) -> None:
    def norm(part: Any, given: Any, out: Tensor) -> Tensor:
        squares = given[0].pow(2).mean(-1, keepdim=True)
        return out * (squares / (squares + 1e-2)).sqrt()

    within(patch, "layernorm", norm)


EVERY = ("llama", "qwen2 slow", "qwen2 sharp", "gemma2", "qwen3")
BIASED, PLAIN = EVERY[1:3], ("llama", "qwen2 slow", "qwen2 sharp", "qwen3")
WRONG: dict[str, tuple[Callable[[Patch], None], tuple[str, ...]]] = {
    "later positions one too far": (lambda patch: positioned(patch, lambda at: at + (at[0] > 0)), EVERY),
    "positions of a later pass from 0": (lambda patch: positioned(patch, lambda at: at - at[0]), EVERY),
    "queries turned one position further": (
        lambda patch: attending(patch, lambda q, scale, asked: (turned_by_one(q), scale, asked)),
        EVERY,
    ),
    "q bias dropped": (lambda patch: within(patch, "q_proj", lambda part, given, out: out - part.bias), BIASED),
    "k bias dropped": (lambda patch: within(patch, "k_proj", lambda part, given, out: out - part.bias), BIASED),
    "v bias dropped": (lambda patch: within(patch, "v_proj", lambda part, given, out: out - part.bias), BIASED),
    "window ignored": (lambda patch: reaching(patch, None), ("gemma2",)),
    "window one too wide": (lambda patch: reaching(patch, Reach(9)), ("gemma2",)),
    "soft cap ignored": (
        lambda patch: attending(patch, lambda q, scale, asked: (q, scale, asked and asked._replace(softcap=None))),
        ("gemma2",),
    ),
    "wrong scale": (lambda patch: attending(patch, lambda q, scale, asked: (q, 0.9 * scale, asked)), EVERY),
    "query heads read other KV heads": (regrouped, EVERY),
    "K and V heads swapped": (lambda patch: staging(patch, lambda k, v: (k.flip(1), v.flip(1))), EVERY),
    "V heads swapped": (lambda patch: staging(patch, lambda k, v: (k, v.flip(1))), EVERY),
    "keys and values exchanged": (lambda patch: staging(patch, lambda k, v: (v, k)), EVERY),
    "the next token seen": (lambda patch: masked(patch, 1), PLAIN),
    "the newest token unseen": (lambda patch: masked(patch, -1), PLAIN),
    "another theta": (lambda patch: turned(patch, 1.05), EVERY),
    "another eps": (other_eps, PLAIN),
    "norm of keys dropped": (lambda patch: within(patch, "k_norm", lambda part, given, out: given[0]), ("qwen3",)),
    "norm of queries dropped": (lambda patch: within(patch, "q_norm", lambda part, given, out: given[0]), ("qwen3",)),
}


def test_some_tokens_of_a_mixture_may_go_to_other_experts_and_none_of_another_model() -> None:
    right = torch.randn(20, 8, generator=torch.Generator().manual_seed(3))
    other = [torch.cat((right[:count] + 0.5, right[count:])) for count in (3, 12)]

    def passes(computed: Tensor, *, mixed: bool) -> bool:
        apart, allowed = trial._judged([computed], [right], torch.float32, mixed=mixed)
        return apart <= allowed

    assert [passes(computed, mixed=True) for computed in other] == [True, False]
    assert not passes(other[0], mixed=False) and passes(right + 1e-5, mixed=False)
    assert not passes(right * float("nan"), mixed=True)


@pytest.mark.parametrize("name", EVERY)
def test_an_engine_that_is_right_passes_whatever_its_keys(name: str) -> None:
    """And rounded keys, which attention of Qwen2.5 would notice, are not a wrong engine."""
    model = model_named(name)
    narrow = replace(model, shape=model.shape._replace(narrow=torch.bfloat16))
    assert try_out(model, "toy", torch.float32) and try_out(narrow, "toy", torch.float32)


@pytest.mark.parametrize(
    ("fault", "name"),
    [(fault, name) for at, (fault, (_, names)) in enumerate(WRONG.items()) for name in names[at % 2 :: 2] or names],
)
def test_a_wrong_engine_is_refused_whatever_the_keys(fault: str, name: str, monkeypatch: Patch) -> None:
    model = model_named(name)
    WRONG[fault][0](monkeypatch)
    with pytest.raises(UnsupportedModel, match="toy computes something else here"):
        try_out(model, "toy", torch.float32)


# -------------------- the type of keys and values


def test_float16_is_for_keys_that_fit_and_for_these_only() -> None:
    model = model_named("llama")
    kept = trial.kv_type(model, try_out(model, "toy", torch.float32), planned=torch.float16, asked=False)
    assert kept.dtype == torch.float16 and "float16 holds 65,504" in kept.because
    assert "half the memory" in kept.because

    for layer in cast(Any, model.module).model.layers:  # large values, which bfloat16 rounds as it does small ones
        for part, factor in (("v_proj", 1e5), ("o_proj", 1e-5), ("q_proj", 0.02)):
            getattr(layer.self_attn, part).weight.data *= factor
    kept = trial.kv_type(model, try_out(model, "toy", torch.float32), planned=torch.float16, asked=False)
    assert kept.dtype == torch.bfloat16 and "float16 holds 65,504" in kept.because and "nats" in kept.because


def test_float16_has_room_for_larger_keys_than_those_of_the_trial() -> None:
    model = loaded(config=tiny_family("phi3"))
    tried = try_out(model, "toy", torch.float32)
    assert tried is not None
    kinds = []
    for largest in (65_504 / trial.SAFE - 1, 65_504 / trial.SAFE + 1):
        kept = trial.kv_type(model, tried._replace(largest=largest), planned=torch.float16, asked=True)
        kinds.append(kept.dtype)
    assert kinds == [torch.float16, torch.bfloat16]
    assert trial.kv_type(model, None, planned=torch.float16, asked=False).dtype == torch.float16


def test_rounding_that_costs_too_much_leaves_32_bits_unless_asked_for(monkeypatch: Patch) -> None:
    model = model_named("llama")
    tried = try_out(model, "toy", torch.float32)
    monkeypatch.setattr(trial, "MOST_LOSS", 0.0)
    kept = trial.kv_type(model, tried, planned=torch.float16, asked=False)
    assert kept.dtype is None and "float16 would cost" in kept.because and "bfloat16 would cost" in kept.because
    assert trial.kv_type(model, tried, planned=torch.float16, asked=True).dtype == torch.float16


def test_modules_of_programs_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(find("harbour").target)
    config = copy.deepcopy(cast(Any, tiny_config()))
    config.vocab_size = len(tokenizer)
    real = trial.forward
    monkeypatch.setattr(trial, "forward", lambda *given: -real(*given))
    with pytest.raises(UnsupportedModel, match="a trial of 20 tokens"):
        TriForce.from_modules(AutoModelForCausalLM.from_config(config), tokenizer, context=512)
