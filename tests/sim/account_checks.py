"""Checks that accounts follow from receipts: an independent ledger beside the coordinator's.

It computes every charge and credit again, from signed documents and with formulas of its own.
"""

from collections import Counter
from dataclasses import dataclass, field

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.effects import SendPayroll
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import receipt
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.messages.signed import Order, Voucher
from quorate_protocol.rules.receipts import receipt_checks, receipt_pins
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.units import Address, Hash32, Label
from quorate_protocol.units import Outcome as JobOutcome
from quorate_runtime.keys.crypto import recover
from sim import repeat_checks, workload
from sim.conduct_checks import ConductChecks
from sim.coordinator import FEE_BPS, CoordinatorDaemon
from sim.coverage import Coverage
from sim.parties import DOMAIN, is_beacon_signature, key
from sim.plan import LYING, Behaviour
from sim.provider import Provider

VERIFIABLE = ("pure", "noisy", "fails", "times-out", "memory")


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
    # what the audit fund owes each provider, whether it could pay or not
    from_fund: dict[Address, int] = field(default_factory=dict)
    verdict_times: dict[Hash32, int] = field(default_factory=dict)  # of first verdicts
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
        self._from_fund: dict[Address, int] = {}  # what the fund has paid to each provider so far
        self._held: dict[Hash32, int] = {}  # a held execution -> its credit
        self._missing = 0  # what the audit fund could not pay so far
        self._taken_in = 0  # what it has got from charges so far
        self._fund_paid: dict[Address, int] = {}  # clients' premiums before a step
        self._charged: dict[Address, int] = {}  # clients' charges before a step
        self._vouched: dict[Address, int] = {}  # what was signed for each provider
        self.images = repeat_checks.Images(conduct.limits.unverifiable_for)

    def take_receipt(self, core: CoordinatorCore, data: bytes) -> Receipt:
        """Verifies a receipt as a stranger would, and adds its sums to the ledger; returns it."""
        body = canonical.from_json(Receipt, canonical.parse(data, 1 << 20))
        document = receipt.document(body)
        report = receipt_checks.verify(document, recover, is_beacon_signature)
        assert report.valid, f"a receipt does not verify: {report.failures}"
        job_id = body.ack.message.job_id
        first = self.ledger.receipts.get(job_id)
        is_escrowed = body.ack.message.escrowed
        self.ledger.receipts[job_id] = body
        self.lists[job_id] = core.state.eligible(core.state.jobs[job_id])
        snapshot = core.state.eligible_snapshots[body.ack.message.eligible_root]
        for check in receipt_pins.list_checks(body, core.state.market.slots_of(snapshot)):
            assert check.is_good, f"I9: not every staked owner could be drawn: {check}"
        self._check_group(body)
        self.conduct.judged(core, body)
        self.images.check(body, was_asked=bool(core.state.jobs[job_id].agreed))
        aside = {
            (client, x.image) for client, known in core.state.unverifiable.items() for x in known
        }
        assert aside <= set(self.images.seen), "I5: one owner alone sets an image aside"
        if first is None:
            self.ledger.verdict_times[job_id] = body.verdict.message.time
        if is_escrowed:
            assert not core.state.jobs[job_id].charged_up_to, "I4: a funded order is charged"
            self.coverage.facts["a funded order was judged"] += 1
        if first is None:
            self._add(body)
        else:
            self._adjust(first, body)
        return body

    def _check_group(self, body: Receipt) -> None:
        """I3: providers with the true result in time are in the group. I8: providers that copied
        are not.
        """
        verdict, drawn = body.verdict.message, repeat_checks.drawn_of(body)
        repeat_checks.check_members(body)
        repeat_checks.check_differing(body)
        owners = [item.assignment.message.provider for item in drawn]
        assert len(set(owners)) == len(owners), "I9: one owner executed a job twice"
        if verdict.label is Label.QUORUM_2:
            results = [
                result_digest(item.reveal.exit_status, workload.plain(item.reveal.output_digest))
                for item in repeat_checks.counting(body)
                if item.reveal
            ]
            agreeing = max(Counter(results).values(), default=0)
            is_settled = verdict.outcome is JobOutcome.ACCEPTED
            is_random = len(repeat_checks.contradicted(body)) >= 2
            is_ended = verdict.outcome is JobOutcome.LAPSED or is_random
            self.coverage.facts["one gave two results"] += repeat_checks.has_differed(body)
            assert is_settled == (agreeing >= 2) or is_ended, (
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
        spec = self.coordinator.chain.specs[body.order.message.spec_hash]
        for item in drawn:
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
            ran = workload.truth(spec, who, self.providers[who].host)
            is_true = (
                result_digest(item.reveal.exit_status, item.reveal.output_digest) == ran.result()
            )
            if (
                workload.kind_of(spec) in VERIFIABLE
                and not is_stopped
                and verdict.label is not Label.UNVERIFIED
            ):
                is_sure = verdict.label is not Label.ADAPTIVE or len(body.executions) > 1
                assert is_true == is_paid or not is_sure, (
                    f"I3: {who} told {'the truth' if is_true else 'a lie'} and is paid: {is_paid}"
                )
            if (
                self.providers[who].planned is Behaviour.HONEST
                and workload.kind_of(spec) in VERIFIABLE
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
        honest = [
            item
            for item in revealed
            if digest(DOMAIN, item.assignment.message) in verdict.group
            or verdict.outcome is not JobOutcome.ACCEPTED
        ]
        pays = {item.index: self._pay(body, item) for item in revealed}
        for item in honest:
            assert item.assignment.message.price_per_hour <= order.max_price_per_hour, (
                "I4: a price above the client's"
            )
        paid = self._paid(body, honest, pays)
        if body.ack.message.escrowed:  # the chain knows no repeats, so the fund pays them
            unpaid = [item for item in self._again(body) if item not in paid]
            self._fund_owes(unpaid, [pays[item.index] for item in unpaid])
            return
        self._add_sums(
            body,
            [item.assignment.message.provider for item in paid],
            [pays[item.index] for item in paid],
        )
        if self._is_markets_limit(body):
            return  # two results, and nobody knows which one is true
        again = [item for item in self._again(body) if item not in honest]
        unpaid = [item for item in (*honest, *again) if item not in paid]
        self._fund_owes(unpaid, [pays[item.index] for item in unpaid])

    def _again(self, body: Receipt) -> list[ExecutionEvidence]:
        """The repeats that the fund pays: those that confirm, or all if nobody is accepted."""
        if self._is_markets_limit(body):
            return []
        agreed = {
            item.reveal.output_digest
            for item in body.executions
            if item.reveal and digest(DOMAIN, item.assignment.message) in body.verdict.message.group
        }
        void = repeat_checks.contradicted(body)
        return [
            item
            for item in repeat_checks.repeats_of(body)
            if item.reveal
            and (
                not agreed
                or (
                    item.reveal.output_digest in agreed
                    and item.assignment.message.provider not in void
                )
            )
        ]

    def _is_markets_limit(self, body: Receipt) -> bool:
        """Whether the market ran out on two different results."""
        order = body.order.message
        if body.verdict.message.outcome is not JobOutcome.UNRESOLVED or repeat_checks.has_differed(
            body
        ):
            return False
        revealed = [item for item in repeat_checks.drawn_of(body) if item.reveal]
        results = {
            result_digest(item.reveal.exit_status, workload.plain(item.reveal.output_digest))
            for item in revealed
            if item.reveal
        }
        longest = body.executions[0].assignment.message.max_duration
        further = sum(self._pay(body, item) for item in revealed)
        further += order.max_price_per_hour * longest // 3_600
        is_spent = further + further * FEE_BPS // 10_000 > order.budget
        self.coverage.facts["ended by the budget"] += is_spent
        return not (is_spent or len(revealed) >= order.max_executions or len(results) >= 3)

    def _paid(
        self, body: Receipt, honest: list[ExecutionEvidence], pays: dict[int, int]
    ) -> list[ExecutionEvidence]:
        """I3 and I4: the executions that the client pays."""
        order, verdict, facts = body.order.message, body.verdict.message, self.coverage.facts
        read = [item for item in honest if digest(DOMAIN, item.assignment.message) in verdict.read]
        if verdict.outcome is not JobOutcome.ACCEPTED:
            facts["undecided, and its log was read"] += bool(read)
        match verdict.outcome:
            case JobOutcome.ACCEPTED if verdict.label is Label.ADAPTIVE:
                billed = 2 if is_audit_billed(body) else 1
                facts["a client paid the audit of an unwitnessed commit"] += billed - 1
                return honest[:billed]
            case JobOutcome.ACCEPTED:
                return honest[:2]
            case JobOutcome.LAPSED:
                return honest
            case JobOutcome.CANNOT_VERIFY:
                facts["nobody could verify"] += 1
                first = honest[: 1 if order.accept_unverified else 0]
                return first + [item for item in read if item not in first]
            case _:
                pass
        if repeat_checks.has_differed(body):
            return _covered(order, body, honest, pays)
        if not self._is_markets_limit(body):
            facts["ended at the client's limit"] += 1
            return honest
        facts["the market ran out"] += 1
        return read

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
        again = self._again(second)
        paid = [
            item
            for item in helpers
            if digest(DOMAIN, item.assignment.message) in verdict.group or item in again
        ]
        pays = [self._pay(second, item) for item in paid]
        if verdict.outcome is not JobOutcome.ACCEPTED:
            is_void = self._is_markets_limit(second)
            revealed = [item for item in helpers if item.reveal is not None and not is_void]
            self._fund_owes(revealed, [self._pay(second, item) for item in revealed])
            if self._is_kept(second):
                self.coverage.facts["held, kept"] += 1
                return
        if hashed in verdict.group:
            self.coverage.facts["held, confirmed"] += 1
            self._fund_owes(paid, pays)
            return
        self.ledger.earned[owner] -= credit
        if verdict.outcome is not JobOutcome.ACCEPTED:
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

    def _is_kept(self, body: Receipt) -> bool:
        """I3 and I4: a client that has read an output goes on paying for it. Not if the market ran
        out on different results, or after a fault of the provider.
        """
        owner = body.executions[0].assignment.message.provider
        first = self.ledger.verdict_times[body.ack.message.job_id]
        if any(fault.at >= first for fault in self.coordinator.core.state.faults.get(owner) or ()):
            return False
        return not self._is_markets_limit(body)

    def _pay(self, body: Receipt, item: ExecutionEvidence) -> int:
        assignment = item.assignment.message
        milliseconds = _milliseconds(body, item)
        return min(milliseconds * assignment.price_per_hour // 3_600_000, body.order.message.budget)

    def _fund_owes(self, unpaid: list[ExecutionEvidence], pays: list[int]) -> None:
        """Adds pay of executions, which the audit fund pays and not the client."""
        for item, pay in zip(unpaid, pays, strict=True):
            owner = item.assignment.message.provider
            self.ledger.from_fund[owner] = self.ledger.from_fund.get(owner, 0) + pay

    def _add_sums(self, body: Receipt, owners: list[Address], pays: list[int]) -> None:
        order = body.order.message
        job = self.coordinator.core.state.jobs[body.ack.message.job_id]
        has_premium = (
            body.ack.message.rule is Label.ADAPTIVE
            and body.verdict.message.outcome is JobOutcome.ACCEPTED
            and not is_audit_billed(body)
        )
        premium = pays[0] * order.audit_premium_bps // 10_000 if pays and has_premium else 0
        fee = sum(pays) * FEE_BPS // 10_000
        total = sum(pays) + fee + premium
        assert job.split.charged >= total, "I3: pay was cut, or nobody is charged for it"
        assert job.split.charged <= min(total, order.budget), (
            "I4: charged more than was earned, or than the budget"
        )
        to_fund = fee // 10 if body.ack.message.rule is Label.QUORUM_2 else 0
        assert job.split.fund == premium + to_fund, "I1: the fund gets another part of the charge"
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
        self.held_before = {owner: item.held for owner, item in state.payees.items()}
        self.trust_before = dict(state.trust.items())
        past = state.clients.get(key("stranger", 1).address)
        history = past.charged if past is not None else 0
        for account, client in state.clients.items():
            due = self.ledger.charged.get(account, 0) - self.ledger.refunds.get(account, 0)
            due += _returned(core, account)
            assert client is past or client.charged == due, (
                f"I1: charged {client.charged}, receipts say {due}"
            )
            most = client.fund_paid + self.conduct.limits.fund_allowance
            assert client.fund_spent <= most, "5.99: the fund paid more for a client's jobs"
            is_known = client.charged or self.ledger.refunds.get(account, 0)
            assert is_known or not client.fund_spent, "5.99: the fund paid for who paid nothing"
        returned = sum(_returned(core, account) for account in state.clients)
        credited = sum(item.final + item.held for item in state.payees.values()) - returned
        kept = own.fee + own.fee_held + own.fund + own.fund_held
        refunds = sum(self.ledger.refunds.values())
        assert credited + kept + refunds == sum(self.ledger.charged.values()) + history, (
            "I1: money was made or lost"
        )
        for payee in state.payees.values():
            assert payee.vouched <= max(payee.final, payee.tab.paid), (
                "I1: a voucher over pay that is not final"
            )
        spent = self.ledger.premiums + history - own.fund - own.fund_held
        missing = sum(self.ledger.from_fund.values()) - spent
        # One step may pay from the fund for one job, and then get its part of the next job's fee.
        taken_in, self._taken_in = self._taken_in, self.ledger.premiums - own.fund_held
        gained = self._taken_in - taken_in
        assert missing >= self._missing, "I1: the fund paid more than is owed"
        if missing > self._missing:
            allowance = self.conduct.limits.fund_allowance
            # One step may pay from the fund for one job and take a premium for the next, or the
            # first charge of a client for whose jobs the fund pays nothing before.
            is_bounded = any(
                client.fund_spent >= self._fund_paid.get(account, 0) + allowance
                or 0 in (client.charged, self._charged.get(account, 0))
                for account, client in state.clients.items()
            )
            assert own.fund <= gained or is_bounded, (
                f"I3: {missing - self._missing} unpaid, the fund has {own.fund}"
            )
            fact = (
                "the audit fund was empty"
                if own.fund <= gained
                else "a client had used up its part"
            )
            self.coverage.facts[fact] += 1
        self._missing = missing
        self._fund_paid = {account: item.fund_paid for account, item in state.clients.items()}
        self._charged = {account: item.charged for account, item in state.clients.items()}
        assert credited == sum(self.ledger.earned.values()) + spent, (
            "I1: the fund paid otherwise than it fell"
        )
        self._compare_credits(core)

    def vouched(self, core: CoordinatorCore, voucher: Voucher) -> None:
        """I1: a coordinator signs final pay only, and never a lower sum than before."""
        payee = core.state.payees[voucher.payee]
        last = self._vouched.get(voucher.payee, 0)
        assert last < voucher.cumulative, "I1: a voucher over no more than the last one"
        assert voucher.cumulative <= max(payee.final, payee.tab.paid), (
            "I1: unfinished pay is signed"
        )
        self._vouched[voucher.payee] = voucher.cumulative

    def pays(self, core: CoordinatorCore, effect: SendPayroll) -> None:
        """I1: a payroll pays what was signed, and no more than the balance has."""
        added = 0
        for pay in effect.pays:
            payee = core.state.payees[pay.payee]
            assert pay.cumulative <= payee.vouched, "I1: a payroll pays an unsigned sum"
            added += pay.cumulative - payee.tab.paid
        own = core.state.own
        assert added <= min(own.balance, own.payroll_left), f"I1: a payroll of {added}"
        assert effect.root == own.log.root(), "I10: a payroll names another root than the log's"
        self.coverage.facts["payrolls"] += 1

    def _compare_credits(self, core: CoordinatorCore) -> None:
        """I1 and I3: each provider has what its executions earned, and of what the fund owes it all
        that the fund could pay. One step may decide several jobs of one provider.
        """
        for owner, item in core.state.payees.items():
            if owner in core.state.clients:
                continue
            paid = item.final + item.held - self.ledger.earned.get(owner, 0)
            before, owed = self._from_fund.get(owner, 0), self.ledger.from_fund.get(owner, 0)
            assert before <= paid <= owed, (
                f"I1: the fund paid a provider {paid}, before it was {before}, and it owes {owed}"
            )
            assert paid == owed or self._missing, f"I3: the fund owes {owed} and paid {paid}"
            self._from_fund[owner] = paid


def _returned(core: CoordinatorCore, client: Address) -> int:
    """What a client that left gets back of what it paid beyond its charges."""
    payee = core.state.payees.get(client)
    return payee.final if payee is not None else 0


def _covered(
    order: Order, body: Receipt, honest: list[ExecutionEvidence], pays: dict[int, int]
) -> list[ExecutionEvidence]:
    """I4: the executions that the client of a program with two results pays, in order.

    They cost no more than it signed: its budget, and maxExecutions of the whole duration.
    """
    longest = body.executions[0].assignment.message.max_duration
    most = order.max_price_per_hour * longest * 1000 // 3_600_000 * order.max_executions
    most = min(order.budget, most + most * FEE_BPS // 10_000)
    found: list[ExecutionEvidence] = []
    for item in honest:
        cost = sum(pays[other.index] for other in [*found, item])
        if cost + cost * FEE_BPS // 10_000 <= most:
            found.append(item)
    return found


def _milliseconds(body: Receipt, item: ExecutionEvidence) -> int:
    """I4: the paid milliseconds of an execution.

    Pay is limited to the job's maximum duration, and to the time from the Assignment to the
    CommitReceipt. Both are whole seconds, so that is up to a second more. A second is paid at
    least.
    """
    assignment = item.assignment.message
    sent = assignment.accept_by - body.timing.accept_within
    had = min(item.commit.message.usage_ms, 1000 * (item.commit_receipt.message.time + 1 - sent))
    return min(1000 * assignment.max_duration, max(1000, had))


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
