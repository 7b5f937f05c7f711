"""Tests that the coordinator's proof of two Commits takes effect on the real contracts."""

import pytest

from contracts.fault_evidence import other_commit
from contracts.market import POSTER, key, peopled
from contracts.test_case_bonds import performer_of
from quorate_coordinator.core.effects import ProveEquivocation
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import UnixSeconds

OWNER = key("owner0").address


@pytest.mark.rule("5.87", "5.133")
async def test_a_second_commit_costs_stake_after_accept_by_and_pays_the_coordinators_gas() -> None:
    world = peopled()
    performer, stakes, token = performer_of(world), world.contracts.stakes, world.contracts.token
    accept_by = UnixSeconds(world.evm.now + 5)
    found = world.execution(OWNER, key("client0"), accept_by=accept_by)
    run = found.shown.run
    proof = ProveEquivocation("p", run.assignment, run.commit, other_commit(world, found))
    before = world.evm.ask(stakes.stake_of(OWNER)), world.evm.ask(token.balance_of(POSTER.address))
    with pytest.raises(Unavailable, match="acceptBy"):
        await performer(proof)
    world.evm.travel(6)
    await performer(proof)
    await performer(proof)  # again, as after a crash
    order = run.assignment.message
    cost = max(order.price_per_hour * order.max_duration // 3600, DEVNET.jury_gas_fee)
    assert world.evm.ask(stakes.stake_of(OWNER)) == before[0] - cost
    paid = world.evm.ask(token.balance_of(POSTER.address)) - before[1]
    assert paid == DEVNET.jury_gas_fee
