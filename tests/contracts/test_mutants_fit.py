"""Tests that the mutants of the contracts still fit their sources. `make contract-mutants` runs
them, and `make prove` those of its properties.
"""

import re

import pytest

from contracts.mutation.lists import MUTANTS
from contracts.mutation.modelled import MODELLED
from contracts.mutation.mutant import contracts_with, covering
from contracts.prove.properties import FOLDER, PROPERTIES
from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.compile import SOURCES

MUTANTS_MIN = 40


@pytest.mark.rule("I5")
def test_every_mutant_fits_its_source_once() -> None:
    for mutant in MUTANTS:
        text = (SOURCES / f"{mutant.source}.vy").read_text()
        assert mutant.mutated(text) != text and covering(mutant)
    names = [mutant.name + mutant.source for mutant in MUTANTS]
    assert len(names) == len(set(names))


def test_every_contract_has_mutants() -> None:
    broken = {name for mutant in MUTANTS for name in contracts_with(mutant.source)}
    broken |= {contract for contract, *_ in MODELLED.values()}
    assert broken == set(CONTRACTS)
    assert len(MUTANTS) + len(MODELLED) >= MUTANTS_MIN


def test_every_property_to_prove_has_its_function_and_a_mutant_that_fits() -> None:
    for each in PROPERTIES:
        text = (SOURCES / f"{each.source}.vy").read_text()
        assert each.mutant.mutated(text) != text
    stated = {
        (file.stem, name)
        for file in FOLDER.glob("*.vy")
        for name in re.findall(r"^def (check_\w+)", file.read_text(), re.MULTILINE)
    }
    assert stated == {(each.proofs, each.function) for each in PROPERTIES}
