"""Self-draft weights: the kernel is its slow twin, full passes know nothing of them, texts are the target's."""

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from core.caches.full import FullCache
from core.caches.tokens import Context
from core.config import EngineConfig
from core.engine import Engine
from core.errors import CoreError, InvalidSetting, NotEnoughMemory, UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.hub.catalog import ROOT
from core.models.linear import PackedLinear, exact_products, pack, places
from core.models.self_draft import (
    COMPUTED,
    GROUP,
    STORED_BITS,
    SelfDraftLinear,
    round_to_levels,
    self_draft_bytes,
    self_draft_of,
    widened,
)
from core.ops.native import SmallRows
from core.ops.stored_blocks import rounded
from tests.core.toys import CPU, answer, loaded, random_prompt, tiny_config, tiny_engine, tiny_model

# -------------------- the kernel


def reference(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """The slow twin: the weights widened, activations as the kernel gets them, all in float32."""
    more = -weight.shape[1] % GROUP
    exact = widened(round_to_levels(functional.pad(weight, (0, more))))[:, : weight.shape[1]]
    out = x.to(COMPUTED).float() @ exact.T
    return out if bias is None else out + bias.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 64), (33, 100), (5, 7), (130, 65)])
def test_the_kernel_multiplies_as_the_slow_twin_does(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, bias=outputs % 2 == 0, dtype=dtype).requires_grad_(False)
    layer = SelfDraftLinear(linear.weight, linear.bias, CPU)
    wide = functional.pad(linear.weight.float(), (0, -inputs % GROUP))
    off, groups = widened(round_to_levels(wide)) - wide, wide.view(outputs, -1, GROUP)
    steps = (groups.amax(-1) - groups.amin(-1)) / 15  # rounded to the nearest, with scales and offsets in bfloat16
    assert (off.view_as(groups).abs().amax(-1) <= 0.52 * steps + 0.01 * groups.abs().amax(-1)).all()
    for rows in (1, 3, 9):
        x = torch.randn(1, rows, inputs).to(dtype)
        found, expected = layer(x), reference(linear.weight, linear.bias, x)
        assert found.dtype == dtype and found.shape == (1, rows, outputs)
        assert (found.float() - expected).norm() < 0.006 * expected.norm()  # the result is rounded to bfloat16: 2^-9
        swapped = reference(linear.weight.roll(1, 1), linear.bias, x)
        assert (found.float() - swapped).norm() > 0.1 * expected.norm(), "a wrong order must be noticed"


# -------------------- the twin


