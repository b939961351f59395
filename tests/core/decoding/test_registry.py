"""The registry of methods: torch-free, and in step with what engine, theme and policies have."""

from pathlib import Path

import pytest

from core.decoding.registry import EXACT_METHODS, METHODS, check_method
from core.errors import InvalidSetting

ROOT = Path(__file__).parents[3]


def test_every_method_is_named_once_and_has_its_parts() -> None:
    assert all(name == method.name for name, method in METHODS.items())
    for shown in ("label", "short_label", "colour", "summary"):
        assert len({getattr(method, shown) for method in METHODS.values()}) == len(METHODS), shown
    assert {judge for method in METHODS.values() for judge in method.models} == {
        "draft",
        "retrieval",
        "full",
        "evicting",
    }
    assert all("evicting" not in METHODS[name].models for name in EXACT_METHODS)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(InvalidSetting, match="'eagle'") as caught:
        check_method("eagle")
    assert all(name in caught.value.hint for name in METHODS)
