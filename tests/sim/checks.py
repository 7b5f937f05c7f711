"""Independent checkers for I1 to I10. They keep books of their own, from messages and documents,
with formulas of their own.
"""

from collections import Counter
from dataclasses import dataclass, field

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.coordinator_core import Coordinator
from quorate_coordinator.core.effects import Effect as CoordinatorEffect
from quorate_coordinator.core.effects import OpenCase, PostEpoch, Send, StoreReceipt
from quorate_coordinator.core.lease import Closed, Committed, Lease, Revealed
from quorate_coordinator.core.records import receipts
from quorate_coordinator.core.state import Job, Running, Trusts
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.limits import Limits
from quorate_protocol.messages import frames, receipt
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.messages.signed import CommitSet
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.beacon_rounds import round_time
from quorate_protocol.rules.classes import job_class
from quorate_protocol.rules.eligible import EligibleList
from quorate_protocol.rules.trust import Trust
from quorate_protocol.step import Effect, Outcome
from quorate_protocol.units import Address, Comparator, Hash32, JobKind, Label, VerifyTier
from quorate_protocol.units import Outcome as JobOutcome
from quorate_runtime.keys.crypto import recover
from sim import workload
from sim.conduct import Conduct
from sim.coordinator import FEE_BPS, CoordinatorDaemon
from sim.coverage import Coverage, Watched, phase_name
from sim.parties import BEACON, DOMAIN, HOST, is_beacon_signature, key
from sim.plan import LYING, Behaviour
from sim.provider import Provider

VERIFIABLE = ("pure", "fails", "times-out", "memory")


@dataclass(slots=True)
class Books:
    """What receipts say that everybody owes and is owed."""

    charged: dict[Address, int] = field(default_factory=dict)
    earned: dict[Address, int] = field(default_factory=dict)
    fees: int = 0
    premiums: int = 0
    refunds: dict[Address, int] = field(
        default_factory=dict
    )  # held pay that went back to its client
    from_fund: int = (
        0  # what accepted audits cost; the fund of a large market has a history and can pay it
    )
    receipts: dict[Hash32, Receipt] = field(default_factory=dict)


