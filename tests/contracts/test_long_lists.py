"""Tests a host class with a very long slot list.

The court still finds a jury, within the gas that the caller sends.
"""

import pytest

from contracts.market import CLASS, Market, key, peopled
from contracts.trial import Trial
from quorate_contracts.bindings.stakes import OPEN_MAX
from quorate_protocol.limits import DEVNET, JURORS_MIN

PLACES = 16 * OPEN_MAX


def crowded(leaves: bool) -> Market:
    """Returns a market of nine owners, and one with two hundred and fifty-six slots.

    If `leaves`, that owner takes its stake back. Otherwise all its slots stay open.
    """
    world = peopled()
    stakes, griefer = world.contracts.stakes, world.provider(50)
    world.evm.send(griefer, world.contracts.token.approve(stakes.address))
    first = world.evm.ask(stakes.slot_count(CLASS))
    for _ in range(PLACES // OPEN_MAX):
        world.evm.send(griefer, stakes.open_slots(CLASS, OPEN_MAX))
    assert world.evm.ask(stakes.slot_count(CLASS)) == first + PLACES
    if leaves:
        for place in range(first, first + PLACES):
            world.evm.send(griefer, stakes.close_slot(CLASS, place))
        world.evm.travel(DEVNET.unbond_after)
        for place in range(first, first + PLACES):
            world.evm.send(griefer, stakes.unbond_slot(CLASS, place))
        assert world.evm.ask(stakes.stake_of(griefer)) == DEVNET.slot_stake, (
            "it has its money back, but for its first slot"
        )
    return world


@pytest.mark.parametrize("leaves", [True, False])
def test_a_long_list_of_slots_does_not_void_every_case(leaves: bool) -> None:
    """Once all sixty-four tries of a draw met such slots, and every case of the class was void.
    The attacker's stake came back.
    """
    world, accused = crowded(leaves), key("owner0").address
    for attempt in range(4):
        one = world.fork()
        one.evm.travel(1 + 5 * attempt)
        trial = Trial.opened(one, accused)
        mined = trial.draw()
        assert len(trial.jurors) > JURORS_MIN and accused not in trial.jurors
        assert mined.gas < 0.3 * one.contracts.court.draw_jury(trial.case).gas
