"""Tests that the mutants of the new contracts still fit their sources."""

from contracts_next.mutants import FILES, every

MUTANTS_MIN = 310


def test_every_mutant_fits_its_source_once() -> None:
    made = every()
    assert {mutant.source for mutant in made} == set(FILES)
    assert len(made) >= MUTANTS_MIN
