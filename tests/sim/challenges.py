"""The simulated Challenges: epochs that become void, demands, and a halt (PROTOCOL §6).

It keeps the coordinator's bond, and what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quorate_coordinator.core import events as ev
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf, Node
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, UnixSeconds

if TYPE_CHECKING:
    from sim.chain import Chain

NOTHING = Node(ZERO_HASH, Amount(0), Amount(0))


@dataclass(frozen=True, slots=True)
class Posted:
    """An epoch on chain."""

    number: int
    root: Node
    at: UnixSeconds
    is_foreign: bool = False  # by a thief of the posting key
    is_void: bool = False


NO_EPOCH = Posted(0, NOTHING, UnixSeconds(0))


@dataclass(frozen=True, slots=True)
class LeafDemand:
    """An open demand for an account's leaf."""

    due: int
    answer_by: int
    demander: Address


@dataclass(slots=True)
class Balances:
    """Everything that can change; copied for reorganisations."""

    bond: int
    credits: dict[Address, int]
    demands: dict[tuple[int, Address], LeafDemand]
    epoch_demand: tuple[int, int, Address] | None = None  # epoch, by when, demander
    halted_at: int = 0
    filed: dict[Address, int] | None = None  # shortages by Statements, after a halt
    pot: int = 0


class Challenges:
    """Void epochs, demands and the halt of the one coordinator."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.now = Balances(chain.limits.coordinator_bond, {}, {})
        chain.tokens_in += self.now.bond

    def copies(self) -> Balances:
        """Copies of everything that can change."""
        return replace(self.now, credits=dict(self.now.credits), demands=dict(self.now.demands))

    def take_back(self, copies: Balances) -> None:
        """Goes back to earlier copies; they are used once."""
        self.now = copies

    @property
    def held(self) -> int:
        """All tokens that it and the bond hold."""
        open_demands = len(self.now.demands) + (self.now.epoch_demand is not None)
        bonds = open_demands * self.chain.limits.jury_gas_fee
        return self.now.bond + sum(self.now.credits.values()) + bonds + self.now.pot

    def is_held_up(self, number: int) -> bool:
        """Whether an open demand keeps an epoch from becoming final."""
        return any(demanded <= number for demanded, _ in self.now.demands)

    def demand_leaf(self, number: int, account: Address, due: int, sender: Address) -> None:
        """Challenges.demand_leaf."""
        posted = self.chain.epochs[number - 1]
        if posted.is_void or self.chain.is_past(posted) or (number, account) in self.now.demands:
            raise Refused(Code.CHAIN, "late")
        self.chain.tokens_in += self.chain.limits.jury_gas_fee
        by = self.chain.now + self.chain.limits.challenge_response
        self.now.demands[number, account] = LeafDemand(due, by, sender)

    def close_demand(self, number: int, account: Address) -> None:
        """Challenges.close_demand: nobody showed the leaf, so the epoch is void."""
        demand = self.now.demands.get((number, account))
        is_void = self.chain.epochs[number - 1].is_void
        if demand is None or (self.chain.now <= demand.answer_by and not is_void):
            raise Refused(Code.CHAIN, "early")
        if not is_void:
            self._punish(number, demand.due, account, demand.demander)
        del self.now.demands[number, account]
        self._credit(demand.demander, self.chain.limits.jury_gas_fee)

    def revoke(self, number: int) -> None:
        """Challenges.revoke, by the coordinator's own account."""
        self._punish(number, 0, None, None)

    def _punish(
        self, number: int, shortage: int, account: Address | None, sender: Address | None
    ) -> None:
        posted = self.chain.epochs[number - 1]
        if posted.is_void or self.chain.is_final(posted):
            raise Refused(Code.CHAIN, "late")
        epochs = self.chain.epochs
        for later in epochs[number - 1 :]:
            epochs[later.number - 1] = replace(later, is_void=True)
        taken = self._take(self.chain.limits.void_penalty)
        for receiver, wanted in ((sender, self.chain.limits.jury_gas_fee), (account, shortage)):
            paid = min(taken, wanted) if receiver is not None else 0
            taken -= paid
            if receiver is not None:
                self._credit(receiver, paid)
        self.chain.burned += taken
        self.chain.note(ev.ChainEpochsVoided(number, epochs[-1].number))

    def demand_epoch(self, number: int, sender: Address) -> None:
        """Challenges.demand_epoch."""
        if self.now.epoch_demand is not None or self.chain.newest_valid().number >= number:
            raise Refused(Code.CHAIN, "covered")
        self.chain.tokens_in += self.chain.limits.jury_gas_fee
        by = self.chain.now + self.chain.limits.halt_after
        self.now.epoch_demand = number, by, sender
        self.chain.note(ev.ChainEpochDemanded(number))

    def halt(self, sender: Address) -> None:
        """Challenges.halt: the whole bond is taken, half of it for those with Statements."""
        demand = self.now.epoch_demand
        if demand is None or self.chain.now <= demand[1]:
            raise Refused(Code.CHAIN, "early")
        if self.chain.newest_valid().number >= demand[0]:
            raise Refused(Code.CHAIN, "covered")
        fee = self.chain.limits.jury_gas_fee
        self.now.epoch_demand, self.now.halted_at = None, self.chain.now
        self._credit(demand[2], fee)
        taken = self._take(self.now.bond)
        self._credit(sender, min(fee, taken))
        taken -= min(fee, taken)
        self.now.pot = taken // 2
        self.chain.burned += taken - self.now.pot

    def share_pot(self, shortages: dict[Address, int]) -> None:
        """Challenges.take_share by everybody that filed a Statement; the rest stays where it is."""
        pot, total = self.now.pot, sum(shortages.values())
        for account, shortage in shortages.items():
            share = min(shortage, pot * shortage // total)
            self.now.pot -= share
            self._credit(account, share)

    def _take(self, amount: int) -> int:
        taken = min(amount, self.now.bond)
        self.now.bond -= taken
        return taken

    def _credit(self, account: Address, amount: int) -> None:
        self.now.credits[account] = self.now.credits.get(account, 0) + amount


def all_to(thief: Address, amount: int) -> tuple[Leaf, ...]:
    """Leaves of an epoch with which a thief of the posting key takes everything."""
    return (Leaf(1 << 20, thief, Amount(amount), Amount(0), Hash32(bytes(32))),)
