"""Calls, queries and events of `Jobs`.

Written by `binding_writer` from the contract; do not edit it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import Call, Contract, Query, one, struct_of
from quorate_protocol.messages.signed import Assignment, Commit, Order
from quorate_protocol.units import Address, Amount, Hash32, Signature, UnixSeconds


@dataclass(frozen=True, slots=True)
class Run:
    """What `Jobs` calls run."""

    index: int
    blind: Hash32
    assignment: Assignment
    assignment_sig: Signature
    commit: Commit
    commit_sig: Signature
    committed_at: int
    receipt_sig: Signature
    exit_status: int
    output_digest: Hash32
    salt: Hash32


@dataclass(frozen=True, slots=True)
class Job:
    """What `Jobs` calls job."""

    budget: Amount
    until: UnixSeconds
    first_shown: int
    last_shown: int
    count: int
    is_over: int


@dataclass(frozen=True, slots=True)
class Funded:
    """An event of `Jobs`."""

    client: Address
    job_id: Hash32
    budget: Amount
    until: UnixSeconds


@dataclass(frozen=True, slots=True)
class Shown:
    """An event of `Jobs`."""

    client: Address
    job_id: Hash32
    provider: Address
    pay: Amount
    group: Hash32
    count: int


@dataclass(frozen=True, slots=True)
class JobPaid:
    """An event of `Jobs`."""

    client: Address
    job_id: Hash32
    amount: Amount
    fee: Amount


@dataclass(frozen=True, slots=True)
class Released:
    """An event of `Jobs`."""

    client: Address
    job_id: Hash32
    until: UnixSeconds


@dataclass(frozen=True, slots=True)
class Returned:
    """An event of `Jobs`."""

    client: Address
    job_id: Hash32
    amount: Amount


@dataclass(frozen=True, slots=True)
class Jobs(Contract):
    """The contract `Jobs`."""

    NAME: ClassVar[str] = "Jobs"

    def fund(self, job_id: Hash32, budget: Amount, until: UnixSeconds) -> Call:
        """Moves the budget of an order from the sender's balance here, once. Executions are
        shown until `until`.
        """
        return self._call("fund", job_id, budget, until)

    def show(self, order: Order, run: Run) -> Call:
        """One execution of one staked owner, with all that was signed about it. Anyone may send
        it, until the job is paid or over.
        """
        return self._call("show", order, run)

    def pay(self, order: Order, providers: Sequence[Address]) -> Call:
        """Pays every group of the largest size, at least two owners, with the coordinator's fee;
        the rest is the client's balance. If no two agree, all of it. Anyone may send it: once
        two agree and a window passed in which nothing was shown, or after `until`.
        """
        return self._call("pay", order, providers)

    def reclaim(self, client: Address, job_id: Hash32) -> Call:
        """After `until`, if fewer than two executions were shown: the budget is the client's
        balance. Anyone may send it.
        """
        return self._call("reclaim", client, job_id)

    def release(self, order: Order) -> Call:
        """The coordinator says that it assigned nothing, by its account or its posting key:
        evidence is taken for one window more.
        """
        return self._call("release", order)

    def job(self, client: Address, job_id: Hash32) -> Query[Job]:
        """A funded order as it stands; zeros if it was never funded."""
        return self._query("job", struct_of(Job), client, job_id)

    def escrow(self) -> Query[Address]:
        return self._query("ESCROW", one)

    def stakes(self) -> Query[Address]:
        return self._query("STAKES", one)

    def evidence_window(self) -> Query[int]:
        return self._query("EVIDENCE_WINDOW", one)

    def evidence_age(self) -> Query[int]:
        return self._query("EVIDENCE_AGE", one)


EVENTS: tuple[type, ...] = (Funded, Shown, JobPaid, Released, Returned)
