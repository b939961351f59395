"""What computes attention: the choice."""

import pytest
import torch

from core.config import EngineConfig
from core.errors import InvalidSetting
from core.ops import backend as backends
from core.ops import kernel_build
from core.ops.attention import attend
from core.ops.backend import choose_backend
from core.ops.native import SmallRows
from tests.core.toys import CPU

HALF = torch.bfloat16


def test_a_wish_is_met_or_refused_with_an_action() -> None:
    assert choose_backend(CPU, torch.float32, "torch").because == "asked for"
    with pytest.raises(InvalidSetting, match=r"compiled is not usable here: .*float32 on a processor") as error:
        choose_backend(CPU, HALF, "compiled")
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
