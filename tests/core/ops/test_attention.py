import itertools

import pytest
import torch

from core.ops import attention
from core.ops.attention import attend, attend_reference, causal_bias, causal_partial, merge, partial, partial_reference

SHAPES = [(4, 4, 100, 1), (4, 4, 100, 7), (8, 2, 100, 7), (8, 2, 0, 5), (4, 4, 300, 90), (8, 2, 300, 90), (4, 1, 33, 2)]


def tensors(heads: int, kv_heads: int, cached: int, new: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(heads * 1000 + cached + new)
    q = torch.randn(1, heads, new, 16, generator=generator)
    k, v = torch.randn(2, 1, kv_heads, cached + new + 9, 16, generator=generator)[..., : cached + new, :]
    return q, k, v


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_attend_equals_its_slow_twin(
    shape: tuple[int, int, int, int], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fused:
        monkeypatch.setattr(attention, "MATMUL_ROWS", 0)
    q, k, v = tensors(*shape)
    assert torch.allclose(attend(q, k, v, 0.3), attend_reference(q, k, v, 0.3), atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_float16_keys_and_values_are_widened_block_by_block(
    shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no kernel: sums stay float32, and no more than a block is widened at a time."""
    monkeypatch.setattr(attention, "WIDENED_KEYS", 32)
    q, k, v = tensors(*shape)
    found = attend(q, k.half(), v.half(), 0.3)
    assert found.dtype == torch.float32
    assert torch.allclose(found, attend_reference(q, k.half().float(), v.half().float(), 0.3), atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_partials_return_their_log_sum_exp(shape: tuple[int, int, int, int]) -> None:
    heads, kv_heads, _, new = shape
    q, k, v = tensors(heads, kv_heads, 64, new)
    for part, twin in (
        (partial(q, k[:, :, :64], v[:, :, :64], 0.3), partial_reference(q, k[:, :, :64], v[:, :, :64], 0.3)),
        (
            causal_partial(q, k[:, :, 64:], v[:, :, 64:], 0.3),
            partial_reference(q, k[:, :, 64:], v[:, :, 64:], 0.3, causal_bias(new, q.device)),
        ),
    ):
        assert torch.allclose(part.out, twin.out, atol=2e-6)
        assert torch.allclose(part.lse, twin.lse, atol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("product", [15_000, 120_000])
@pytest.mark.parametrize("new", [1, 7])
def test_scores_of_16_bits_are_not_rounded(dtype: torch.dtype, tolerance: float, product: int, new: int) -> None:
    """Near 15,000 products in float16 have steps of 8, in bfloat16 of 64; 120,000 is too large for float16."""
    generator = torch.Generator().manual_seed(0)
    q = torch.full((1, 2, new, 64), product / 64 / 6).to(dtype)
    k = (6 + 0.1 * torch.randn(1, 2, 300, 64, generator=generator)).to(dtype)
    v = torch.randn(1, 2, 300, 64, generator=generator).to(dtype)
    scaling = 1200 / product
    assert torch.allclose(attend(q, k, v, scaling), attend_reference(q, k, v, scaling), atol=tolerance)


def test_parts_merge_into_the_whole_however_they_are_cut() -> None:
    q, k, v = tensors(4, 4, 96, 3)
    whole = partial(q, k, v, 0.3).out
    for cuts in ([0, 99], [0, 1, 99], [0, 40, 41, 99], [0, 33, 66, 99]):
        parts = [partial(q, k[:, :, a:b], v[:, :, a:b], 0.3) for a, b in itertools.pairwise(cuts)]
        assert torch.allclose(merge(*parts), whole, atol=1e-6)


def test_merging_without_the_weights_would_be_noticed() -> None:
    """Negative control: the plain mean of two parts is far from the whole."""
    q, k, v = tensors(4, 4, 96, 3)
    a, b = partial(q, k[:, :, :10], v[:, :, :10], 0.3), partial(q, k[:, :, 10:], v[:, :, 10:], 0.3)
    assert not torch.allclose((a.out + b.out) / 2, partial(q, k, v, 0.3).out, atol=1e-2)