class Checks:
    """The watcher of one world."""

    def __init__(self, coverage: Coverage, limits: Limits) -> None:
        self.coverage, self.conduct = coverage, Conduct(limits, coverage)
        self.coordinator: CoordinatorDaemon
        self.providers: dict[str, Provider] = {}
        self.books = Books()
        self.lists: dict[
            Hash32, EligibleList
        ] = {}  # whom the auditors of a job with a receipt were drawn from
        self.commits: dict[
            Hash32, int
        ] = {}  # commit hash -> when it was taken, as far as the coordinator can know
        self._closed: set[Hash32] = set()
        self._revealed: set[Hash32] = set()
        self._rates: dict[
            tuple[Hash32, int], int
        ] = {}  # job and beacon round -> auditPpm at its draw
        self._credits: dict[Address, int] = {}  # final and held, after the last step
        self._earned: dict[Address, int] = {}  # by the books, after the last step
        self._held_before: dict[
            Address, int
        ] = {}  # what the rates of a round's draws are made of: the state before any of them
        self._trust_before: dict[Address, Trusts] = {}
        self._given_back: set[Address] = set()  # who lost held pay in this step
        self._held: dict[Hash32, int] = {}  # a held execution -> its credit
        self._last_reveal: dict[
            Hash32, int
        ] = {}  # job -> when its last reveal was taken, as far as the coordinator can know
        self._newest_round_time = 0  # of the rounds that the coordinator has seen

    # -------------------------------------------------------------------------------------- watcher

    def stepped(self, process: str, event: object, outcome: Outcome[Effect]) -> None:
        """After every durable step of any process."""
        if process == "coordinator":
            self._coordinator_stepped(event, outcome)
        else:
            self._provider_stepped(self.providers[process])

    def refused(self, process: str, event: object, refused: Refused) -> None:
        """Counts the code; what a refused step did to the tables was undone."""
        self.coverage.code(process, refused.code.value)
        if isinstance(event, ev.VoucherReceived):
            self.coverage.facts["a voucher too close to a release"] += (
                "announce the release anew" in str(refused)
            )
        for table in self._tables(process):
            table.take()

    def rebuilt(self, process: str) -> None:
        """I6: what was answered with Ok before a crash is in the state after it."""
        if process != "coordinator":
            core = self.providers[process].core
            Watched.watch(core.executions, phase_name)
            Watched.watch(core.jury, phase_name)
            return
        Watched.watch(self.coordinator.core.state.leases, phase_name)
        Watched.watch(self.coordinator.core.state.jobs, phase_name)
        known, archived = (
            self.coordinator.leases(),
            {lease.hash for kept in self.coordinator.archive.values() for lease in kept.leases},
        )
        for frame in self.coordinator.taken.values():
            self._is_remembered(frame, known, archived)

    def _tables(self, process: str) -> "list[Watched[Hash32, object]]":
        if process == "coordinator":
            tables: list[object] = [
                self.coordinator.core.state.leases,
                self.coordinator.core.state.jobs,
            ]
        else:
            tables = [self.providers[process].core.executions, self.providers[process].core.jury]
        return [table for table in tables if isinstance(table, Watched)]

    # ---------------------------------------------------------------------------------- coordinator

    def _coordinator_stepped(self, event: object, outcome: Outcome[Effect]) -> None:
        core = self.coordinator.core
        self.conduct.took(core, event, self.coordinator.at)  # type: ignore[arg-type]
        if isinstance(event, ev.CommitReceived):
            self.commits.setdefault(digest(DOMAIN, event.commit.message), self._known_moment())
        if isinstance(event, ev.RevealReceived):
            lease = core.state.leases[event.reveal.assignment_hash]
            assert lease.hash in self._closed, "I8: a reveal was taken before its CommitSet"
            assert getattr(lease.phase, "reveal", None) == event.reveal, (
                "I6: a reveal was answered with Ok and is not kept"
            )
            if lease.hash not in self._revealed:
                self._revealed.add(lease.hash)
                self._last_reveal[lease.job_id] = self._known_moment()
        if isinstance(event, ev.RoundAppeared):
            self._newest_round_time = max(self._newest_round_time, round_time(BEACON, event.round))
            drawn = [core.state.jobs[job_id] for job_id in core.state.live]
            for job in drawn:
                draw = job.id, event.round
                is_first = len(job.beacons) == 1 and job.beacons[0].round == event.round
                if (
                    is_first and draw not in self._rates
                ):  # a round comes again when another job's dispute goes on by it
                    self._rates[draw] = rate_of(core, job, self._held_before, self._trust_before)
        for effect in outcome.effects:
            self._effect(core, effect)  # type: ignore[arg-type]
        self.conduct.stepped(core, self.coordinator.at)
        self._see_moves(core)
        if not isinstance(event, ev.HeartbeatReceived | ev.OfferReceived):
            self.conduct.compare_records(core)
            self._compare_given_back()
            self._compare_books(core)

    def _effect(self, core: Coordinator, effect: CoordinatorEffect) -> None:
        match effect:
            case Send(frame=frames.CommitSetSent(assignment_hash, commit_set)):
                self._closed.add(assignment_hash)
                self.conduct.closed(
                    core,
                    core.state.jobs[commit_set.message.job_id],
                    commit_set.message,
                    assignment_hash,
                )
                self._check_rate(core, commit_set.message)
                for entry in commit_set.message.ordered:
                    assert entry.commit_hash in self.commits, (
                        "I8: a batch was closed before all its commitments were in"
                    )
            case Send(frame=frames.AssignmentSent() as frame):
                self._assigned(core, digest(DOMAIN, frame.assignment.message), frame)
            case StoreReceipt():
                data = receipts.document(core.state, core.rules, effect)
                assert data is not None, "I6: a receipt of a job that is gone"
                self._take_receipt(core, data)
            case PostEpoch(number=number, root=root):
                self._check_epoch(core, number, root.final)
            case OpenCase():
                self.coverage.facts["cases"] += 1
                self.conduct.opened_case(effect)
            case _:
                pass

    def _check_epoch(self, core: Coordinator, number: int, shown: int) -> None:
        """I1: no leaf shows more than is final; less, where the chain has no money for it."""
        state, own = core.state, core.state.own
        for leaf in state.epochs[number].leaves:
            owner = state.providers.get(leaf.account)
            assert owner is None or leaf.final <= owner.final, (
                "I1: an epoch shows more than is final"
            )
        finals = sum(item.final for item in state.providers.values()) + sum(
            item.refund for item in state.clients.values()
        )
        self.coverage.facts["an epoch showed less than is final"] += (
            shown < finals + own.fee + own.fund
        )

    def _assigned(
        self, core: Coordinator, lease_hash: Hash32, frame: frames.AssignmentSent
    ) -> None:
        """I2 and I9: one live primary; auditors only after a round that nobody knew when the
        results were bound.
        """
        lease = core.state.leases[lease_hash]
        job = core.state.jobs[lease.job_id]
        self.conduct.assigned(core, lease, frame, self.coordinator.at)
        assert isinstance(job.phase, Running), "I2: an assignment of a job that has no place open"
        place = next(item for item in job.phase.places if item.lease == lease_hash)
        if place.attempt < 0:
            assert len(job.phase.places) == 1 and not job.batches, "I2: a second primary"
            return
        beacon = job.phase.beacon
        assert beacon is not None, "I9: an auditor without a beacon round"
        appeared = round_time(BEACON, beacon.round)
        assert appeared <= self.coordinator.schedule.now, (
            "I9: an auditor was announced before its round appeared"
        )
        bound = (
            self._last_reveal.get(job.id)
            if job.batches
            else self._commit_time(core, job.phase.places[0].lease)
        )
        assert bound is None or appeared > bound, (
            f"I9: round {beacon.round} was known when the results were bound"
        )

    def _known_moment(self) -> int:
        """What a coordinator can know the time to be at least: its clock's, or that of a round
        it has seen. With a clock that is behind it takes Commits after rounds that others know,
        and cannot tell; what it has seen itself is no excuse.
        """
        known = max(self.coordinator.at, self._newest_round_time)
        self.coverage.facts["bound by a clock that is behind"] += (
            known < self.coordinator.schedule.now
        )
        return known

    def _check_rate(self, core: Coordinator, closed: CommitSet) -> None:
        """I10: the rate that a CommitSet states is the one of its primary when the draw was
        made.
        """
        job = core.state.jobs[closed.job_id]
        if closed.batch == 0 and closed.beacon_round:
            expected = self._rates[job.id, closed.beacon_round]
            assert closed.audit_ppm == expected, (
                f"I10: auditPpm {closed.audit_ppm}, the draw was made with {expected}"
            )

    def _commit_time(self, core: Coordinator, lease_hash: Hash32 | None) -> int | None:
        phase = core.state.leases[lease_hash].phase if lease_hash else None
        return (
            self.commits[digest(DOMAIN, phase.commit.message)]
            if isinstance(phase, Committed)
            else None
        )

    def _see_moves(self, core: Coordinator) -> None:
        self._take_moves("lease", core.state.leases)
        self._take_moves("job", core.state.jobs)

    def check_end(self) -> None:
        """I3: whatever was opened in time stands in a receipt, which says who is paid for it."""
        found = self.coordinator.leases()
        self.conduct.check_faults(self.coordinator.core, found)
        told = {
            digest(DOMAIN, item.assignment.message)
            for body in self.books.receipts.values()
            for item in body.executions
        }
        missing = [
            lease.hash.hex()
            for lease in found.values()
            if isinstance(lease.phase, Revealed) and lease.hash not in told
        ]
        assert not missing, f"I3: results that no receipt names: {missing}"

    # ---------------------------------------------------------------------------------------- money

    def _take_receipt(self, core: Coordinator, data: bytes) -> None:
        """Rechecks a receipt as a stranger would, and books what it says."""
        body = canonical.from_json(Receipt, canonical.parse(data, 1 << 20))
        document = receipt.document(body)
        report = receipt.verify(document, recover, is_beacon_signature)
        assert report.valid, f"a receipt does not verify: {report.failures}"
        job_id = body.ack.message.job_id
        first = self.books.receipts.get(job_id)
        self.books.receipts[job_id] = body
        self.lists[job_id] = core.state.eligible(core.state.jobs[job_id])
        self._check_group(body)
        self.conduct.judged(body)
        if first is None:
            self._book(body)
        else:
            self._rebook(first, body)

    def _check_group(self, body: Receipt) -> None:
        """I3: who told the truth in time is in the group; I8: whoever copied is not."""
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
        """I5: a receipt shows the key that the registry has for acceptBy, whatever key its
        provider has by now.
        """
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
        """Two who agree on a wrong result can pass it (docs/trust); one alone cannot, and nobody
        who is not of them gains.
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

    def _book(self, body: Receipt) -> None:
        """I4: charges from signed messages alone, never above what the client signed."""
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
            self.coverage.facts["a client paid the audit of what nobody witnessed"] += billed - 1
        self._book_sums(body, [item.assignment.message.provider for item in paid], pays)

    def _rebook(self, first: Receipt, second: Receipt) -> None:
        """A held job was executed again: the first verdict's one credit stays, is forfeited, or
        goes back to the client.
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
        self.books.earned[owner] -= credit
        self._given_back.add(owner)
        if hashed not in verdict.faulted:
            self.coverage.facts["held, gone"] += 1
            self.books.refunds[client] = self.books.refunds.get(client, 0) + credit
            return
        self.coverage.facts["held, caught"] += 1
        for item, pay in zip(paid, pays, strict=True):
            if pay > credit:
                self._fund_owes([item], [pay])
                continue
            credit -= pay
            helper = item.assignment.message.provider
            self.books.earned[helper] = self.books.earned.get(helper, 0) + pay
        self.books.premiums += credit

    def _compare_given_back(self) -> None:
        """I1: after a whole step, for one tick may decide several jobs of one provider."""
        for owner in sorted(self._given_back):
            booked = self._earned.get(owner, 0) - self.books.earned[owner]
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
        """Auditors are the fund's to pay, not the client's."""
        for item, pay in zip(audits, pays, strict=True):
            owner = item.assignment.message.provider
            self.books.earned[owner] = self.books.earned.get(owner, 0) + pay
            self.books.from_fund += pay

    def _book_sums(self, body: Receipt, owners: list[Address], pays: list[int]) -> None:
        order = body.order.message
        job = self.coordinator.core.state.jobs[body.ack.message.job_id]
        has_premium = body.ack.message.rule is Label.ADAPTIVE and not is_audit_billed(body)
        premium = pays[0] * order.audit_premium_bps // 10_000 if pays and has_premium else 0
        fee = sum(pays) * FEE_BPS // 10_000
        total = sum(pays) + fee + premium
        if total > job.split.charged:
            # The budget or the reservation cuts it: then the cut must be as deep as the client's
            # signature says, no deeper than needed.
            assert body.verdict.message.outcome is JobOutcome.UNRESOLVED or total > order.budget, (
                "I3: pay was cut without a reason"
            )
            self.coverage.facts["cut by the budget"] += 1
        assert job.split.charged <= min(total, order.budget), (
            "I4: charged more than was earned, or than the budget"
        )
        self.books.charged[order.client] = (
            self.books.charged.get(order.client, 0) + job.split.charged
        )
        self.books.fees += job.split.fee
        self.books.premiums += job.split.fund
        for owner, credit, pay in zip(owners, job.split.credits, pays, strict=True):
            assert credit.amount <= pay, "I4: a credit above the pay"
            self.books.earned[owner] = self.books.earned.get(owner, 0) + credit.amount
        if body.ack.message.rule is Label.ADAPTIVE and len(body.executions) == 1:
            self.coverage.facts["held"] += 1
            self._held[digest(DOMAIN, body.executions[0].assignment.message)] = sum(
                credit.amount for credit in job.split.credits
            )

    def _compare_books(self, core: Coordinator) -> None:
        """I1: the cores' accounts are the books'."""
        state, own = core.state, core.state.own
        self._credits = {owner: item.final + item.held for owner, item in state.providers.items()}
        self._earned = dict(self.books.earned)
        self._held_before = {owner: item.held for owner, item in state.providers.items()}
        self._trust_before = dict(state.trust.items())
        past = state.clients.get(key("stranger", 1).address)
        history = past.charged if past is not None else 0
        for account, client in state.clients.items():
            assert client is past or client.charged == self.books.charged.get(account, 0), (
                "I1: charged otherwise than receipts say"
            )
            chain = self.coordinator.chain
            had = chain.allocated.get(account, 0) + chain.returned.get(
                account, 0
            )  # it may have taken back what it owes
            assert client.charged <= had, (
                f"I4: {client.charged} charged to a client that had {had} on chain"
            )
        credited = sum(item.final + item.held for item in state.providers.values())
        kept = own.fee + own.fee_held + own.fund + own.fund_held
        refunds = sum(client.refund + client.refund_held for client in state.clients.values())
        assert refunds == sum(self.books.refunds.values()), (
            "I1: refunded otherwise than receipts say"
        )
        assert credited + kept + refunds == sum(self.books.charged.values()) + history, (
            "I1: money was made or lost"
        )
        spent = self.books.premiums + history - own.fund - own.fund_held
        assert spent >= self.books.from_fund, "I3: audits are unpaid"
        assert credited == sum(self.books.earned.values()) + spent - self.books.from_fund, (
            "I1: the fund paid otherwise than it fell"
        )

    # ------------------------------------------------------------------------------------ providers

    def _provider_stepped(self, provider: Provider) -> None:
        core = provider.core
        count = sum(slot.count for slot in provider.slots)
        assert provider.running() <= count, (
            f"I2: {provider.name} runs {provider.running()} containers in {count} slots"
        )
        self._take_moves("execution", core.executions)
        self._take_moves("duty", core.jury)

    def _take_moves(self, machine: str, table: object) -> None:
        assert isinstance(table, Watched)
        for _, start, end in table.take():
            self.coverage.edge(machine, start, end)

    # ------------------------------------------------------------------------------------------- I6

    def _is_remembered(
        self, frame: frames.Frame, known: dict[Hash32, Lease], archived: set[Hash32]
    ) -> None:
        """An Ok was a promise."""
        match frame:
            case frames.AcceptSent(accept):
                hashed = accept.message.assignment_hash
                is_there = (
                    hashed in archived
                    or self.coordinator.core.state.accepts.get(hashed) is not None
                )
                assert is_there, "I6: an acknowledged Accept is gone"
            case frames.CommitSent(commit):
                phase = known[commit.message.assignment_hash].phase
                assert getattr(phase, "commit", None) == commit, (
                    "I6: an acknowledged Commit is gone"
                )
            case frames.RevealSent(reveal):
                phase = known[reveal.assignment_hash].phase
                assert getattr(phase, "reveal", None) == reveal, (
                    "I6: an acknowledged Reveal is gone"
                )
            case _:
                pass


