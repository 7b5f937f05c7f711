"""Drives Stakes with the same calls as the model: slots of nine owners, exits, unbonding."""

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from contracts.market import CLASS, Market, key
from contracts.money_machine import Money, peopled
from contracts.staking_model import LIST_MAX, Slot, Staking
from quorate_contracts.bindings.calls import Call
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address, Amount

STAKERS = [key(f"owner{number}").address for number in range(9)]
UNBONDING = DEVNET.unbond_after
ANYONE = st.integers(0, len(STAKERS) - 1)


def staked(world: Market) -> Market:
    """Peoples a market. Each of nine owners has a slot that is older than any evidence."""
    peopled(world)
    for number in range(3, len(STAKERS)):
        world.provider(number, slots=0)
    for owner in STAKERS:
        world.evm.send(owner, world.contracts.stakes.open_slots(CLASS, 1))
    world.evm.travel(200)
    return world


class StakedMoney(Money):
    """A state machine in which owners open and close slots, leave, and come back."""

    people = staticmethod(staked)

    def __init__(self) -> None:
        super().__init__()
        coordinators = {side.coordinator.address: side.model for side in self.sides}
        self.staking = Staking(coordinators)
        stakes, evm = self.world.contracts.stakes, self.world.evm
        for place, owner in enumerate(STAKERS):
            slot = evm.ask(stakes.slot(CLASS, place))
            self.staking.places.append(Slot(owner, slot.from_block, evm.now - 200))
            self.staking.held[owner], self.staking.stakes[owner] = 1, DEVNET.slot_stake

    def _open_slots(self, owner: Address, count: int) -> None:
        call, evm = self.world.contracts.stakes.open_slots(CLASS, count), self.world.evm
        self.both(owner, call, lambda: self.staking.open_slots(owner, count, evm.now, evm.number))

    def _close_slot(self, owner: Address, place: int) -> None:
        call, evm = self.world.contracts.stakes.close_slot(CLASS, place), self.world.evm
        self.both(owner, call, lambda: self.staking.close_slot(owner, place, evm.now, evm.number))

    def _unbond_slot(self, owner: Address, place: int) -> None:
        call, evm = self.world.contracts.stakes.unbond_slot(CLASS, place), self.world.evm
        self.both(owner, call, lambda: self.staking.unbond_slot(owner, place, evm.now))

    def _top_up(self, account: Address, amount: int) -> None:
        call, evm = self.world.contracts.stakes.top_up(Amount(amount)), self.world.evm
        self.both(account, call, lambda: self.staking.top_up(account, amount, evm.now))

    def _exit(self, owner: Address) -> None:
        call, evm = self.world.contracts.stakes.exit(), self.world.evm
        self.both(owner, call, lambda: self.staking.exit(owner, evm.now, evm.number))

    @precondition(lambda self: len(self.staking.places) < LIST_MAX - 2)
    @rule(number=ANYONE, count=st.integers(1, 2))
    def slots_open(self, number: int, count: int) -> None:
        self._open_slots(STAKERS[number], count)

    @rule(
        number=ANYONE,
        place=st.integers(0, 12),
        early=st.integers(0, 1),
        is_own=st.booleans(),
        is_left=st.booleans(),
    )
    def a_slot_closes_and_is_unbonded(
        self, number: int, place: int, early: int, is_own: bool, is_left: bool
    ) -> None:
        """Also by an owner that has left, and for a slot of another."""
        places = self.staking.places
        slot = places[place] if place < len(places) else None
        owner = slot.owner if slot is not None and is_own else STAKERS[number]
        if is_left:
            self._exit(owner)
        else:
            self._close_slot(owner, place)
        for seconds in (UNBONDING - early, early):
            self.world.evm.travel(seconds)
            self._unbond_slot(owner, place)

    @rule(number=ANYONE)
    def an_owner_leaves_and_comes_back(self, number: int) -> None:
        """The slots of the exit stay closed."""
        self._exit(STAKERS[number])
        self._open_slots(STAKERS[number], 1)

    @rule(number=ANYONE, beyond=st.integers(0, 1))
    def an_owner_restores_its_stake(self, number: int, beyond: int) -> None:
        owner = STAKERS[number]
        self._top_up(owner, self.staking.missing(owner) + beyond)

    @rule(beyond=st.integers(0, 1))
    def a_coordinator_restores_its_bond(self, beyond: int) -> None:
        self._top_up(self.c, DEVNET.coordinator_bond - self.model.bond + beyond)

    @rule(chance=st.integers(0, 3), early=st.integers(0, 1))
    def a_coordinator_retires(self, chance: int, early: int) -> None:
        if chance:
            return  # seldom: it cannot come back
        stakes, evm = self.world.contracts.stakes, self.world.evm
        call: Call = stakes.retire_coordinator()
        self.both(self.c, call, lambda: self.staking.retire(self.c, evm.now))
        for seconds in (UNBONDING - early, early):
            evm.travel(seconds)
            call = stakes.unbond_coordinator()
            self.both(self.c, call, lambda: self.staking.unbond_coordinator(self.c, evm.now))

    @invariant()
    def stakes_are_there(self) -> None:
        """I1: Stakes holds each stake and each bond, and no more."""
        found = self.world.balance(self.world.contracts.stakes.address)
        assert found == self.staking.total(), "I1: stakes and bonds"
        for owner, stake in self.staking.stakes.items():
            assert 0 <= stake <= self.staking.held[owner] * DEVNET.slot_stake

    def teardown(self) -> None:
        super().teardown()
        stakes, evm, staking = self.world.contracts.stakes, self.world.evm, self.staking
        for account in (*STAKERS, *staking.coordinators):
            assert evm.ask(stakes.frozen(account)) == staking.frozen(account)
        owners = staking.owners()
        assert evm.ask(stakes.owner_count(CLASS)) == len(owners)
        for owner in STAKERS:
            assert evm.ask(stakes.stake_of(owner)) == staking.stakes[owner], "I1"
            assert evm.ask(stakes.held(owner)) == staking.held[owner]
            assert (evm.ask(stakes.open_slots_of(owner, CLASS)) > 0) == (owner in owners)
        for account, model in staking.coordinators.items():
            assert evm.ask(stakes.is_bonded(account)) == model.is_bonded
