"""What computes attention: the choice, and flash-attn with a package that computes the same, on a GPU the real one."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.config import EngineConfig
from core.errors import InvalidSetting
from core.ops import backend as backends
from core.ops.attention import attend_reference, causal_bias, merge, partial_reference
from core.ops.backend import choose_backend, choose_flash
from core.ops.flash import FlashAttention, flash_attention
from core.ops.kernel_build import NoKernel
from tests.core.toys import CPU

HALF = torch.bfloat16


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    return_attn_probs: bool,
) -> tuple[Tensor, Tensor, None]:
    """flash-attn 2's call, q: [B, T, H, D], k, v: [B, S, H_kv, D]; causal from the end of the keys on (since 2.1)."""
    assert return_attn_probs and all(x.stride(-1) == 1 for x in (q, k, v))
    num_new, total = q.shape[1], k.shape[1]
    bias = torch.nn.functional.pad(causal_bias(num_new, q.device), (total - num_new, 0)) if causal else None
    out, lse = partial_reference(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale, bias)
    return out.transpose(1, 2), lse, None


def upper_left(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **rest: object) -> tuple[Tensor, Tensor, None]:
    """As before 2.1: causal from the beginning of the keys on."""
    shown = k[:, : q.shape[1]], v[:, : q.shape[1]]
    return flash_attn_func(q, *(shown if causal else (k, v)), causal=causal, **rest)  # type: ignore[arg-type]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    fake = SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn", fake)  # type: ignore[arg-type]
    yield fake


def tensors(num_new: int, total: int, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, num_new, 4, 16, generator=generator).to(HALF).transpose(1, 2)  # as models hand it over
    k, v = torch.randn(2, 1, kv_heads, total + 9, 16, generator=generator).to(HALF)[..., :total, :]
    return q, k, v


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("num_new", "total"), [(1, 1), (1, 40), (7, 7), (7, 300)])
def test_it_equals_the_slow_twin(package: SimpleNamespace, num_new: int, total: int, kv_heads: int) -> None:
    q, k, v = tensors(num_new, total, kv_heads)
    found = flash_attention(CPU, HALF)(q, k, v, 0.25)
    assert found.shape == q.shape and torch.allclose(found.float(), attend_reference(q, k, v, 0.25).float(), atol=1e-2)


def test_its_parts_merge_by_log_sum_exp(package: SimpleNamespace) -> None:
    kernel = flash_attention(CPU, HALF)
    q, k, v = tensors(5, 200)
    parts = [kernel.partial(q, k[:, :, rows], v[:, :, rows], 0.25) for rows in (slice(0, 64), slice(64, 200))]
    whole = partial_reference(q, k, v, 0.25)
    assert torch.allclose(merge(*parts).float(), whole.out.float(), atol=1e-2)
    assert torch.allclose(torch.logaddexp(parts[0].lse, parts[1].lse), whole.lse, atol=1e-3)


def test_single_precision_goes_through_stock_operations(package: SimpleNamespace) -> None:
    package.flash_attn_func = None
    q, k, v = (x.float() for x in tensors(3, 50))
    kernel = FlashAttention(package)
    assert torch.allclose(kernel(q, k, v, 0.25), attend_reference(q, k, v, 0.25), atol=1e-5)
    assert torch.allclose(kernel.partial(q, k, v, 0.25).lse, partial_reference(q, k, v, 0.25).lse, atol=1e-5)


def test_a_package_that_masks_from_the_other_end_is_not_used(package: SimpleNamespace) -> None:
    package.flash_attn_func = upper_left
    assert choose_flash(CPU, HALF).because == "flash-attn gives wrong results on this GPU"


def test_a_package_that_does_not_run_here_is_not_used(package: SimpleNamespace) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore")

    package.flash_attn_func = fails
    found = choose_flash(CPU, HALF)
    assert found.name == "torch" and found.because.endswith("only supports Ampere GPUs or newer.")


def test_without_the_package_stock_operations_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(NoKernel):
        flash_attention(CPU, HALF)
    assert choose_flash(CPU, HALF).because == "flash-attn is not installed"
    assert choose_flash(CPU, torch.float32).because == "flash-attn computes in 16 bit only"


@pytest.mark.parametrize(("seconds", "name"), [((2.0, 1.0), "flash-attn"), ((1.0, 2.0), "torch")])
def test_the_faster_one_is_chosen_and_says_why(
    package: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], name: str
) -> None:
    monkeypatch.setattr(backends, "_seconds", lambda *_: list(seconds))
    found = choose_flash(CPU, HALF)
    assert found.name == name and f"{seconds[0] / seconds[1]:.1f}x the speed of torch's" in found.because


def test_what_is_asked_for_says_so() -> None:
    assert choose_backend(CPU, torch.float32, "torch").because == "asked for"


@pytest.mark.parametrize(
    ("wish", "why"), [("compiled", "float32 on a processor only"), ("flash-attn", "not installed")]
)
def test_what_cannot_be_had_is_refused_with_an_action(wish: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(InvalidSetting, match=f"--attention {wish} is not usable here: .*{why}") as error:
        choose_backend(CPU, torch.bfloat16, wish)
    assert "Leave it out" in error.value.hint
    with pytest.raises(InvalidSetting, match="--attention fast is unknown"):
        EngineConfig(attention="fast")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_choice_on_a_gpu_computes_what_the_slow_twin_does(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    chosen = choose_backend(device, dtype)
    q, k, v = (x.to(device, dtype) for x in tensors(5, 700))
    assert torch.allclose(chosen.attend(q, k, v, 0.25).float(), attend_reference(q, k, v, 0.25).float(), atol=2e-2)
    found, expected = chosen.partial(q, k, v, 0.25), partial_reference(q, k, v, 0.25)
    assert torch.allclose(found.lse, expected.lse, atol=1e-2) and chosen.because
