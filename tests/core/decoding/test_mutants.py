"""The list of faults stays true to the code: each still has its place, and makes Python that compiles."""

import pytest

from tests.core.decoding.mutants import MUTANTS, Mutant, check


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_and_compiles(mutant: Mutant) -> None:
    check(mutant)


def test_names_of_mutants_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
