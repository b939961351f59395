"""Attention to blocks in host memory against float64 matmuls, in every number format that a device computes in."""

import pytest
import torch
from torch import Tensor

from core.ops import host_attention
from core.ops.attention import Partial, partial_reference
from core.ops.host_attention import HostAttention, attend_blocks
from core.ops.kernel_build import NoKernel
from core.ops.native import KEPT_AS, SmallRows, small_rows
from core.ops.reach import softcapped
from tests.core.toys import CPU


@pytest.fixture(scope="module")
def kernel() -> SmallRows:
    try:
        return small_rows()
    except NoKernel as reason:
        pytest.skip(f"no kernel here: {reason}")


def made(
    heads: int, kv_heads: int, rows: int, dtype: torch.dtype, *, dim: int = 16, blocks: int = 5, size: int = 96
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    q = torch.randn(1, rows, heads, dim, generator=generator).to(dtype).transpose(1, 2)  # as models hand it over
    return q, torch.randn(blocks, 2, kv_heads, size, dim, generator=generator).to(dtype)


def whole(q: Tensor, blocks: Tensor, softcap: float | None = None) -> Partial:
    k, v = blocks.double().permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None]  # each [1, H_kv, N * R, D]
    if softcap is None:
        return partial_reference(q.float(), k, v, 0.3)
    return softcapped(q, k, v, 0.3, softcap, causal=False)


def alike(found: Partial, expected: Partial) -> bool:
    assert found.out.dtype == found.lse.dtype == torch.float32
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))


def by_kernel(kernel: SmallRows, q: Tensor, blocks: Tensor, softcap: float | None = None, threads: int = 2) -> Partial:
    into = Partial(torch.full(q.shape, torch.nan), torch.full(q.shape[:3], torch.nan))
    kernel.blocks(q.float().contiguous(), blocks, 0.3, into, softcap, threads)
    return into


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", KEPT_AS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
@pytest.mark.parametrize("rows", [1, 9])
def test_blocks_where_they_lie_equal_one_long_row_of_keys(
    dtype: torch.dtype, heads: int, kv_heads: int, rows: int, softcap: float | None
) -> None:
    """Rows of 16 bits are computed with in float32: no more is lost than in the sum itself."""
    q, blocks = made(heads, kv_heads, rows, dtype)
    assert alike(attend_blocks(q.float(), blocks, 0.3, softcap), whole(q, blocks, softcap))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", KEPT_AS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "size"), [(4, 4, 128, 64), (8, 2, 72, 96), (16, 1, 16, 512)])
@pytest.mark.parametrize("blocks", [1, 8, 19])
def test_the_kernel_attends_to_blocks_as_float64_does(
    kernel: SmallRows, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, size: int, blocks: int,
    softcap: float | None,
) -> None:  # fmt: skip
    """Blocks that fill tasks and not, rows in one group and, 64 of 16 heads of one group, in several."""
    for rows in (1, 9, 64):
        q, rows_of_host = made(heads, kv_heads, rows, dtype, dim=dim, blocks=blocks, size=size)
        found = by_kernel(kernel, q, rows_of_host, softcap)
        assert alike(found, whole(q, rows_of_host, softcap)), rows


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", KEPT_AS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (16, 1)])
def test_a_row_comes_out_to_the_last_bit_whatever_rows_and_threads_there_are(
    kernel: SmallRows, dtype: torch.dtype, heads: int, kv_heads: int, softcap: float | None
) -> None:
    q, blocks = made(heads, kv_heads, 30, dtype, dim=64, blocks=11)
    alone = [by_kernel(kernel, q[:, :, row : row + 1], blocks, softcap, threads=1) for row in range(30)]
    for count, threads in ((30, 1), (30, 3), (25, 2), (9, 16)):
        found = by_kernel(kernel, q[:, :, :count], blocks, softcap, threads)
        for row in range(count):
            assert torch.equal(found.out[:, :, row], alone[row].out[:, :, 0])
            assert torch.equal(found.lse[..., row], alone[row].lse[..., 0])


def test_a_lost_or_doubled_block_would_be_noticed(kernel: SmallRows) -> None:
    """Negative control."""
    q, blocks = made(4, 2, 9, torch.float16, blocks=9)
    expected = whole(q, blocks)
    assert alike(by_kernel(kernel, q, blocks), expected)
    for wrong in (blocks[1:], torch.cat((blocks, blocks[:1])), blocks.flip(1)):
        assert not alike(by_kernel(kernel, q, wrong.contiguous()), expected)


@pytest.mark.parametrize("compiled", [True, False])
def test_one_thread_answers_one_question_after_the_other(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(host_attention, "_kernel", lambda: None)
    helper = HostAttention(8, 16, 9, CPU)
    for dtype in KEPT_AS:
        for rows in (9, 1, 5):
            q, blocks = made(8, 2, rows, dtype)
            for part, softcap in ((blocks[:1], None), (blocks, None), (blocks, 2.0)):
                helper.ask(q, part, 0.3, softcap)
                assert alike(helper.answer(), whole(q, part, softcap))
    with pytest.raises(AssertionError, match="nothing was asked"):
        helper.answer()


def test_heads_that_the_kernel_does_not_take_are_attended_to_without_it() -> None:
    helper, (q, blocks) = HostAttention(4, 12, 3, CPU), made(4, 2, 3, torch.float16, dim=12)
    helper.ask(q, blocks, 0.3)
    assert alike(helper.answer(), whole(q, blocks))
