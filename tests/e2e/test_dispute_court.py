"""Disputes about results, on anvil: who loses stake before a jury, and who does not.

The token is a stablecoin that is not ours, and `quorate chain deploy` made the contracts. The
coordinator's case keeper acts as it does in life. The tests vote.
"""

import shutil
from collections.abc import Iterator

import pytest

from bench.anvil_machine import AnvilMachine, running_anvil
from contracts.foreign_market import deployed_by_command
from contracts.market import ACCUSER, BOSS, CLASS, POSTER, Market, key, peopled_on
from contracts.test_case_bonds import performer_of
from contracts.test_court_driver import _kept, _look
from contracts.trial import TRUE, TRUTH, Trial, evidence_of
from quorate_contracts.bindings.cases import case_bond
from quorate_contracts.bindings.court import CaseId, CaseOutcome
from quorate_coordinator.core.effects import OpenCase
from quorate_protocol.limits import DEVNET

pytestmark = pytest.mark.anvil
ACCUSED = key("owner0").address


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    program = shutil.which("anvil")
    assert program is not None, "the mark asks for anvil"
    with running_anvil(program) as machine:
        yield peopled_on(deployed_by_command(machine, tmp_path_factory.mktemp("made")), 9)


@pytest.fixture
def world(deployed: Market) -> Iterator[Market]:
    """The same market for each test: the chain forgets what a test did."""
    machine = deployed.evm
    assert isinstance(machine, AnvilMachine)
    place = machine.request("evm_snapshot")
    yield deployed
    assert machine.request("evm_revert", place)


def stake(world: Market) -> int:
    return world.evm.ask(world.contracts.stakes.stake_of(ACCUSED))


@pytest.mark.rule("5.79", "5.81", "5.134")
async def test_a_liar_is_slashed_by_its_jury(world: Market) -> None:
    """The coordinator opens the case with its bond, and gets that and its gas back."""
    c, before = world.contracts, stake(world)
    clients = ("client0", "client1")
    trial = Trial(world, [world.execution(ACCUSED, key(name), b"a lie") for name in clients])
    bond = case_bond([each.shown for each in trial.evidence], DEVNET)
    world.evm.send(ACCUSER.address, c.token.transfer(POSTER.address, bond))
    shown = tuple(evidence_of(each) for each in trial.evidence)
    await performer_of(world)(OpenCase("case", ACCUSED, CLASS, shown))
    assert world.balance(POSTER.address) == 0
    trial.case = CaseId(world.evm.ask(c.court.case_count()))
    keeper, _ = _kept(trial)
    await _look(keeper)
    trial.jurors = trial.now.jurors
    trial.vote([TRUTH[:2]] * len(trial.jurors))
    trial.reveal([TRUTH[:2]] * len(trial.jurors))
    await _look(keeper)
    assert trial.now.outcome is CaseOutcome.CONVICTED and stake(world) < before
    assert world.evm.ask(c.stakes.open_slots_of(ACCUSED, CLASS)) == 0
    world.evm.send(BOSS.address, c.court.withdraw(POSTER.address))
    assert world.balance(POSTER.address) == bond + DEVNET.jury_gas_fee


@pytest.mark.rule("5.79", "5.82")
def test_a_provider_with_one_honest_error_loses_nothing(world: Market) -> None:
    """It was right in the other execution that the case names."""
    before = stake(world)
    error = world.execution(ACCUSED, key("client0"), b"an error")
    trial = Trial(world, [error, world.execution(ACCUSED, key("client1"), TRUE[1])])
    trial.open()
    decided = trial.judged([TRUTH[:2]] * 7)
    assert decided.outcome == CaseOutcome.ACQUITTED and stake(world) == before
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 0
