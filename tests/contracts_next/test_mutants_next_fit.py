"""Tests that the mutants of the new contracts still fit their sources."""

from contracts_next.mutant_list import mutants
from contracts_next.mutants import FILES

MUTANTS_MIN = 200


def test_every_mutant_fits_its_source_once() -> None:
    made = mutants()
    assert {mutant.source for mutant in made} == set(FILES)
    assert len(made) >= MUTANTS_MIN
