"""Checks that accounts follow from receipts: an independent ledger beside the coordinator's.

It computes every charge and credit again, from signed documents and with formulas of its own.
"""

from collections import Counter
from dataclasses import dataclass, field

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.entities import Trusts
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.messages import receipt
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.rules import receipt_checks
from quorate_protocol.rules.beacon_rounds import round_time
from quorate_protocol.rules.eligible_list import EligibleList
from quorate_protocol.units import Address, Hash32, Label
from quorate_protocol.units import Outcome as JobOutcome
from quorate_runtime.keys.crypto import recover
from sim import workload
from sim.conduct_checks import ConductChecks
from sim.coordinator import FEE_BPS, CoordinatorDaemon
from sim.coverage import Coverage
from sim.parties import BEACON, DOMAIN, is_beacon_signature, key
from sim.plan import LYING, Behaviour
from sim.provider import Provider

VERIFIABLE = ("pure", "fails", "times-out", "memory")


@dataclass(slots=True)
class ReceiptLedger:
    """What every account owes and is owed, according to receipts."""

    charged: dict[Address, int] = field(default_factory=dict)
    earned: dict[Address, int] = field(default_factory=dict)
    fees: int = 0
    premiums: int = 0
    refunds: dict[Address, int] = field(
        default_factory=dict
    )  # held pay that was returned to its client
    from_fund: int = (
        0  # What accepted audits cost; the fund of a large market starts with money and can pay it.
    )
    receipts: dict[Hash32, Receipt] = field(default_factory=dict)


