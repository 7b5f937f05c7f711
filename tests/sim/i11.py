"""I11: what parties spend, and what others lose by them.

A coalition is a set of parties that act together. What it pays inside is not spent, and what a
member loses is no loss of an honest party. Amounts are millionths of a USD.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

FLOOR = 200
"""A loss below this is noise: a run slot earns it in seven seconds. The simulator looks at the
slots each second, so a lease of the usual length is measured that far off."""
GAS = 100_000  # of one transaction; the cheapest that moves money needs so much
UNITS_PER_GAS = {0: 0.0, 5: 12.5}  # at gwei; a coin costs 2,500 USD
HOUR = 3_600
Coalition = frozenset[str]


class Paid(NamedTuple):
    """Money that one party paid. `to` is empty when it was burned."""

    by: str
    to: str
    amount: float


class Lost(NamedTuple):
    """What a party lost."""

    who: str
    what: str
    amount: float


@dataclass(slots=True)
class Ledger:
    """Everything that parties paid and lost in one market."""

    paid: list[Paid] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    transactions: Counter[str] = field(default_factory=Counter)

    def cost(self, coalition: Coalition, gwei: int) -> float:
        """What a coalition spent: what left it or was burned, and gas."""
        spent = sum(it.amount for it in self.paid if it.by in coalition and it.to not in coalition)
        gas = GAS * sum(self.transactions[party] for party in coalition)
        return spent + gas * UNITS_PER_GAS[gwei]

    def losses(self, coalition: Coalition) -> Counter[str]:
        """What the others lost, by kind. What one gained does not make good another's loss."""
        found: Counter[str] = Counter()
        for item in self.lost:
            if item.who not in coalition and item.amount > 0:
                found[item.what] += round(item.amount)
        return found

    def ratio(self, coalition: Coalition, gwei: int) -> float:
        """Loss by cost. 0 below the floor; who spent nothing is taken to have spent a unit."""
        loss = self.losses(coalition).total()
        return 0.0 if loss < FLOOR else round(loss / max(1.0, self.cost(coalition, gwei)), 2)


@dataclass(slots=True)
class Slots:
    """What honest owners' run slots earn, and what they should have earned."""

    busy: Counter[bytes] = field(default_factory=Counter)  # lease -> price of its time in a slot
    worked: dict[bytes, float] = field(default_factory=dict)  # lease -> price of what it committed
    owners: dict[bytes, str] = field(default_factory=dict)  # lease -> its owner
    away: Counter[str] = field(default_factory=Counter)  # owner -> price of its time off offer

    def occupied(self, owner: str, lease: bytes, price: int, seconds: float) -> None:
        """A lease took a slot for so long."""
        self.owners[lease] = owner
        self.busy[lease] += price * seconds / HOUR  # type: ignore[assignment]

    def committed(self, owner: str, lease: bytes, price: int, milliseconds: int) -> None:
        """A lease ended with a result."""
        self.owners[lease] = owner
        self.worked[lease] = price * milliseconds / HOUR / 1000

    def off_offer(self, owner: str, price: int, slots: int, seconds: float) -> None:
        """An owner got no work for so long."""
        self.away[owner] += price * slots * seconds / HOUR  # type: ignore[assignment]

    def losses(self, earned: dict[str, int]) -> list[Lost]:
        """Pay that did not come, slots that were blocked for nothing, and hours off offer."""
        found = [Lost(owner, "off offer", amount) for owner, amount in self.away.items()]
        for owner in sorted(set(self.owners.values())):
            mine = [lease for lease, who in self.owners.items() if who == owner]
            worked = sum(self.worked.get(lease, 0.0) for lease in mine)
            blocked = sum(self.busy[lease] for lease in mine if lease not in self.worked)
            # What it got pays first what it worked.
            missing = worked - earned.get(owner, 0)
            found.append(Lost(owner, "pay", max(0.0, missing)))
            found.append(Lost(owner, "blocked slots", blocked + min(0.0, missing)))
        return found


@dataclass(frozen=True, slots=True)
class Score:
    """One market's result."""

    party: str
    seed: int
    ratio: float
    ratio_5gwei: float
    cost: float
    losses: dict[str, int]

    def text(self) -> str:
        """One line."""
        lost = ", ".join(f"{what} {amount}" for what, amount in sorted(self.losses.items()))
        return (
            f"{self.party:28} seed {self.seed:>5}  {self.ratio:>9} {self.ratio_5gwei:>9}"
            f"  spent {self.cost:.0f}, lost {lost or 'nothing'}"
        )


def score(ledger: Ledger, party: str, seed: int, coalition: Coalition) -> Score:
    """A market's result."""
    ratios = [ledger.ratio(coalition, gwei) for gwei in UNITS_PER_GAS]
    cost, losses = ledger.cost(coalition, 0), dict(ledger.losses(coalition))
    return Score(party, seed, ratios[0], ratios[1], cost, losses)


def summary(scores: list[Score], admitted: dict[str, tuple[int, str]]) -> dict[str, object]:
    """What `make sim` prints. The worst ratios are those of parties that are not admitted."""
    by_party: dict[str, float] = {}
    for item in scores:
        by_party[item.party] = max(by_party.get(item.party, 0.0), item.ratio)
    bound = [item for item in scores if item.party not in admitted]
    return {
        "worst_ratio": max((item.ratio for item in bound), default=0.0),
        "worst_ratio_5gwei": max((item.ratio_5gwei for item in bound), default=0.0),
        "by_party": dict(sorted(by_party.items())),
        "admitted": sorted(admitted.keys() & by_party.keys()),
    }


def violation(item: Score, admitted: dict[str, tuple[int, str]]) -> str | None:
    """Why a market breaks I11. An admitted party may cause a loss up to its bound."""
    loss = sum(item.losses.values())
    if item.party in admitted:
        most = admitted[item.party][0]
        return f"I11: {item.party} cost others {loss}, {most} are admitted" if loss > most else None
    if max(item.ratio, item.ratio_5gwei) <= 1:
        return None
    return f"I11: {item.party} spent {item.cost:.0f}, others lost {loss}: {item.losses}"
