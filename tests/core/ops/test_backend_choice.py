"""What computes attention where one is asked for."""

import sys
from typing import Any

import pytest
import torch

from app.cli.arguments import Misuse, build_parser
from app.cli.command_options import APP
from core.config import ATTENTIONS, EngineConfig
from core.errors import InvalidSetting
from core.ops.backend import choose_backend
from tests.core.toys import CPU


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


def test_the_command_line_offers_what_there_is() -> None:
    with pytest.raises(Misuse) as wrong:
        build_parser(APP, {}).parse_args(["--attention", "fast"])
    assert all(name in str(wrong.value) for name in ATTENTIONS)