class AccountChecks:
    """The ledger of one world, filled from receipts and compared with the core's accounts."""

    def __init__(self, coverage: Coverage, conduct: ConductChecks) -> None:
        self.coverage, self.conduct = coverage, conduct
        self.coordinator: CoordinatorDaemon
        self.providers: dict[str, Provider] = {}
        self.ledger = ReceiptLedger()
        # job -> the list from which its auditors were drawn
        self.lists: dict[Hash32, EligibleList] = {}
        # Accounts before a step: the rates of a round's draws depend on them.
        self.held_before: dict[Address, int] = {}
        self.trust_before: dict[Address, Trusts] = {}
        self._credits: dict[Address, int] = {}  # final and held pay, after the last step
        self._earned: dict[Address, int] = {}  # by this ledger, after the last step
        self._given_back: set[Address] = set()  # providers that lost held pay in this step
        self._held: dict[Hash32, int] = {}  # a held execution -> its credit

    def take_receipt(self, core: CoordinatorCore, data: bytes) -> None:
        """Verifies a receipt as a stranger would, and adds its sums to the ledger."""
        body = canonical.from_json(Receipt, canonical.parse(data, 1 << 20))
        document = receipt.document(body)
        report = receipt_checks.verify(document, recover, is_beacon_signature)
        assert report.valid, f"a receipt does not verify: {report.failures}"
        job_id = body.ack.message.job_id
        first = self.ledger.receipts.get(job_id)
        self.ledger.receipts[job_id] = body
        self.lists[job_id] = core.state.eligible(core.state.jobs[job_id])
        self._check_group(body)
        self.conduct.judged(body)
        if first is None:
            self._add(body)
        else:
            self._adjust(first, body)

    def _check_group(self, body: Receipt) -> None:
        """I3: providers with the true result in time are in the group. I8: providers that copied
        are not.
        """
        verdict = body.verdict.message
        owners = [item.assignment.message.provider for item in body.executions]
        assert len(set(owners)) == len(owners), "I9: one owner executed a job twice"
        if verdict.label is Label.QUORUM_2:
            results = [
                result_digest(item.reveal.exit_status, item.reveal.output_digest)
                for item in body.executions
                if item.reveal
            ]
            agreeing = max(Counter(results).values(), default=0)
            is_settled = verdict.outcome is JobOutcome.ACCEPTED
            assert is_settled == (agreeing == 2) or verdict.outcome is JobOutcome.LAPSED, (
                f"I3: two must settle, {agreeing} agree"
            )
        if verdict.outcome is not JobOutcome.ACCEPTED:
            return
        is_stopped = any(
            item.reveal and item.reveal.exit_status == workload.STOPPED for item in body.executions
        )
        if self._is_won_by_ring(body):
            self.coverage.facts["won by a ring"] += 1
            return
        for item in body.executions:
            hashed = digest(DOMAIN, item.assignment.message)
            is_paid = hashed in verdict.group
            self._check_key(item, is_paid)
            if item.reveal is None:
                assert not is_paid, "an execution that was never revealed is paid"
                continue
            who = next(
                name
                for name, provider in self.providers.items()
                if provider.owner == item.assignment.message.provider
            )
            ran = workload.truth(body.spec, who)
            is_true = (
                result_digest(item.reveal.exit_status, item.reveal.output_digest) == ran.result()
            )
            if (
                workload.kind_of(body.spec) in VERIFIABLE
                and not is_stopped
                and verdict.label is not Label.UNVERIFIED
            ):
                is_sure = verdict.label is not Label.ADAPTIVE or len(body.executions) > 1
                assert is_true == is_paid or not is_sure, (
                    f"I3: {who} told {'the truth' if is_true else 'a lie'} and is paid: {is_paid}"
                )
            if (
                self.providers[who].planned is Behaviour.HONEST
                and workload.kind_of(body.spec) in VERIFIABLE
                and is_stopped
            ):
                assert is_paid, f"I3: the honest {who} was outvoted on a stopped job"

    def _check_key(self, item: ExecutionEvidence, is_paid: bool) -> None:
        """I5: a receipt shows the key that the registry has for acceptBy, even after a rotation."""
        assignment = item.assignment.message
        expected = self.coordinator.chain.keys[assignment.provider].at(assignment.accept_by).address
        assert item.operator_key == expected, (
            "I5: a receipt names another operator key than was valid at acceptBy"
        )
        signed_before = {
            lease for provider in self.providers.values() for lease in provider.under_old_keys
        }
        self.coverage.facts["paid under a key rotated away"] += (
            is_paid and digest(DOMAIN, assignment) in signed_before
        )

    def _is_won_by_ring(self, body: Receipt) -> bool:
        """Whether colluders won: two that agree on a wrong result can (docs/trust), one alone
        cannot.
        """
        inside = body.verdict.message.group
        owners = [
            item.assignment.message.provider
            for item in body.executions
            if digest(DOMAIN, item.assignment.message) in inside
        ]
        kinds = [
            provider.planned for provider in self.providers.values() if provider.owner in owners
        ]
        return len(kinds) > 1 and set(kinds) <= LYING

    def _add(self, body: Receipt) -> None:
        """I4: computes charges from signed messages only, never above what the client signed."""
        order, verdict = body.order.message, body.verdict.message
        revealed = [item for item in body.executions if item.reveal is not None]
        paid = [
            item for item in revealed if digest(DOMAIN, item.assignment.message) in verdict.group
        ]
        if verdict.outcome is JobOutcome.UNRESOLVED:
            results = {
                result_digest(item.reveal.exit_status, item.reveal.output_digest)
                for item in revealed
                if item.reveal
            }
            paid = revealed if len(results) >= 3 else []
        pays = []
        for item in paid:
            assignment = item.assignment.message
            milliseconds = _milliseconds(body, item)
            assert assignment.price_per_hour <= order.max_price_per_hour, (
                "I4: a price above the client's"
            )
            pays.append(min(milliseconds * assignment.price_per_hour // 3_600_000, order.budget))
        if verdict.label is Label.ADAPTIVE and verdict.outcome is JobOutcome.ACCEPTED:
            billed = 2 if is_audit_billed(body) else 1
            self._fund_owes(paid[billed:], pays[billed:])
            paid, pays = paid[:billed], pays[:billed]
            self.coverage.facts["a client paid the audit of an unwitnessed commit"] += billed - 1
        self._add_sums(body, [item.assignment.message.provider for item in paid], pays)

    def _adjust(self, first: Receipt, second: Receipt) -> None:
        """Adjusts the ledger when a held job was executed again.

        The credit of the first verdict stays, is forfeited, or goes back to the client.
        """
        assert first.verdict.message.label is Label.ADAPTIVE and len(first.executions) == 1, (
            "a job was decided twice"
        )
        primary, helpers = first.executions[0], second.executions[1:]
        hashed, owner = (
            digest(DOMAIN, primary.assignment.message),
            primary.assignment.message.provider,
        )
        verdict, client = second.verdict.message, second.order.message.client
        credit = self._held[hashed]
        paid = [
            item for item in helpers if digest(DOMAIN, item.assignment.message) in verdict.group
        ]
        pays = [self._pay(second, item) for item in paid]
        if hashed in verdict.group:
            self.coverage.facts["held, confirmed"] += 1
            self._fund_owes(paid, pays)
            return
        self.ledger.earned[owner] -= credit
        self._given_back.add(owner)
        if hashed not in verdict.faulted:
            self.coverage.facts["held, gone"] += 1
            self.ledger.refunds[client] = self.ledger.refunds.get(client, 0) + credit
            return
        self.coverage.facts["held, caught"] += 1
        for item, pay in zip(paid, pays, strict=True):
            if pay > credit:
                self._fund_owes([item], [pay])
                continue
            credit -= pay
            helper = item.assignment.message.provider
            self.ledger.earned[helper] = self.ledger.earned.get(helper, 0) + pay
        self.ledger.premiums += credit

    def compare_given_back(self) -> None:
        """I1: compared after a whole step, because one tick may decide several jobs of one
        provider.
        """
        for owner in sorted(self._given_back):
            booked = self._earned.get(owner, 0) - self.ledger.earned[owner]
            fell = self._credits.get(owner, 0) - self._credit_of(owner)
            assert fell == booked, (
                f"I1: {booked} of held pay was forfeited or gone, the credit fell by {fell}"
            )
        self._given_back.clear()

    def _credit_of(self, owner: Address) -> int:
        found = self.coordinator.core.state.providers[owner]
        return found.final + found.held

    def _pay(self, body: Receipt, item: ExecutionEvidence) -> int:
        assignment = item.assignment.message
        milliseconds = _milliseconds(body, item)
        return min(milliseconds * assignment.price_per_hour // 3_600_000, body.order.message.budget)

    def _fund_owes(self, audits: list[ExecutionEvidence], pays: list[int]) -> None:
        """Adds pay of auditors, which the audit fund pays and not the client."""
        for item, pay in zip(audits, pays, strict=True):
            owner = item.assignment.message.provider
            self.ledger.earned[owner] = self.ledger.earned.get(owner, 0) + pay
            self.ledger.from_fund += pay

    def _add_sums(self, body: Receipt, owners: list[Address], pays: list[int]) -> None:
        order = body.order.message
        job = self.coordinator.core.state.jobs[body.ack.message.job_id]
        has_premium = body.ack.message.rule is Label.ADAPTIVE and not is_audit_billed(body)
        premium = pays[0] * order.audit_premium_bps // 10_000 if pays and has_premium else 0
        fee = sum(pays) * FEE_BPS // 10_000
        total = sum(pays) + fee + premium
        if total > job.split.charged:
            # The budget or the reservation reduced it. Then it must be reduced as much as the
            # client's signature says, and no more.
            assert body.verdict.message.outcome is JobOutcome.UNRESOLVED or total > order.budget, (
                "I3: pay was cut without a reason"
            )
            self.coverage.facts["cut by the budget"] += 1
        assert job.split.charged <= min(total, order.budget), (
            "I4: charged more than was earned, or than the budget"
        )
        self.ledger.charged[order.client] = (
            self.ledger.charged.get(order.client, 0) + job.split.charged
        )
        self.ledger.fees += job.split.fee
        self.ledger.premiums += job.split.fund
        for owner, credit, pay in zip(owners, job.split.credits, pays, strict=True):
            assert credit.amount <= pay, "I4: a credit above the pay"
            self.ledger.earned[owner] = self.ledger.earned.get(owner, 0) + credit.amount
        if body.ack.message.rule is Label.ADAPTIVE and len(body.executions) == 1:
            self.coverage.facts["held"] += 1
            self._held[digest(DOMAIN, body.executions[0].assignment.message)] = sum(
                credit.amount for credit in job.split.credits
            )

    def compare_accounts(self, core: CoordinatorCore) -> None:
        """I1: the core's accounts equal this ledger's."""
        state, own = core.state, core.state.own
        self._credits = {owner: item.final + item.held for owner, item in state.providers.items()}
        self._earned = dict(self.ledger.earned)
        self.held_before = {owner: item.held for owner, item in state.providers.items()}
        self.trust_before = dict(state.trust.items())
        past = state.clients.get(key("stranger", 1).address)
        history = past.charged if past is not None else 0
        for account, client in state.clients.items():
            assert client is past or client.charged == self.ledger.charged.get(account, 0), (
                "I1: charged otherwise than receipts say"
            )
            chain = self.coordinator.chain
            had = chain.allocated.get(account, 0) + chain.returned.get(
                account, 0
            )  # a client may have taken back money that it owes
            assert client.charged <= had, (
                f"I4: {client.charged} charged to a client that had {had} on chain"
            )
        credited = sum(item.final + item.held for item in state.providers.values())
        kept = own.fee + own.fee_held + own.fund + own.fund_held
        refunds = sum(client.refund + client.refund_held for client in state.clients.values())
        assert refunds == sum(self.ledger.refunds.values()), (
            "I1: refunded otherwise than receipts say"
        )
        assert credited + kept + refunds == sum(self.ledger.charged.values()) + history, (
            "I1: money was made or lost"
        )
        spent = self.ledger.premiums + history - own.fund - own.fund_held
        assert spent >= self.ledger.from_fund, "I3: audits are unpaid"
        assert credited == sum(self.ledger.earned.values()) + spent - self.ledger.from_fund, (
            "I1: the fund paid otherwise than it fell"
        )


def _milliseconds(body: Receipt, item: ExecutionEvidence) -> int:
    """I4: the paid milliseconds of an execution.

    Pay is limited to the job's maximum duration, and to two minutes more than the time from
    acceptBy to the commit.
    """
    assignment, batches = item.assignment.message, [batch.message for batch in body.batches]
    (closed,) = [
        batch
        for batch in batches
        if digest(DOMAIN, assignment) in {entry.assignment_hash for entry in batch.ordered}
    ]
    is_primary = closed.beacon_round > 0 and item == body.executions[0]
    by = round_time(BEACON, closed.beacon_round) if is_primary else closed.closed_at
    return max(
        0,
        min(
            item.commit.message.usage_ms,
            1000 * assignment.max_duration,
            1000 * (by + 120 - assignment.accept_by),
        ),
    )


def is_audit_billed(body: Receipt) -> bool:
    """Whether the client pays one more execution as the audit's premium.

    That is so if nobody witnessed the primary's commit and the order does not accept that.
    """
    is_alone = body.witness is None and not body.order.message.accept_unwitnessed
    return (
        body.ack.message.rule is Label.ADAPTIVE
        and is_alone
        and len(body.batches[0].message.ordered) > 1
    )
