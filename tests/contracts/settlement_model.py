"""A model of Settlement for one coordinator, in plain Python.

It reads the signed evidence itself. What an execution earns it takes from `quorate_protocol`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.money_model import Account, Credits, Model, need
from quorate_contracts.bindings.settlement import (
    SETTLED_EXECUTIONS_MAX,
    JobEvidence,
    Opening,
    SettledExecution,
    Share,
)
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.eip712 import Domain, digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.signed import Order
from quorate_protocol.rules.settlement import pay_of, payable_usage
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, UnixSeconds
from quorate_protocol.values import replace

EVIDENCE_AGE = DEVNET.allocation_release
INDEX_MAX = 63


@dataclass(frozen=True)
class Credited:
    """An entry of the log under a provider's leaf of one epoch."""

    epoch: int
    assignment_id: Hash32
    pay: int


@dataclass
class Settlements:
    """Single jobs of one coordinator, and what of them was settled. Times are in seconds.

    Providers and clients have numbers here: their places in the lists of the money's model.
    """

    model: Model
    credits: Credits
    domain: Domain
    clients: Sequence[Address]
    providers: Sequence[Address]
    settled: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # indices, by order
    openings: set[Opening] = field(default_factory=set)
    answered: dict[Hash32, int] = field(default_factory=dict)  # pay, by assignmentId
    answered_of: dict[Address, int] = field(default_factory=dict)

    def settle(self, jobs: Sequence[JobEvidence], now: int, is_known: bool = False) -> None:
        """The coordinator settles jobs at once."""
        debts: list[tuple[int, int, int, int]] = []
        noted = {order: list(indices) for order, indices in self.settled.items()}
        credits: list[tuple[int, int]] = []
        for job in jobs:
            client, nonce, up_to = self._terms(job, now, is_known)
            indices = noted.setdefault((client, nonce), [])
            pays = []
            for each in job.executions:
                if len(indices) < SETTLED_EXECUTIONS_MAX and each.index not in indices:
                    indices.append(each.index)
                    pays.append((self._number(each), _pay(job.order.message, each)))
            total = sum(pay for _, pay in pays)
            need(total > 0, "settled")
            debts.append((client, nonce, total, up_to))
            credits += pays
        self.model.settle(debts)
        self.settled = noted
        self._credit(credits)

    def opening(self, job: JobEvidence, now: int, is_known: bool = False) -> Opening:
        """What a stranger's evidence entitles its providers to."""
        up_to = self._terms(job, now, is_known)[-1]
        order = job.order.message
        first = job.executions[0].reveal
        return Opening(
            digest(self.domain, order),
            order.coordinator,
            order.client,
            order.nonce,
            Amount(up_to),
            result_digest(first.exit_status, first.output_digest),
            UnixSeconds(now + DEVNET.settle_response),
            tuple(_share(order, each) for each in job.executions),
        )

    def open(self, opening: Opening) -> None:
        need(opening not in self.openings, "opened")
        need(opening.nonce >= self._client(opening).nonce_floor, "covered")
        self.openings.add(opening)

    def answer(self, opening: Opening, number: int, shown: Credited) -> None:
        """An epoch credits the execution of a share."""
        need(opening in self.openings, "opened")
        need(shown.epoch in self.model.valid(), "epoch")
        share = opening.shares[number]
        need(share.assignment_id != ZERO_HASH and shown.pay > 0, "amount")
        need(share.assignment_id == shown.assignment_id, "proof")
        _, finals, held = self.model.posted[shown.epoch - 1]
        known = self.answered.get(share.assignment_id, 0)
        of = self.answered_of.get(share.provider, 0) + max(0, shown.pay - known)
        if shown.pay > known:
            need(of <= finals[self.providers.index(share.provider)] + held, "sums")
            self.answered[share.assignment_id] = shown.pay
        self.answered_of[share.provider] = of
        self.openings.remove(opening)
        changed = self.after_answer(opening, number, shown.pay)
        if any(each.amount for each in changed.shares):
            self.openings.add(changed)

    @staticmethod
    def after_answer(opening: Opening, number: int, pay: int) -> Opening:
        shares = list(opening.shares)
        left = Amount(max(0, shares[number].amount - pay))
        shares[number] = replace(shares[number], assignment_id=ZERO_HASH, amount=left)
        return replace(opening, shares=tuple(shares))

    def outvote(self, opening: Opening, job: JobEvidence, now: int) -> None:
        """As many executions of the same job gave another result."""
        need(opening in self.openings, "opened")
        other = self.opening(job, now)
        need(other.job_id == opening.job_id and other.result != opening.result, "result")
        need(len(other.shares) >= len(opening.shares), "count")
        self.openings.remove(opening)

    def execute(self, opening: Opening, now: int) -> None:
        need(now >= opening.ready_at, "early")
        need(opening in self.openings, "opened")
        who, client = self._client(opening), self.clients.index(opening.client)
        need(opening.nonce >= who.nonce_floor, "covered")
        left = who.allocated - who.charged
        indices = list(self.settled.get((client, opening.nonce), []))
        due: list[tuple[int, int]] = []
        for share in opening.shares:
            is_new = len(indices) < SETTLED_EXECUTIONS_MAX and share.index not in indices
            if share.amount and is_new:
                indices.append(share.index)
                due.append((self.providers.index(share.provider), share.amount))
        total = sum(amount for _, amount in due)
        need(total > 0, "settled")
        if total > left:
            due = [(provider, amount * left // total) for provider, amount in due]
        paid = sum(amount for _, amount in due)
        need(paid > 0, "allocation")
        self.model.settle([(client, opening.nonce, paid, opening.up_to)])
        self.openings.remove(opening)
        self.settled[client, opening.nonce] = indices
        self._credit(due)

    def pay_credit(self, provider: int) -> None:
        amount = self.credits.of.get(provider, 0)
        need(amount > 0, "amount")
        self.credits.of[provider] = 0
        self.credits.paid += amount

    def _credit(self, payments: Sequence[tuple[int, int]]) -> None:
        for provider, amount in payments:
            self.credits.of[provider] = self.credits.of.get(provider, 0) + amount

    def _terms(self, job: JobEvidence, now: int, is_known: bool) -> tuple[int, int, int]:
        """Client, nonce, and what the session signs for, once the evidence is in order."""
        order, session = job.order.message, job.session.message
        client = self.clients.index(order.client)
        terms: tuple[int, int] | None = (session.up_to, session.expires)
        if is_known:
            terms = self.model.clients[client].remembered
        need(terms is not None, "order")
        assert terms is not None
        need(len(job.executions) >= 2, "count")
        seen: list[Address] = []
        for each in job.executions:
            body = each.assignment.message
            need(body.accept_by < now, "early")
            need(body.accept_by <= terms[1], "expired")
            need(now <= body.accept_by + body.max_duration + EVIDENCE_AGE, "late")
            need(body.price_per_hour <= order.max_price_per_hour, "price")
            need(each.index <= INDEX_MAX, "index")
            need(body.provider not in seen, "provider")
            seen.append(body.provider)
        first = min(each.assignment.message.accept_by for each in job.executions)
        need(first <= order.expiry, "expired")
        return client, order.nonce, terms[0]

    def _client(self, opening: Opening) -> Account:
        return self.model.clients[self.clients.index(opening.client)]

    def _number(self, each: SettledExecution) -> int:
        return self.providers.index(each.assignment.message.provider)


def _share(order: Order, each: SettledExecution) -> Share:
    body = each.assignment.message
    assert each.receipt is not None
    usage = payable_usage(each.commit.message.usage_ms, body, each.receipt.message.time)
    earned = min(pay_of(order, body, usage), order.budget // SETTLED_EXECUTIONS_MAX)
    return Share(body.assignment_id, body.provider, each.index, Amount(earned))


def _pay(order: Order, each: SettledExecution) -> int:
    """What the coordinator settles: usage is signed, so it counts up to maxDuration."""
    earned = pay_of(order, each.assignment.message, each.commit.message.usage_ms)
    return min(earned, order.budget // SETTLED_EXECUTIONS_MAX)
