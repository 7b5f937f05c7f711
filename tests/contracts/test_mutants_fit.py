"""Tests that the mutants still fit their sources. `make contract-mutants` runs them."""

from contracts.mutation.run import FILES, every

MUTANTS_MIN = 310


def test_every_mutant_fits_its_source_once() -> None:
    made = every()
    assert {mutant.source for mutant in made} == set(FILES)
    assert len(made) >= MUTANTS_MIN
