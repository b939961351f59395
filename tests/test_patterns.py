"""Regular expressions that every Python we support reads alike."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Before Python 3.11.5 a group that is repeated possessively matches wrongly (CPython issue 106052): a part that gives
# nothing back must be one class of signs.
POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d*,?\d*\})\+")


def test_no_group_is_possessive() -> None:
    files = [file for folder in ("app", "core") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    found = [
        f"{file}: {line.strip()}"
        for file in files
        for line in file.read_text().split("\n")
        if POSSESSIVE_GROUP.search(line)
    ]
    assert not found, found


@pytest.mark.parametrize("wrong", ["(?:a|b)++", "(a)*+c", "(?:x)?+", "(?:ab){2,3}+"])
def test_such_a_group_is_noticed(wrong: str) -> None:
    assert POSSESSIVE_GROUP.search(wrong)
