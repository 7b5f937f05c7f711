"""The simulated Jobs: orders with an escrow of their own (PROTOCOL §6)."""

from collections import Counter
from copy import copy
from dataclasses import dataclass, replace

from quorate_coordinator.core.model.effects import ShownRun
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DAY, Limits
from quorate_protocol.messages.commitment import assignment_id, commitment, result_digest
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.signed import Order
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys.crypto import recover
from sim.escrow import JOBS, Escrow, need
from sim.operator_keys import OperatorKeys
from sim.parties import DOMAIN, key

START_ALLOWANCE = 120
MS_PER_HOUR = 3_600_000
Place = tuple[Address, Hash32]
"""A client and the digest of its order."""


@dataclass(frozen=True, slots=True)
class Funded:
    """One funded order."""

    budget: int
    until: int
    shown: tuple[tuple[Address, int, tuple[Hash32, Hash32]], ...] = ()  # owner, pay, group
    first: int = 0
    last: int = 0
    is_over: bool = False


class Jobs:
    """All funded orders."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.jobs: dict[Place, Funded] = {}

    def copy(self) -> "Jobs":
        """The same orders, which change by themselves."""
        again = copy(self)
        again.jobs = dict(self.jobs)
        return again

    def fund(
        self, escrow: Escrow, client: Address, job_id: Hash32, budget: int, until: int, now: int
    ) -> None:
        """Moves the budget of an order out of its client's balance, once."""
        need((client, job_id) not in self.jobs, "funded")
        need(budget > 0 and now < until <= now + 400 * DAY, "amount")
        escrow.move(client, JOBS, budget)
        self.jobs[client, job_id] = Funded(budget, until)

    def show(
        self, keys: dict[Address, OperatorKeys], order: Order, run: ShownRun, now: int
    ) -> None:
        """Takes one execution of one owner."""
        place = order.client, digest(DOMAIN, order)
        job, owner = self._open(place), run.assignment.message.provider
        need(now <= job.until and len(job.shown) < 7, "late")
        need(owner in keys and owner not in {item[0] for item in job.shown}, "shown")
        self._check_times(order, run, job, now)
        group = self._check_run(keys, order, run)
        item = owner, min(_pay(run), job.budget), group
        first = job.first or now
        self.jobs[place] = replace(job, shown=(*job.shown, item), first=first, last=now)

    def _check_times(self, order: Order, run: ShownRun, job: Funded, now: int) -> None:
        body, at = run.assignment.message, run.receipt.message.time
        need(body.accept_by < now and body.accept_by <= order.expiry + DAY, "time")
        need(body.max_duration <= order.max_duration, "duration")
        age = self.limits.escrow_evidence_age
        need(now <= body.accept_by + body.max_duration + age, "old")
        need(at + START_ALLOWANCE >= body.accept_by and at <= now, "time")
        need(not job.first or at <= job.first, "copied")

    def _check_run(
        self, keys: dict[Address, OperatorKeys], order: Order, run: ShownRun
    ) -> tuple[Hash32, Hash32]:
        """I5: what an honest daemon shows is signed, is of this job, and opens."""
        body, commit = run.assignment.message, run.commit.message
        hashed, statement = digest(DOMAIN, body), key("statement").address
        operator = keys[body.provider].at(body.accept_by).address
        named = assignment_id(digest(DOMAIN, order), run.index, run.blind)
        result = result_digest(run.reveal.exit_status, run.reveal.output_digest)
        need(body.assignment_id == named, "blind")
        need(body.coordinator == order.coordinator and body.spec_hash == order.spec_hash, "spec")
        need(body.price_per_hour <= order.max_price_per_hour, "price")
        need(signer(DOMAIN, run.assignment, recover) == statement, "assignment")
        need(commit.assignment_hash == hashed, "commit")
        need(signer(DOMAIN, run.commit, recover) == operator, "commit")
        need(run.receipt.message.commit_hash == digest(DOMAIN, commit), "receipt")
        need(signer(DOMAIN, run.receipt, recover) == statement, "receipt")
        opened = commitment(hashed, body.provider, run.reveal.salt, result)
        need(commit.commitment == opened, "opening")
        return commit.class_id, result

    def pay(self, escrow: Escrow, order: Order, now: int) -> None:
        """Pays the largest groups of at least two owners, with the fee; the client has the rest."""
        place = order.client, digest(DOMAIN, order)
        job = self._open(place)
        sizes = Counter(group for _, _, group in job.shown)
        most = max(sizes.values(), default=0)
        ready = min(job.until, job.last + self.limits.evidence_window) if most > 1 else job.until
        need(now > ready, "early")
        self.jobs[place] = replace(job, is_over=True)
        left = job.budget
        if most > 1:
            paid = [(owner, pay) for owner, pay, group in job.shown if sizes[group] == most]
            total = sum(pay for _, pay in paid)
            fee = total * order.max_fee_bps // 10_000
            due = max(total + fee, 1)
            share = min(due, job.budget)
            for who, amount in (*paid, (order.coordinator, fee)):
                escrow.move(JOBS, who, amount * share // due)
                left -= amount * share // due
        escrow.move(JOBS, order.client, left)

    def reclaim(self, escrow: Escrow, place: Place, now: int) -> None:
        """After the end the budget goes back, unless two executions were shown."""
        job = self._open(place)
        need(now > job.until and len(job.shown) < 2, "early")
        self.jobs[place] = replace(job, is_over=True)
        escrow.move(JOBS, place[0], job.budget)

    def release(self, place: Place, now: int) -> None:
        """The coordinator assigned nothing: evidence is taken for one window more."""
        job = self._open(place)
        need(not job.shown, "shown")
        until = min(job.until, now + self.limits.evidence_window)
        self.jobs[place] = replace(job, until=until)

    def _open(self, place: Place) -> Funded:
        job = self.jobs.get(place)
        need(job is not None, "unknown")
        assert job is not None
        need(not job.is_over, "over")
        return job

    def check(self, escrow: Escrow) -> None:
        """I1: the budgets of all open orders are there, and nothing else."""
        held = sum(job.budget for job in self.jobs.values() if not job.is_over)
        assert escrow.balances[JOBS] == held, f"I1: orders hold {escrow.balances[JOBS]}, not {held}"


def _pay(run: ShownRun) -> int:
    """min(usage, maxDuration, time until the commit) x price."""
    body, at = run.assignment.message, run.receipt.message.time
    longest = min(body.max_duration, at + START_ALLOWANCE - body.accept_by)
    return min(run.commit.message.usage_ms, longest * 1000) * body.price_per_hour // MS_PER_HOUR
