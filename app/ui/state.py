"""What a page shows, as JSON parts by name, and what a stream sends of it. The page is drawn from nothing else.

A part is a JSON value: mostly HTML, for which the page has one place; text that grows is a part of its own.
"""

from collections.abc import Mapping
from typing import Any

Parts = Mapping[str, Any]  # JSON values by name; never None
GROWN = "+"  # the key of what was added to a text or a list


def changes(before: Parts, after: Parts) -> dict[str, Any]:
    """What turns one state into another: new values by name, `{"+": what was added}` where it only grew, None: gone."""
    found: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if old is None or type(old) is not type(value):
            found[name] = value
        elif old != value:
            grew = isinstance(value, str | list) and len(old) and value[: len(old)] == old
            found[name] = {GROWN: value[len(old) :]} if grew else value
    return found


class Is:
    """A value in a key that is compared by what it is, not by what it holds; it lives as long as the key."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
