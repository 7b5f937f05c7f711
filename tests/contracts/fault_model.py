"""A model of Faults in plain Python: what signatures prove by themselves, and what it costs."""

from collections import Counter
from dataclasses import dataclass, field

from contracts.money_model import Model, need
from contracts.staking_model import Staking
from quorate_contracts.bindings.faults import FaultKind
from quorate_protocol.limits import DAY, DEVNET, SLASH_MULTIPLE
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.units import Address, Amount, Hash32, Milliseconds, pay_for

FEE, AGE = DEVNET.jury_gas_fee, DEVNET.case_evidence_age
FIRST_FAULT_FOR = 90 * DAY


@dataclass
class Faults:
    """What was proven, credited and burned."""

    staking: Staking
    proven: set[tuple[FaultKind, Address, object]] = field(default_factory=set)
    last: dict[Address, int] = field(default_factory=dict)
    credits: Counter[Address] = field(default_factory=Counter)
    burned: int = 0

    def total(self) -> int:
        """What Faults holds."""
        return sum(self.credits.values()) + self.burned

    def check_age(self, at: int, now: int) -> None:
        need(at <= now, "early")
        need(now <= at + AGE, "late")

    def equivocation(
        self,
        sender: Address,
        body: Assignment,
        subject: Hash32,
        is_other: bool,
        at: tuple[int, int],
    ) -> None:
        """Two Commits of one assignment; `at` is the time and the block."""
        self.check_age(body.accept_by, at[0])
        need(self._coordinator(body).was_bonded(body.accept_by), "bond")
        need(is_other, "same")
        self._prove(FaultKind.EQUIVOCATION, body.provider, subject)
        self._punish(body.provider, cost_of(body), sender, at)

    def two_acks(
        self, sender: Address, coordinator: Address, job: Hash32, is_other: bool, at: int, now: int
    ) -> None:
        """Two Acks of one job, signed at `at`."""
        self.check_age(at, now)
        need(is_other, "same")
        self._prove(FaultKind.TWO_ACKS, coordinator, job)
        penalty = DEVNET.coordinator_fault_penalty
        self._share(self.staking.slash(coordinator, penalty, now, 0), sender)

    def withdraw(self, account: Address) -> None:
        need(self.credits[account] > 0, "amount")
        self.credits[account] = 0

    def _coordinator(self, body: Assignment) -> Model:
        return self.staking.coordinators[body.coordinator]

    def _prove(self, kind: FaultKind, account: Address, subject: object) -> None:
        need((kind, account, subject) not in self.proven, "proven")
        self.proven.add((kind, account, subject))

    def _punish(self, provider: Address, cost: int, sender: Address, at: tuple[int, int]) -> None:
        """A first fault in 90 days is a fine, a later one a slash."""
        last = self.last.get(provider)
        self.last[provider] = at[0]
        if last is None or at[0] >= last + FIRST_FAULT_FOR:
            taken = self.staking.fine(provider, cost, *at)
        else:
            taken = self.staking.slash(provider, SLASH_MULTIPLE * cost, *at)
        self._share(taken, sender)

    def _share(self, taken: int, sender: Address) -> None:
        fee = min(FEE, taken)
        self.credits[sender] += fee
        self.burned += taken - fee


def cost_of(body: Assignment) -> int:
    """The pay of a whole run, and at least what the sender gets for its gas."""
    whole = pay_for(Milliseconds(body.max_duration * 1000), body.price_per_hour, Amount(2**127))
    return max(FEE, whole)
