"""Compares the contracts with a model in Python, driven by Hypothesis at boundary times.

Seeded mutants of the contracts must be caught.
"""

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle

from contracts.court_machine import CourtMoney
from contracts.evm import Evm
from contracts.lean_machines import Proofs, Trials
from contracts.market import BOSS, COORDINATOR, Market, planned
from contracts.money_machine import Money
from contracts.mutation.modelled import MODELLED, TRIED
from quorate_contracts.artifact import artifact
from quorate_contracts.bindings.court import CaseOutcome
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
# Some call of the long game is refused for each
REASONS = {"amount", "early", "phase", "bond", "owner", "late", "allocation", "pool", "stale"}
REASONS |= {"proven", "same", "registered"}
LONG_GAMES: dict[type[Money], int] = {CourtMoney: 40, Trials: 35, Proofs: 15}
SHORT = settings(LONG, max_examples=50, phases=[Phase.generate])  # stop at the first difference


# The smallest machine that can notice a mutant notices it soonest
MACHINES: dict[str, type[Money]] = dict.fromkeys(TRIED, Trials)
MACHINES |= {name: Proofs for name, (contract, *_) in TRIED.items() if contract == "Faults"}
QUICK = (
    "a withdrawal can be finished twice",
    "an epoch is final at once",
    "pools pay more than their vouchers cover",
    "remembered sessions have no bound",
)  # `make contract-mutants` tries the others too
EACH = [
    *QUICK,
    *(pytest.param(each, marks=pytest.mark.slow) for each in MODELLED if each not in QUICK),
]


@pytest.mark.rule("I1", "6.14")
@pytest.mark.parametrize(("machine", "examples"), [(CourtMoney, 4), (Trials, 3), (Proofs, 3)])
def test_contracts_and_model_agree(machine: type[Money], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(LONG, max_examples=examples))  # type: ignore[no-untyped-call]


@pytest.mark.slow
@pytest.mark.rule("I1", "5.79", "5.81", "5.83", "5.84", "6.14")
def test_contracts_and_model_agree_for_thousands_of_steps() -> None:
    """`make machine` plays it. It counts the steps of both coordinators."""
    Money.steps = 0
    for machine, examples in LONG_GAMES.items():
        bounds = settings(LONG, max_examples=examples)
        run_state_machine_as_test(machine, settings=bounds)  # type: ignore[no-untyped-call]
    assert Money.steps >= STEPS
    judged = {CaseOutcome.CONVICTED, CaseOutcome.ACQUITTED, CaseOutcome.VOID}
    never = judged - set(CourtMoney.endings)
    assert not never, f"no case ended so: {never}"
    unmet = REASONS - set(Money.reasons)
    assert not unmet, f"nothing was refused for these reasons: {unmet}"
    cases = sum(CourtMoney.endings.values())
    print(f"{Money.steps} steps, {cases} cases, every balance and refusal equal")


@pytest.mark.rule("I1", "6.12", "6.13", "6.14")
@pytest.mark.parametrize("name", EACH)
def test_seeded_mutants_are_caught(name: str) -> None:
    contract, old, new = MODELLED[name]
    machine = MACHINES.get(name, Money)
    source = (SOURCES / f"{contract}.vy").read_text()
    assert source.count(old) == 1, "the mutant no longer fits its source"
    bundle = FilesystemInputBundle([SOURCES])
    mutated = replace(bundle.load_file(f"{contract}.vy"), contents=source.replace(old, new))
    code = bytes.fromhex(
        compile_from_file_input(mutated, input_bundle=bundle, output_formats=["bytecode"])[
            "bytecode"
        ][2:]
    )

    with pytest.raises((AssertionError, BaseExceptionGroup)) as caught:
        _play(machine, contract, code)
    if isinstance(caught.value, BaseExceptionGroup):  # Hypothesis found several differences
        assert caught.value.split(AssertionError)[1] is None


def test_contracts_deployed_for_a_mutant_agree_with_the_model() -> None:
    """Otherwise any mutant would seem to be caught."""
    code = artifact("Epochs").bytecode
    _play(Proofs, "Epochs", code, settings(SHORT, max_examples=3))


def _play(machine: type[Money], contract: str, code: bytes, bounds: settings = SHORT) -> None:
    world = machine.people(_deployed_with(contract, code))

    class Mutated(machine):  # type: ignore[misc, valid-type]
        make = staticmethod(lambda: world)

    run_state_machine_as_test(Mutated, settings=bounds)  # type: ignore[no-untyped-call]


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
