"""Whatever the app takes for an engine has all that `TextEngine` names, with the same parameters."""

import inspect
from typing import Any

import pytest

from app.remote.engine import RemoteEngine, RemoteText
from core.engine import Engine
from core.engine_api import TextEngine
from core.generation.text import ChatText, LocalText, PromptText
from tests.app.fakes import FakeEngine, FakeText

SET_WHEN_MADE = {"info", "config", "text", "context", "eos_ids", "holds_all_chunks", "knows_offsets"}  # by some


def names_of(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default; names that are not used begin with an underscore."""
    found = inspect.signature(function).parameters.values()
    return [(one.name.lstrip("_"), one.kind, one.default) for one in found]


def takes(own: Any, wanted: Any) -> bool:
    """Whether a function can be called like another one."""
    first, more = parameters(wanted), parameters(own)
    return more[: len(first)] == first and all(
        default is not inspect.Parameter.empty for *_, default in more[len(first) :]
    )


def missing(protocol: type, made: type) -> list[str]:
    """What a class lacks of a protocol, or takes otherwise."""
    found = []
    for name in sorted(names_of(protocol)):
        own, wanted = inspect.getattr_static(made, name, None), inspect.getattr_static(protocol, name)
        there = name in SET_WHEN_MADE or own is not None
        if not there or (inspect.isfunction(wanted) and not takes(own, wanted)):
            found.append(name)
    return found


@pytest.mark.parametrize("made", [Engine, RemoteEngine, FakeEngine])
def test_every_engine_has_the_interface(made: type) -> None:
    assert missing(TextEngine, made) == []


@pytest.mark.parametrize("made", [ChatText, RemoteText, FakeText])
def test_every_text_has_the_interface(made: type) -> None:
    assert missing(PromptText if made is RemoteText else LocalText, made) == []


def test_what_is_missing_or_taken_otherwise_would_be_seen() -> None:
    class Half:
        def close(self, hard: bool) -> None: ...

        def knows(self, token_ids: Any) -> None: ...

    found = missing(TextEngine, Half)
    assert "generate" in found and "close" in found and "knows" not in found
