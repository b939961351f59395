"""Attention to blocks in host memory against float64 matmuls, in every number format that a device computes in."""

import pytest
import torch

from core.ops import host_attention
from core.ops.attention import Partial, partial_reference
from core.ops.host_attention import HostAttention, attend_blocks
from tests.core.toys import CPU


def made(heads: int, kv_heads: int, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    q = torch.randn(1, rows, heads, 16, generator=generator).to(dtype).transpose(1, 2)  # as models hand it over
    return q, torch.randn(5, 2, kv_heads, 96, 16, generator=generator).to(dtype)


def whole(q: torch.Tensor, blocks: torch.Tensor) -> Partial:
    k, v = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None]  # each [1, H_kv, N * R, D]
    return partial_reference(q.float(), k.float(), v.float(), 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
@pytest.mark.parametrize("rows", [1, 9])
def test_blocks_where_they_lie_equal_one_long_row_of_keys(
    dtype: torch.dtype, heads: int, kv_heads: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 16 bits are computed with in float32: no more is lost than in the sum itself."""
    monkeypatch.setattr(host_attention, "TILE_BYTES", 1)  # so that the least tile cuts blocks
    q, blocks = made(heads, kv_heads, rows, dtype)
    found, expected = attend_blocks(q, blocks, 0.3), whole(q, blocks)
    assert found.out.dtype == found.lse.dtype == torch.float32
    assert torch.allclose(found.out, expected.out, atol=1e-5) and torch.allclose(found.lse, expected.lse, atol=1e-5)


def test_one_thread_answers_one_question_after_the_other() -> None:
    helper = HostAttention(8, 16, 9, torch.float32, CPU)
    for rows in (9, 1, 5):
        q, blocks = made(8, 2, rows, torch.float32)
        for part in (blocks[:1], blocks):
            helper.ask(q, part, 0.3)
            assert torch.allclose(helper.answer().out, whole(q, part).out, atol=1e-5)
    with pytest.raises(AssertionError, match="nothing was asked"):
        helper.answer()
