"""Counts what an attack costs: tokens, gas, and the use of stake that cannot move.

A griefing factor is what honest accounts lose, divided by what the attackers lose.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from contracts.evm import Mined
from contracts.market import COORDINATOR, Market
from quorate_contracts.bindings.calls import Call
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS, Address

GAS_PRICES = (0, USD // 4, 5 * USD // 2)  # token units per million gas; 0.1 and 1 gwei at 2,500 USD
_WORTH: dict[tuple[bytes, Address], int] = {}  # by state: most attacks start in the same one
YEAR = 365 * 86_400
USE_OF_STAKE = 10  # stake that cannot move costs its owner a tenth a year


@dataclass(frozen=True)
class Costs:
    """What one account lost: tokens (negative = gained), gas, and the use of frozen stake."""

    tokens: int
    gas: int
    use: float

    def at(self, gas_price: int) -> float:
        """Returns token units at a gas price in token units per million gas."""
        return self.tokens + self.use + self.gas * gas_price / 10**6


@dataclass(frozen=True)
class Damage:
    """What each honest account lost, and what each attacker lost."""

    honest: tuple[Costs, ...]
    attackers: tuple[Costs, ...]

    def loss(self, gas_price: int) -> float:
        """Returns what honest accounts lost. The gain of one does not make good another's loss."""
        return sum(max(0.0, each.at(gas_price)) for each in self.honest)

    def cost(self, gas_price: int) -> float:
        """Returns what the attackers lost together."""
        return sum(each.at(gas_price) for each in self.attackers)

    def factor(self) -> float:
        """Returns the worst griefing factor at any of the gas prices.

        An attack that costs its attackers nothing must cost nobody else anything.
        """
        return max(self.factor_at(price) for price in GAS_PRICES)

    def factor_at(self, gas_price: int) -> float:
        """Returns the griefing factor at a gas price."""
        loss, cost = self.loss(gas_price), self.cost(gas_price)
        return 0.0 if loss < 1 else float("inf") if cost <= 0 else loss / cost


@dataclass
class Grievance:
    """One attack on one market: who attacks, and what every account has lost so far."""

    world: Market
    attackers: frozenset[Address]
    gas: Counter[Address] = field(default_factory=Counter)
    frozen: Counter[Address] = field(default_factory=Counter)  # token units × seconds
    work: Counter[Address] = field(default_factory=Counter)  # token units that computing cost
    before: dict[Address, int] = field(default_factory=dict)
    apart: set[Address] = field(default_factory=set)  # guilty of something else
    registered: list[Address] = field(default_factory=list)
    seen_at: int = 0

    def fail(self, sender: Address, call: Call) -> None:
        """Sends a transaction that reverts, and counts its gas for the sender."""
        self.gas[sender] += self.world.evm.gas_of_refused(sender, call)

    def look(self) -> None:
        """Counts the time for which stake was frozen since the last look."""
        evm, stakes = self.world.evm, self.world.contracts.stakes
        passed, self.seen_at = evm.now - self.seen_at, evm.now
        if passed <= 0:
            return
        for account in self._registered():
            if evm.ask(stakes.frozen(account)):
                held = evm.ask(stakes.stake_of(account)) + evm.ask(stakes.bond_of(account))
                self.frozen[account] += held * passed

    def worth(self, account: Address) -> int:
        """Returns all tokens of an account, of its payout address, and what contracts owe them."""
        known = self.world.evm.state_root, account
        if known not in _WORTH:
            _WORTH[known] = self._worth(account)
        return _WORTH[known]

    def _worth(self, account: Address) -> int:
        c, evm = self.world.contracts, self.world.evm
        payout = evm.ask(c.stakes.payout_of(account))
        places = {account, payout} - {ZERO_ADDRESS}
        own = sum(self.world.balance(place) for place in places)
        stake = evm.ask(c.stakes.stake_of(account)) + evm.ask(c.stakes.bond_of(account))
        owed = sum(
            evm.ask(query)
            for place in places
            for query in (c.court.credit_of(place), c.faults.credit_of(place))
        )
        allocation = evm.ask(c.escrow.allocation(account, COORDINATOR.address))
        left = evm.ask(c.escrow.free_of(account)) + allocation.allocated - allocation.charged
        return own + stake + owed + left

    def ended(self) -> "Damage":
        """Returns what both sides have lost since the start."""
        self.look()
        found = {each: self._lost(each) for each in self._accounts() if each not in self.apart}
        return Damage(
            tuple(cost for each, cost in found.items() if each not in self.attackers),
            tuple(cost for each, cost in found.items() if each in self.attackers),
        )

    def _lost(self, account: Address) -> Costs:
        tokens = self.before.get(account, 0) - self.worth(account) + self.work[account]
        use = self.frozen[account] * USE_OF_STAKE / 100 / YEAR
        return Costs(tokens, self.gas[account], use)

    def charge(self, step: Callable[[], object], payers: Sequence[Address]) -> None:
        """Takes a step. These accounts pay its gas in equal parts, although another sends it."""
        before = Counter(self.gas)
        step()
        spent = sum((self.gas - before).values())
        self.gas = before
        for payer in payers:
            self.gas[payer] += spent // len(payers)

    def _accounts(self) -> list[Address]:
        return sorted({*self._registered(), *self.world.holders, *self.gas})

    def _registered(self) -> list[Address]:
        evm, stakes = self.world.evm, self.world.contracts.stakes
        for place in range(len(self.registered), evm.ask(stakes.account_count())):
            self.registered.append(evm.ask(stakes.account_at(place + 1)))
        return self.registered


@contextmanager
def grievance(world: Market, attackers: Iterable[Address]) -> Iterator[Grievance]:
    """Counts everything that is sent to a market until the block ends."""
    made = Grievance(world, frozenset(attackers))
    made.before = {each: made.worth(each) for each in made._accounts()}
    made.seen_at = world.evm.now
    evm = world.evm
    plain = evm.send

    def counted(sender: Address, call: Call) -> Mined:
        made.look()
        mined = plain(sender, call)
        made.gas[sender] += mined.gas
        made.before.setdefault(sender, 0)
        return mined

    evm.send = counted  # type: ignore[method-assign]
    try:
        yield made
    finally:
        evm.send = plain  # type: ignore[method-assign]
