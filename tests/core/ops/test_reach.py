"""Windows, chunks, soft caps and sinks against one explicit softmax in float64."""

from itertools import product

import pytest
import torch
from torch import Tensor

from core.ops import reach as module
from core.ops.backend import STOCK
from core.ops.reach import Asked, Reach, attend_as, partials_as, with_sinks

HEADS, KV_HEADS, DIM, TOTAL = 4, 2, 8, 40
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
REACHES = [None, Reach(1), Reach(7), Reach(64), Reach(8, chunked=True), Reach(64, chunked=True)]


def rows(num_new: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(1, HEADS, num_new, DIM, generator=generator),
        torch.randn(1, KV_HEADS, TOTAL, DIM, generator=generator),
        torch.randn(1, KV_HEADS, TOTAL, DIM, generator=generator),
    )


def expected(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """Token by token, head by head."""
    found = torch.empty_like(q)
    for head in range(HEADS):
        for row in range(q.shape[2]):
            token = TOTAL - q.shape[2] + row
            seen = [other for other in range(token + 1) if reached(asked.reach, token, other)]
            keys, values = (x[0, head // (HEADS // KV_HEADS), seen].double() for x in (k, v))
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
    ("reach", "softcap", "sinks", "together", "num_new"),
    list(product(REACHES, [None, 0.7], [None, SINKS], [1, 3, 512], [1, 5, 40]))[::7],  # each with each, in pairs
)
def test_attention_as_asked_is_one_softmax_over_what_is_in_reach(
    reach: Reach | None,
    softcap: float | None,
    sinks: Tensor | None,
    together: int,
    num_new: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_rows_together", lambda *_: together)
    q, k, v = rows(num_new)
    asked = Asked(reach, softcap, sinks)
    assert torch.allclose(attend_as(q, k, v, 0.5, asked, STOCK), expected(q, k, v, asked), atol=1e-5)


def test_older_rows_may_be_left_out() -> None:
    q, k, v = rows(5)
    asked = Asked(Reach(7))
    short = attend_as(q, k[:, :, 20:], v[:, :, 20:], 0.5, asked, STOCK, first=20)
    assert torch.allclose(short, attend_as(q, k, v, 0.5, asked, STOCK), atol=1e-6)
    with pytest.raises(AssertionError, match="in the reach"):
        attend_as(q, k[:, :, 30:], v[:, :, 30:], 0.5, asked, STOCK, first=30)


def test_a_row_of_a_short_pass_comes_out_as_if_alone() -> None:
    q, k, v = rows(6)
    asked = Asked(Reach(7))
    together = attend_as(q, k, v, 0.5, asked, STOCK)
    for row in range(6):
        end = TOTAL - 5 + row
        alone = attend_as(q[:, :, row : row + 1], k[:, :, :end], v[:, :, :end], 0.5, asked, STOCK)
        assert torch.equal(together[:, :, row : row + 1], alone)


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_parts_that_arrive_one_by_one_merge_with_cap_and_sinks(softcap: float | None) -> None:
    q, k, v = rows(5)
    asked = Asked(None, softcap, SINKS)
    partial, causal = partials_as(asked)
    new = causal(q, k[:, :, -5:], v[:, :, -5:], 0.5)
    parts = [module.Partial(new.out.float(), new.lse)]
    parts += [partial(q, k[:, :, at : at + 7], v[:, :, at : at + 7], 0.5) for at in range(0, 35, 7)]
    found = with_sinks(module.add_part(parts[0], parts[1]), SINKS)
    for part in parts[2:]:
        parts[0] = module.add_part(parts[0], part)
    whole = module.add_part(parts[0], parts[1])
    assert not torch.allclose(found, expected(q, k, v, asked), atol=1e-3)
    assert torch.allclose(with_sinks(whole, SINKS), expected(q, k, v, asked), atol=1e-5)