def test_a_twin_shares_all_but_the_linear_layers_and_changes_nothing() -> None:
    model = tiny_model(tiny_config("qwen2"), 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = self_draft_of(model, CPU)
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert not any(isinstance(part, SelfDraftLinear) for part in model.modules())
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kinds = {name: type(part) for name, part in twin.named_modules()}
    assert kinds["lm_head"] is SelfDraftLinear and kinds["model.layers.1.mlp.down_proj"] is SelfDraftLinear
    for name, parameter in twin.named_parameters():
        assert (parameter.data_ptr() in own) != name.endswith(("packed", "scales")), name
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    parameters = sum(part.weight.numel() for part in linear)  # 64 columns and 96, which are padded to 128
    assert STORED_BITS / 8 <= self_draft_bytes(twin, model) / parameters < 1.2 * STORED_BITS / 8


def test_layers_of_the_kernel_get_a_twin_in_blocks_of_4_bits(kernel: SmallRows) -> None:
    config = tiny_config("qwen2")
    model, slow, shape = tiny_model(config, 3), tiny_model(config, 3), loaded(config, 3).shape
    for part in (*model.modules(), *slow.modules()):
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.data += 0.3
    for part in slow.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = rounded(part.weight, "Q4_1").widened()
    for together in places(model):
        pack(together, kernel)
    twin = self_draft_of(model, CPU)
    linear = [part for part in twin.modules() if isinstance(part, PackedLinear)]
    assert {part.stored and part.stored.kind for part in linear} == {"Q4_1"}
    assert self_draft_bytes(twin, model) == sum(part.packed.nbytes for part in linear)
    assert not any(part.stored for part in model.modules() if isinstance(part, PackedLinear)), "the model stays"
    with exact_products(twin):
        judges = [CachedModel("4", one, FullCache(shape, 64, 8), CPU) for one in (slow, twin, model)]
        wanted, found, other = (judge.feed(Context(list(range(5))), range(5), 5) for judge in judges)
    assert torch.allclose(found, wanted, atol=1e-5) and not torch.allclose(found, other, atol=1e-3)


# -------------------- engines


def test_only_passes_over_the_retrieval_cache_use_them_and_what_they_compute_is_kept_nowhere() -> None:
    """Their keys and values are off by percents: after a round all caches have the full pass's."""
    plain, engine = tiny_engine(), tiny_engine(self_draft=True)
    levels, parts, target = engine._levels, engine._levels.parts, engine._models.target.module
    assert parts.full.module is target and parts.evicting("h2o").module is target
    assert any(isinstance(part, SelfDraftLinear) for part in parts.retrieval.module.modules())
    asked = random_prompt(300)
    assert answer(plain, asked, "autoregressive").token_ids == answer(engine, asked, "triforce").token_ids
    assert engine.info.self_draft_weight_bytes > 0 == plain.info.self_draft_weight_bytes
    context, length, logits = Context([*engine.held_tokens, 5, 6, 7]), levels.full.length, []
    for one in (plain, engine):
        one._levels.retrieval.select()
        logits.append(one._levels.parts.retrieval.logits(context, 3))
    assert not torch.allclose(*logits, atol=0.05)
    retrieval, caches = levels.retrieval, (levels.full, plain._levels.full)
    assert [cache.length for cache in caches] == [length] * 2
    synced, start, at = retrieval._synced, retrieval._recent_start, retrieval._first_recent
    assert synced > 300  # rows of the answer are among them
    for layer in range(2):
        for mine, theirs in zip(*(cache.rows(layer, 0, length) for cache in caches), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-4)
        recent = retrieval.k[layer][0, :, at : at + synced - start]
        assert torch.equal(recent, levels.full.rows(layer, start, synced)[0])


# -------------------- the bundled pair


def test_the_bundled_pair_writes_what_it_writes_without_them() -> None:
    engines = [Engine.load(EngineConfig(context=2048, device="cpu", self_draft_bits=bits)) for bits in (16, 4)]
    planned = {row.name: row.size_bytes for row in engines[1].plan.rows}
    assert planned["self-draft weights, 4 bit"] == pytest.approx(engines[1].info.self_draft_weight_bytes, rel=0.2)
    text = (ROOT / "assets" / "books" / "harbour-32k.txt").read_text(encoding="utf-8")[:9000]
    prompt = engines[0].text.encode(text)[:500]
    plain, fast = (
        answer(engine, prompt, m, 12) for engine, m in zip(engines, ("autoregressive", "triforce"), strict=True)
    )
    assert fast.token_ids == plain.token_ids and fast.stats.full_passes < plain.stats.full_passes


# -------------------- refusals


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (RuntimeError("no build.\nlong story"), UnsupportedModel, "no 4-bit kernel for the cpu device: no build"),
        (torch.OutOfMemoryError("injected"), NotEnoughMemory, "do not fit"),
        (None, InvalidSetting, r"8\.0, this one has 7\.5"),  # an old GPU
    ],
)
def test_a_device_that_cannot_is_refused_with_an_action(
    error: Exception | None, kind: type[CoreError], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SelfDraftLinear, "_pack", Mock(side_effect=error))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(kind, match=told) as caught:
        self_draft_of(tiny_model(tiny_config(), 3), CPU if error else torch.device("cuda"))
    assert "--self-draft-bits" in caught.value.hint and "\n" not in str(caught.value)
