"""The list of faults stays true to the code: each still has its place, and makes Python that compiles."""

from tests.core.decoding.mutants import MUTANTS, check


def test_every_mutant_applies_and_compiles() -> None:
    for mutant in MUTANTS:
        check(mutant)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25, "names are told apart"
