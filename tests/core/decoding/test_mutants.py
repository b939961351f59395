"""The lists of faults and removals stay true to the code: each has its place, no wait or mark is without one."""

import re

import pytest

from tests.core.caches.removals import HOST_ATTENTION, REMOVALS, TRANSFER
from tests.core.decoding.mutants import MUTANTS, ROOT, Mutant, check


def test_every_mutant_applies_and_compiles() -> None:
    for mutant in MUTANTS:
        check(mutant)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25, "names are told apart"


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.name)
def test_every_removal_applies_and_compiles(removal: Mutant) -> None:
    check(removal)


@pytest.mark.parametrize("file", [TRANSFER, HOST_ATTENTION])
def test_every_wait_and_every_mark_is_among_them(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    taken_out = "".join(removal.old for removal in REMOVALS if removal.file == file)
    statements = re.findall(r"^ +(\S*\.(?:wait_event|record|synchronize|share)\(.*\))$", text, re.M)
    assert len(statements) > 1
    assert [statement for statement in statements if statement not in taken_out] == []
