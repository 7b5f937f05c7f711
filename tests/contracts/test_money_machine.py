"""Compares Escrow, Epochs and Challenges with a model in Python, driven by Hypothesis at boundary
times.

Seeded mutants of the contracts must be caught.
"""

import dataclasses
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle

from contracts.challenge_machine import ChallengedMoney
from contracts.evm import Evm
from contracts.market import BOSS, COORDINATOR, Market, planned
from contracts.money_machine import Money, peopled
from contracts.mutation.modelled import MODELLED
from quorate_contracts.artifact import artifact
from quorate_contracts.compile import SOURCES
from quorate_contracts.deploy import Contracts
from quorate_protocol.limits import DEVNET

C = COORDINATOR.address


LONG = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
STEPS = 2_000
LONGEST = settings(LONG, max_examples=100, stateful_step_count=25)
SHORT = settings(LONG, max_examples=50, phases=[Phase.generate])  # stop at the first difference


@pytest.mark.rule("I1", "6.14")
def test_contracts_and_model_agree() -> None:
    run_state_machine_as_test(ChallengedMoney, settings=LONG)  # type: ignore[no-untyped-call]


@pytest.mark.slow
@pytest.mark.rule("I1", "6.14")
def test_contracts_and_model_agree_for_thousands_of_steps() -> None:
    """`make machine` plays it. It counts the steps of both coordinators."""
    Money.steps = 0
    run_state_machine_as_test(ChallengedMoney, settings=LONGEST)  # type: ignore[no-untyped-call]
    assert Money.steps >= STEPS
    print(f"{Money.steps} steps, every balance and refusal equal")


@pytest.mark.rule("I1", "6.12", "6.13", "6.14")
@pytest.mark.parametrize("name", MODELLED)
def test_seeded_mutants_are_caught(name: str) -> None:
    contract, old, new = MODELLED[name]
    source = (SOURCES / f"{contract}.vy").read_text()
    assert source.count(old) == 1, "the mutant no longer fits its source"
    bundle = FilesystemInputBundle([SOURCES])
    mutated = replace(bundle.load_file(f"{contract}.vy"), contents=source.replace(old, new))
    code = bytes.fromhex(
        compile_from_file_input(mutated, input_bundle=bundle, output_formats=["bytecode"])[
            "bytecode"
        ][2:]
    )

    class Mutated(ChallengedMoney):
        a_coordinator_acts = None  # one coordinator shows it sooner
        make = staticmethod(lru_cache(maxsize=1)(lambda: peopled(_deployed_with(contract, code))))

    # an assertion error, or Hypothesis' group of several
    with pytest.raises(BaseException) as caught:
        run_state_machine_as_test(Mutated, settings=SHORT)  # type: ignore[no-untyped-call]
    assert "the contract says" in str(caught.getrepr(style="long")) or "I1" in str(
        caught.getrepr(style="long")
    )


def _deployed_with(contract: str, code: bytes) -> Market:
    """Returns a market in which the code of one contract is replaced."""
    evm, made = Evm.fresh(), planned(DEVNET)
    original = artifact(contract).bytecode
    for creation in made.creations:
        data = code + creation.data[len(original) :] if creation.name == contract else creation.data
        evm.create(dataclasses.replace(creation, data=data), BOSS.address)
    evm.contracts = Contracts.of(made.deployment)
    world = Market(evm, evm.contracts, DEVNET)
    world.coordinator()
    return world
