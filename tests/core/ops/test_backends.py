"""What computes attention: the choice, and flash-attn with a package that computes the same, on a GPU the real one."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.config import EngineConfig
from core.errors import InvalidSetting
from core.ops import backend as backends
from core.ops import kernel_build
from core.ops.attention import attend, attend_reference, causal_bias, merge, partial_reference
from core.ops.backend import FlashAttention, choose_backend, fastest
from core.ops.native import SmallRows
from tests.core.toys import CPU

HALF = torch.bfloat16


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool, return_attn_probs: bool
) -> tuple[Tensor, Tensor, None]:
    """flash-attn 2's call, q: [B, T, H, D], k, v: [B, S, H_kv, D]; causal from the end of the keys on (since 2.1)."""
    assert return_attn_probs and all(x.stride(-1) == 1 for x in (q, k, v))
    num_new, total = q.shape[1], k.shape[1]
    bias = torch.nn.functional.pad(causal_bias(num_new, q.device), (total - num_new, 0)) if causal else None
    out, lse = partial_reference(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale, bias)
    return out.transpose(1, 2), lse, None


def upper_left(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **rest: Any) -> tuple[Tensor, Tensor, None]:
    """As before 2.1: causal from the beginning of the keys on."""
    shown = k[:, : q.shape[1]], v[:, : q.shape[1]]
    return flash_attn_func(q, *(shown if causal else (k, v)), causal=causal, **rest)


def too_old(*_: object, **__: object) -> None:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore")


def tensors(num_new: int, total: int, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, num_new, 4, 16, generator=generator).to(HALF).transpose(1, 2)  # as models hand it over
    k, v = torch.randn(2, 1, kv_heads, total + 9, 16, generator=generator).to(HALF)[..., :total, :]
    return q, k, v


@pytest.mark.parametrize("dtype", [HALF, torch.float32])  # single precision goes through stock operations
@pytest.mark.parametrize(("num_new", "total", "kv_heads"), [(1, 1, 4), (1, 40, 2), (7, 7, 1), (7, 300, 2), (5, 200, 4)])
def test_it_equals_the_slow_twin_and_its_parts_merge(
    num_new: int, total: int, kv_heads: int, dtype: torch.dtype
) -> None:
    q, k, v = (x.to(dtype) for x in tensors(num_new, total, kv_heads))
    kernel = FlashAttention(SimpleNamespace(flash_attn_func=flash_attn_func if dtype == HALF else None))
    found, off = kernel(q, k, v, 0.25), 1e-2 if dtype == HALF else 1e-5
    assert found.shape == q.shape and torch.allclose(found.float(), attend_reference(q, k, v, 0.25).float(), atol=off)
    if total > 64:
        parts = [kernel.partial(q, k[:, :, rows], v[:, :, rows], 0.25) for rows in (slice(0, 64), slice(64, total))]
        whole = partial_reference(q, k, v, 0.25)
        assert torch.allclose(merge(*parts).float(), whole.out.float(), atol=off)
        assert torch.allclose(torch.logaddexp(parts[0].lse, parts[1].lse), whole.lse, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "dtype", "seconds", "name", "because"),
    [
        (flash_attn_func, HALF, [2.0, 1.0], "flash-attn", "2.0x the speed of torch's"),
        (flash_attn_func, HALF, [1.0, 2.0], "torch", "0.5x the speed of torch's"),
        (flash_attn_func, torch.float32, [2.0, 1.0], "torch", "flash-attn computes in 16 bit only"),
        (upper_left, HALF, [2.0, 1.0], "torch", "flash-attn gives wrong results on this GPU"),
        (too_old, HALF, [2.0, 1.0], "torch", "does not run here: FlashAttention only supports Ampere GPUs or newer."),
        (None, HALF, [2.0, 1.0], "torch", "flash-attn is not installed"),
    ],
)
def test_the_package_is_used_where_it_is_right_and_faster(
    call: Any, dtype: torch.dtype, seconds: list[float], name: str, because: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", call and SimpleNamespace(flash_attn_func=call))
    monkeypatch.setattr(backends, "_seconds", lambda *_: seconds)
    found = fastest("flash-attn", CPU, dtype)
    assert found.name == name and because in found.because and "\n" not in found.because


@pytest.mark.parametrize(
    ("wish", "why"), [("compiled", "float32 on a processor only"), ("flash-attn", "not installed")]
)
def test_a_wish_is_met_or_refused_with_an_action(wish: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(CPU, torch.float32, "torch").because == "asked for"
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(InvalidSetting, match=f"--attention {wish} is not usable here: .*{why}") as error:
        choose_backend(CPU, HALF, wish)
    assert "Leave it out" in error.value.hint
    with pytest.raises(InvalidSetting, match="--attention fast is unknown"):
        EngineConfig(attention="fast")


def test_only_float32_on_a_processor_with_a_compiler_gets_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(CPU, HALF).name == choose_backend(torch.device("cuda"), torch.float32).name == "torch"
    monkeypatch.setattr(kernel_build, "find_compiler", lambda: None)
    chosen = choose_backend(CPU, torch.float32)
    assert (chosen.name, chosen.attend) == ("torch", attend)
    assert "no C++ compiler: " in chosen.because and "requirements-compiler.lock" in chosen.because


def test_the_kernel_serves_where_it_is_faster(kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long passes are measured apart."""
    q, k, v = torch.randn(1, 4, 40, 64), *torch.randn(2, 1, 2, 340, 64)
    assert not torch.equal(kernel(q, k, v, 0.3), attend(q, k, v, 0.3)), "the comparison sees nothing"
    for stock_seconds, serves in ((0.001, False), (0.003, True)):
        monkeypatch.setattr(backends, "_seconds", lambda *_, stock=stock_seconds: [stock, 0.002])
        chosen = choose_backend(CPU, torch.float32)
        assert (chosen.attend is not attend) == serves and f"{stock_seconds / 0.002:.1f}x" in chosen.because
        named = backends.backend_named("compiled", CPU, torch.float32)
        assert torch.equal(named.attend(q, k, v, 0.3), (kernel if serves else attend)(q, k, v, 0.3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_choice_on_a_gpu_computes_what_the_slow_twin_does(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    chosen = choose_backend(device, dtype)
    q, k, v = (x.to(device, dtype) for x in tensors(5, 700))
    assert torch.allclose(chosen.attend(q, k, v, 0.25).float(), attend_reference(q, k, v, 0.25).float(), atol=2e-2)
    found, expected = chosen.partial(q, k, v, 0.25), partial_reference(q, k, v, 0.25)
    assert torch.allclose(found.lse, expected.lse, atol=1e-2) and chosen.because
