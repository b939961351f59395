"""FlexAttention as a backend: interpreted on a processor, on a GPU the compiled kernel."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention as interpreted

from app.cli.arguments import Misuse, build_parser
from core.config import ATTENTIONS, EngineConfig
from core.errors import InvalidSetting
from core.ops import backend as backends
from core.ops.attention import attend_reference, merge, partial_reference
from core.ops.backend import backend_named, choose_backend
from core.ops.flex import FlexAttention, check
from core.ops.kernel_build import NoKernel
from tests.core.toys import CPU

uncompiled = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")


def tensors(num_new: int, total: int, kv_heads: int = 2, dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, num_new, 4, dim, generator=generator).transpose(1, 2)  # as models hand it over
    k, v = torch.randn(2, 1, kv_heads, total + 9, dim, generator=generator)[..., :total, :]
    return q, k, v


@uncompiled
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    ("num_new", "total", "dim"), [(1, 1, 16), (1, 40, 32), (7, 7, 16), (7, 300, 16), (150, 170, 16)]
)
def test_it_equals_the_slow_twin(num_new: int, total: int, dim: int, kv_heads: int) -> None:
    q, k, v = tensors(num_new, total, kv_heads, dim)
    found = FlexAttention(interpreted)(q, k, v, 0.25)
    assert found.shape == q.shape and torch.allclose(found, attend_reference(q, k, v, 0.25), atol=1e-5)


@uncompiled
def test_its_parts_merge_by_log_sum_exp() -> None:
    kernel = FlexAttention(interpreted)
    q, k, v = tensors(5, 200)
    parts = [kernel.partial(q, k[:, :, rows], v[:, :, rows], 0.25) for rows in (slice(0, 64), slice(64, 200))]
    whole = partial_reference(q, k, v, 0.25)
    assert torch.allclose(merge(*parts), whole.out, atol=1e-5)
    assert torch.allclose(torch.logaddexp(parts[0].lse, parts[1].lse), whole.lse, atol=1e-5)


def test_heads_of_odd_sizes_and_prompts_go_through_stock_operations() -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("asked")

    kernel = FlexAttention(never)
    for q, k, v in (tensors(3, 50, dim=24), tensors(129, 200, kv_heads=4)):
        assert torch.allclose(kernel(q, k, v, 0.25), attend_reference(q, k, v, 0.25), atol=1e-5)


@uncompiled
def test_a_kernel_that_computes_something_else_is_not_used() -> None:
    def shifted(*args: Any, **options: Any) -> Any:
        out, aux = interpreted(*args, **options)
        return out + 0.01, aux

    check(FlexAttention(interpreted), CPU, torch.float32)
    with pytest.raises(NoKernel, match="wrong results"):
        check(FlexAttention(shifted), CPU, torch.float32)


def test_a_compiler_that_fails_is_named_in_one_line() -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no tool chain\nand a long log")

    with pytest.raises(NoKernel) as error:
        check(FlexAttention(fails), CPU, torch.float32)
    assert "RuntimeError: no tool chain)" in str(error.value) and "\n" not in str(error.value)


@uncompiled
def test_what_is_asked_for_is_taken_and_says_how_fast_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "flex_attention", lambda *_: FlexAttention(interpreted))
    monkeypatch.setattr(backends, "_seconds", lambda *_: [1.0, 2.0])
    chosen = choose_backend(CPU, torch.float32, "flex")
    assert chosen.name == "flex" and chosen.because == "asked for: 0.5x the speed of torch's for 9 rows, measured"
    part = chosen.partial(*tensors(2, 300), 0.25)
    assert torch.allclose(part.lse, partial_reference(*tensors(2, 300), 0.25).lse, atol=1e-5)
    assert choose_backend(CPU, torch.float32, "torch").because == "asked for"


@pytest.mark.parametrize(
    ("wish", "why"),
    [("compiled", "float32 on a processor only"), ("flash-attn", "not installed"), ("flex", "GPUs only")],
)
def test_what_cannot_be_had_is_refused_with_an_action(wish: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(InvalidSetting, match=f"--attention {wish} is not usable here: .*{why}") as error:
        choose_backend(CPU, torch.bfloat16, wish)
    assert "Leave it out" in error.value.hint
    with pytest.raises(InvalidSetting, match="--attention fast is unknown"):
        EngineConfig(attention="fast")  # type: ignore[arg-type]


def test_the_command_line_offers_what_there_is() -> None:
    with pytest.raises(Misuse) as wrong:
        build_parser().parse_args(["--attention", "fast"])
    said = str(wrong.value)
    assert all(name in said for name in ATTENTIONS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_on_a_gpu_it_computes_what_the_slow_twin_does(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    chosen = backend_named("flex", device, dtype)
    for num_new, total in ((1, 700), (9, 4096)):
        q, k, v = (x.to(device, dtype) for x in tensors(num_new, total, dim=64))
        with torch.inference_mode():
            found, expected = chosen.partial(q, k, v, 0.125), partial_reference(q, k, v, 0.125)
            assert torch.allclose(chosen.attend(q, k, v, 0.125), attend_reference(q, k, v, 0.125), atol=2e-2)
        assert torch.allclose(found.lse, expected.lse, atol=1e-2)
