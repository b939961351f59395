"""Attention by stock operations, plain and as layers ask for it, against one explicit softmax in float64."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from core.ops import attention
from core.ops import reach as module
from core.ops.attention import attend, attend_reference, causal_bias, causal_partial, merge, partial, partial_reference
from core.ops.backend import STOCK
from core.ops.reach import Asked, Reach, attend_as, partials_as, with_sinks

SHAPES = [(4, 4, 100, 1), (4, 4, 100, 7), (8, 2, 100, 7), (8, 2, 0, 5), (4, 4, 300, 90), (8, 2, 300, 90), (4, 1, 33, 2)]
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
REACHES = [None, Reach(1), Reach(7), Reach(64), Reach(8, chunked=True), Reach(64, chunked=True)]
HEADS, TOTAL = 4, 40


def tensors(heads: int, kv_heads: int, cached: int, new: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(heads * 1000 + cached + new)
    q = torch.randn(1, heads, new, 16, generator=generator)
    k, v = torch.randn(2, 1, kv_heads, cached + new + 9, 16, generator=generator)[..., : cached + new, :]
    return q, k, v


@pytest.mark.parametrize("how", ["as chosen", "fused", "widened"])
@pytest.mark.parametrize("shape", SHAPES)
def test_attend_equals_its_slow_twin(
    shape: tuple[int, int, int, int], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float16 keys and values are widened where there is no kernel, a block at a time; sums stay float32."""
    monkeypatch.setattr(attention, "WIDENED_KEYS", 32)
    if how == "fused":
        monkeypatch.setattr(attention, "MATMUL_ROWS", 0)
    q, k, v = tensors(*shape)
    kept = (k.half(), v.half()) if how == "widened" else (k, v)
    found = attend(q, *kept, 0.3)
    assert found.dtype == torch.float32
    assert torch.allclose(found, attend_reference(q, *(rows.float() for rows in kept), 0.3), atol=2e-6)


@pytest.mark.parametrize(("heads", "kv_heads", "cached", "new"), [shape for shape in SHAPES if shape[2]])
def test_parts_have_their_log_sum_exp_and_merge_however_they_are_cut(
    heads: int, kv_heads: int, cached: int, new: int
) -> None:
    q, k, v = tensors(heads, kv_heads, cached, new)
    whole = attend_reference(q, k, v, 0.3)
    for cuts in ([0, cached], [0, 1, cached], [0, 20, 21, cached]):
        spans = [slice(*cut) for cut in pairwise(cuts)]
        parts = [partial(q, k[:, :, rows], v[:, :, rows], 0.3) for rows in spans]
        twins = [partial_reference(q, k[:, :, rows], v[:, :, rows], 0.3) for rows in spans]
        own = k[:, :, cached:], v[:, :, cached:]
        parts.append(causal_partial(q, *own, 0.3))
        twins.append(partial_reference(q, *own, 0.3, causal_bias(new, q.device)))
        for part, twin in zip(parts, twins, strict=True):
            assert torch.allclose(part.out, twin.out, atol=2e-6) and torch.allclose(part.lse, twin.lse, atol=2e-5)
        assert torch.allclose(merge(*parts), whole, atol=2e-6)
        unweighted = torch.stack([part.out for part in parts]).mean(0)
        assert not torch.allclose(unweighted, whole, atol=1e-2), "the control"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("new", "size"), list(product([1, 7], [15_000, 120_000])))
def test_scores_of_16_bits_are_not_rounded(dtype: torch.dtype, tolerance: float, size: int, new: int) -> None:
    """Near 15,000 products in float16 have steps of 8, in bfloat16 of 64; 120,000 is too large for float16."""
    generator = torch.Generator().manual_seed(0)
    q = torch.full((1, 2, new, 64), size / 64 / 6).to(dtype)
    k = (6 + 0.1 * torch.randn(1, 2, 300, 64, generator=generator)).to(dtype)
    v = torch.randn(1, 2, 300, 64, generator=generator).to(dtype)
    assert torch.allclose(attend(q, k, v, 1200 / size), attend_reference(q, k, v, 1200 / size), atol=tolerance)


# -------------------- windows, chunks, soft caps and sinks


def expected(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """Token by token, head by head."""
    found = torch.empty_like(q)
    for head, row in product(range(HEADS), range(q.shape[2])):
        token = TOTAL - q.shape[2] + row
        seen = [other for other in range(token + 1) if reached(asked.reach, token, other)]
        keys, values = (x[0, head // 2, seen].double() for x in (k, v))
        scores = 0.5 * keys @ q[0, head, row].double()
        if asked.softcap:
            scores = asked.softcap * torch.tanh(scores / asked.softcap)
        if asked.sinks is not None:
            scores = torch.cat((scores, asked.sinks[head : head + 1].double()))
        found[0, head, row] = (torch.softmax(scores, 0)[: len(seen)] @ values).float()
    return found


def reached(reach: Reach | None, token: int, other: int) -> bool:
    if reach is None:
        return True
    return other // reach.size == token // reach.size if reach.chunked else token - other < reach.size


@pytest.mark.parametrize(
    ("reach", "softcap", "sinks", "together", "new"),
    list(product(REACHES, [None, 0.7], [None, SINKS], [1, 3, 512], [1, 5, 40]))[::7],  # each with each, in pairs
)
def test_attention_as_asked_is_one_softmax_over_what_is_in_reach(
    reach: Reach | None,
    softcap: float | None,
    sinks: Tensor | None,
    together: int,
    new: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_rows_together", lambda *_: together)
    q, k, v = tensors(HEADS, 2, TOTAL - new, new)
    asked = Asked(reach, softcap, sinks)
    assert torch.allclose(attend_as(q, k, v, 0.5, asked, STOCK), expected(q, k, v, asked), atol=1e-5)


def test_rows_of_a_window_come_out_as_if_alone_and_older_keys_may_be_left_out() -> None:
    q, k, v = tensors(HEADS, 2, TOTAL - 6, 6)
    asked = Asked(Reach(7))
    together = attend_as(q, k, v, 0.5, asked, STOCK)
    for row in range(6):
        end = TOTAL - 5 + row
        alone = attend_as(q[:, :, row : row + 1], k[:, :, :end], v[:, :, :end], 0.5, asked, STOCK)
        assert torch.equal(together[:, :, row : row + 1], alone)
    short = attend_as(q, k[:, :, 20:], v[:, :, 20:], 0.5, asked, STOCK, first=20)
    assert torch.allclose(short, together, atol=1e-6)
    with pytest.raises(AssertionError, match="in the reach"):
        attend_as(q, k[:, :, 30:], v[:, :, 30:], 0.5, asked, STOCK, first=30)


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_parts_that_arrive_one_by_one_merge_with_cap_and_sinks(softcap: float | None) -> None:
    q, k, v = tensors(HEADS, 2, TOTAL - 5, 5)
    asked = Asked(None, softcap, SINKS)
    partial, causal = partials_as(asked)
    new = causal(q, k[:, :, -5:], v[:, :, -5:], 0.5)
    found, wanted = module.Partial(new.out.float(), new.lse), expected(q, k, v, asked)
    for at in range(0, 35, 7):
        assert not torch.allclose(with_sinks(found, SINKS), wanted, atol=1e-3)
        found = module.add_part(found, partial(q, k[:, :, at : at + 7], v[:, :, at : at + 7], 0.5))
    assert torch.allclose(with_sinks(found, SINKS), wanted, atol=1e-5)
