"""The registry of methods: torch-free, and in step with what engine, theme and policies have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.caches.policies import LOSSY_POLICIES
from core.config import GenerationConfig
from core.decoding.registry import (
    COMPARED,
    EXACT_METHODS,
    FASTEST,
    LOSSY_METHODS,
    METHODS,
    PLAIN,
    check_method,
    default_method,
    is_exact,
    methods_for,
)
from core.errors import InvalidSetting

ROOT = Path(__file__).parents[3]


def test_it_is_read_without_torch() -> None:
    """The page and the command line show methods before an engine is loaded."""
    code = "import sys, core.decoding.registry; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


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


def test_what_drops_part_of_the_book_says_what_it_keeps() -> None:
    assert set(LOSSY_METHODS) == set(LOSSY_POLICIES) and set(METHODS) == {*EXACT_METHODS, *LOSSY_METHODS}
    assert [is_exact(name) for name in ("triforce", PLAIN, "h2o", "streamingllm")] == [True, True, False, False]


def test_every_colour_is_one_of_the_theme() -> None:
    theme = (ROOT / "assets" / "static" / "css" / "theme.css").read_text(encoding="utf-8")
    known = set(re.findall(r"--([\w-]+):", theme))
    assert {method.colour for method in METHODS.values()} <= known


def test_what_can_be_used_begins_with_what_is_used() -> None:
    for has_draft in (True, False):
        usable = methods_for(has_draft=has_draft)
        assert usable[0] == default_method(has_draft=has_draft)
        assert set(usable) == {name for name, method in METHODS.items() if has_draft or not method.needs_draft}
    assert default_method(has_draft=True) == FASTEST
    assert GenerationConfig().method == COMPARED[1], "TriForce as published"


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(InvalidSetting, match="'eagle'") as caught:
        check_method("eagle")
    assert all(name in caught.value.hint for name in METHODS)