def _milliseconds(body: Receipt, item: ExecutionEvidence) -> int:
    """I4: of the time that an execution claims its limit is paid, and two minutes more than
    there were from acceptBy to its commit.
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
    """Nobody witnessed the primary's commit, and the order does not accept that: the premium is
    the price of one more execution.
    """
    is_alone = body.witness is None and not body.order.message.accept_unwitnessed
    return (
        body.ack.message.rule is Label.ADAPTIVE
        and is_alone
        and len(body.batches[0].message.ordered) > 1
    )


def rate_of(
    core: Coordinator, job: Job, held: dict[Address, int], known: dict[Address, Trusts]
) -> int:
    """auditPpm of DESIGN §6, written anew: what a stranger computes for a job's primary, from
    held pay and trust before the round.
    """
    order, rule = job.submission.order.message, job.ack.message.rule
    if rule is not Label.ADAPTIVE:
        return 1_000_000 if rule is Label.QUORUM_2 else 0
    primary = next(
        core.state.leases[item]
        for item in job.leases
        if isinstance(core.state.leases[item].phase, Committed | Closed)
    )
    trusts = known.get(primary.provider)
    trust = (
        trusts.by_class[job_class(JobKind.TASK, Comparator.EXACT, HOST.id())] if trusts else Trust()
    )
    is_watched = job.witness is not None or order.accept_unwitnessed
    if order.verify_tier is VerifyTier.CRITICAL or trust.passed < 20 or not is_watched:
        return 1_000_000
    error = (
        trust.lambda_ppm
        if not trust.strikes
        else max(trust.lambda_ppm, 50_000 >> (trust.passed // 100))
    )
    error = max(1, 100 * error // (100 + trust.passed))
    least = {VerifyTier.LEAN: 20_000, VerifyTier.STANDARD: 50_000}[order.verify_tier]
    gain = min(
        job.submission.spec.max_duration
        * 1000
        * primary.assignment.message.price_per_hour
        // 3_600_000,
        order.budget,
    )
    stake = core.rules.limits.slot_stake * sum(
        1 for slot in core.state.eligible(job) if slot.owner == primary.provider
    )
    loss = gain + min(stake, 16 * gain) + held.get(primary.provider, 0)
    economic = 2 * gain * 10**12 // (loss * 800_000) if loss else 0
    return min(
        1_000_000,
        max(least, economic, 1_000_000 - 1000 * 1_000_000 // error if error > 1000 else 0),
    )
