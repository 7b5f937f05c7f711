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
SECRET_AFTER, RETIRE_GRACE = DEVNET.max_hold, DEVNET.ack_age_max


@dataclass
class Demand:
    """A demand for a reveal or for a secret. Times are in seconds."""

    kind: FaultKind
    liable: Address
    demander: Address
    answer_by: int
    cost: int = 0  # of the assignment; a secret has none
    is_open: bool = True


@dataclass
class Faults:
    """What was proven, demanded, credited and burned."""

    staking: Staking
    demands: dict[Hash32, Demand] = field(default_factory=dict)
    proven: set[tuple[FaultKind, Address, object]] = field(default_factory=set)
    last: dict[tuple[Address, FaultKind], int] = field(default_factory=dict)
    credits: Counter[Address] = field(default_factory=Counter)
    burned: int = 0

    def total(self) -> int:
        """What Faults holds."""
        bonds = FEE * sum(demand.is_open for demand in self.demands.values())
        return bonds + sum(self.credits.values()) + self.burned

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
        self._punish(FaultKind.EQUIVOCATION, body.provider, cost_of(body), sender, at)

    def demand_reveal(
        self, sender: Address, body: Assignment, subject: Hash32, closed_at: int, now: int
    ) -> None:
        self.check_age(closed_at, now)
        need(self._coordinator(body).was_bonded(closed_at), "bond")
        self._demand(FaultKind.UNREVEALED, subject, body.provider, sender, now, cost_of(body))

    def demand_secret(
        self, sender: Address, coordinator: Address, subject: Hash32, due: int, now: int
    ) -> None:
        """`due` is the later one of the order's end and the Ack."""
        need(now >= due + SECRET_AFTER, "early")
        need(now <= due + SECRET_AFTER + AGE, "late")
        self._demand(FaultKind.UNOPENED_SECRET, subject, coordinator, sender, now, 0)

    def answer(self, subject: Hash32, is_right: bool, now: int) -> None:
        demand = self._open(subject)
        need(now <= demand.answer_by, "phase")
        need(is_right, "reveal" if demand.kind is FaultKind.UNREVEALED else "secret")
        self._close(demand, demand.liable)

    def punish_unanswered(self, subject: Hash32, at: tuple[int, int]) -> None:
        demand = self._open(subject)
        need(at[0] > demand.answer_by, "early")
        self._close(demand, demand.demander)
        self._punish(demand.kind, demand.liable, demand.cost, demand.demander, at)

    def coordinator_fault(
        self, kind: FaultKind, sender: Address, coordinator: Address, subject: object, now: int
    ) -> None:
        """Two messages that the coordinator must not both sign, or one after it retired."""
        self._prove(kind, coordinator, subject)
        self._punish(kind, coordinator, 0, sender, (now, 0))

    def withdraw(self, account: Address) -> None:
        need(self.credits[account] > 0, "amount")
        self.credits[account] = 0

    def _coordinator(self, body: Assignment) -> Model:
        return self.staking.coordinators[body.coordinator]

    def _prove(self, kind: FaultKind, account: Address, subject: object) -> None:
        need((kind, account, subject) not in self.proven, "proven")
        self.proven.add((kind, account, subject))

    def _demand(
        self,
        kind: FaultKind,
        subject: Hash32,
        liable: Address,
        sender: Address,
        now: int,
        cost: int,
    ) -> None:
        need(subject not in self.demands, "demanded")
        until = now + DEVNET.reveal_demand
        self.demands[subject] = Demand(kind, liable, sender, until, cost)
        self.staking.freeze(liable)

    def _open(self, subject: Hash32) -> Demand:
        demand = self.demands.get(subject)
        need(demand is not None and demand.is_open, "phase")
        assert demand is not None
        return demand

    def _close(self, demand: Demand, receiver: Address) -> None:
        demand.is_open = False
        self.credits[receiver] += FEE
        self.staking.freeze(demand.liable, -1)

    def _punish(
        self, kind: FaultKind, liable: Address, cost: int, sender: Address, at: tuple[int, int]
    ) -> None:
        """A provider's first fault in 90 days is a fine, a later one a slash."""
        if liable in self.staking.coordinators:
            penalty = DEVNET.coordinator_fault_penalty
            taken = self.staking.slash(liable, penalty, *at)
        else:
            last = self.last.get((liable, kind))
            self.last[liable, kind] = at[0]
            if last is None or at[0] >= last + FIRST_FAULT_FOR:
                taken = self.staking.fine(liable, cost, *at)
            else:
                taken = self.staking.slash(liable, SLASH_MULTIPLE * cost, *at)
        fee = min(FEE, taken)
        self.credits[sender] += fee
        self.burned += taken - fee


def cost_of(body: Assignment) -> int:
    """The pay of a whole run, and at least what the sender gets for its gas."""
    whole = pay_for(Milliseconds(body.max_duration * 1000), body.price_per_hour, Amount(2**127))
    return max(FEE, whole)
