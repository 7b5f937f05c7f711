"""A model of Stakes: slots of one host class, stakes, bonds, and what keeps them from leaving."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.money_model import Model, need
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address

NEVER = 2**32 - 1
OPEN_MAX = 16
LIST_MAX = 64  # the model's draw covers lists that are shuffled


@dataclass
class Slot:
    """One slot. Blocks are numbers, times are in seconds."""

    owner: Address
    start: int  # first block in which it can be drawn
    opened_at: int
    end: int = NEVER
    unbond_at: int = 0


@dataclass
class Staking:
    """Stakes of all providers, and the bonds that the coordinators' models keep."""

    coordinators: dict[Address, Model]
    stakes: dict[Address, int] = field(default_factory=dict)
    held: dict[Address, int] = field(default_factory=dict)
    places: list[Slot | None] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    out_block: dict[Address, int] = field(default_factory=dict)
    out_at: dict[Address, int] = field(default_factory=dict)
    cases: dict[Address, int] = field(default_factory=dict)  # that freeze an account

    def frozen(self, account: Address) -> int:
        """How many cases keep an account's stake."""
        return self.cases.get(account, 0)

    def freeze(self, account: Address, change: int = 1) -> None:
        self.cases[account] = self.cases.get(account, 0) + change

    def is_open(self, slot: Slot) -> bool:
        """Whether the owner neither closed the slot, nor left or was slashed since it opened."""
        return slot.end == NEVER and slot.start > self.out_block.get(slot.owner, 0)

    def owners(self) -> set[Address]:
        """Owners with an open slot."""
        return {slot.owner for slot in self.places if slot is not None and self.is_open(slot)}

    def is_active(self, slot: Slot, at: int) -> bool:
        """Whether a slot can be drawn as of a block."""
        out = self.out_block.get(slot.owner, 0)
        return slot.start <= at < slot.end and (slot.start > out or at < out)

    def missing(self, owner: Address, more: int = 0) -> int:
        """What an owner has to add, so that each of its slots has its whole stake."""
        wanted = (self.held.get(owner, 0) + more) * DEVNET.slot_stake
        return wanted - self.stakes.get(owner, 0)

    def open_slots(self, owner: Address, count: int, now: int, block: int) -> None:
        need(0 < count <= OPEN_MAX, "count")
        need(block >= self.out_block.get(owner, 0), "frozen")
        added = self.missing(owner, count)
        for _ in range(count):
            slot = Slot(owner, block + 1, now)
            if self.free:
                self.places[self.free.pop()] = slot
            else:
                self.places.append(slot)
        self.held[owner] = self.held.get(owner, 0) + count
        self.stakes[owner] = self.stakes.get(owner, 0) + added

    def close_slot(self, owner: Address, place: int, now: int, block: int) -> None:
        slot = self._own(owner, place)
        need(slot.end == NEVER, "phase")
        slot.end, slot.unbond_at = block + 1, now + DEVNET.unbond_after

    def unbond_slot(self, owner: Address, place: int, now: int) -> None:
        slot, ready = self._own(owner, place), 0
        if slot.unbond_at:
            ready = slot.unbond_at
        elif slot.start <= self.out_block.get(owner, 0):
            ready = self.out_at[owner] + DEVNET.unbond_after
        need(ready != 0 and now >= ready, "early")
        need(not self.frozen(owner), "frozen")
        self.held[owner] -= 1
        self.places[place] = None
        self.free.append(place)
        self.stakes[owner] = min(self.stakes[owner], self.held[owner] * DEVNET.slot_stake)

    def exit(self, owner: Address, now: int, block: int) -> None:
        self.out_block[owner], self.out_at[owner] = block + 1, now

    def top_up(self, account: Address, amount: int, now: int) -> None:
        model = self.coordinators.get(account)
        if model is not None:
            need(not model.retired_at, "registered")
            need(0 < amount <= DEVNET.coordinator_bond - model.bond, "amount")
            model.set_bond(model.bond + amount, now)
        else:
            need(0 < amount <= self.missing(account), "amount")
            self.stakes[account] = self.stakes.get(account, 0) + amount

    def retire(self, coordinator: Address, now: int) -> None:
        model = self.coordinators[coordinator]
        need(not model.retired_at, "registered")
        model.retired_at = now

    def unbond_coordinator(self, coordinator: Address, now: int) -> None:
        model = self.coordinators[coordinator]
        ready = model.retired_at + DEVNET.unbond_after
        need(model.retired_at != 0 and now >= ready, "early")
        need(not self.frozen(coordinator), "frozen")
        need(model.bond > 0, "amount")
        model.set_bond(0, now)

    def take(self, account: Address, amount: int, now: int) -> int:
        """Takes at most `amount` of a stake or a bond; returns what was taken."""
        model = self.coordinators.get(account)
        if model is not None:
            return model.lose_bond(amount, now)
        taken = min(amount, self.stakes.get(account, 0))
        self.stakes[account] = self.stakes.get(account, 0) - taken
        return taken

    def slash(self, account: Address, amount: int, now: int, block: int) -> int:
        """As `take`, and all slots of a provider close."""
        taken = self.take(account, amount, now)
        if account not in self.coordinators:
            self.exit(account, now, block)
        return taken

    def fine(self, account: Address, amount: int, now: int, block: int) -> int:
        """As `take`; slots close if less than half of their stake is left."""
        taken = self.take(account, amount, now)
        whole = self.held.get(account, 0) * DEVNET.slot_stake
        if account not in self.coordinators and 2 * self.stakes[account] < whole:
            self.exit(account, now, block)
        return taken

    def total(self) -> int:
        """What Stakes holds."""
        bonds = sum(model.bond for model in self.coordinators.values())
        return sum(self.stakes.values()) + bonds

    def _own(self, owner: Address, place: int) -> Slot:
        slot = self.places[place] if place < len(self.places) else None
        need(slot is not None and slot.owner == owner, "owner")
        assert slot is not None
        return slot


def registered(staking: Staking, owners: Sequence[Address], now: int, first_block: int) -> None:
    """Notes one slot of each owner, opened in successive transactions."""
    for number, owner in enumerate(owners):
        staking.open_slots(owner, 1, now, first_block + number)
