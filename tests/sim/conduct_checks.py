"""Checks what the coordinator does against PROTOCOL, from messages alone.

It checks deadlines, roles, tabs, holds and trust records.
"""

from collections import Counter
from dataclasses import dataclass, field

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Decided, Job
from quorate_coordinator.core.model.lease import (
    Declined,
    Lapsed,
    Lease,
    Returned,
    Revealed,
    Silent,
    Stopped,
)
from quorate_coordinator.core.model.tables import NEWEST_ROUND
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_list, hash_tuple, sha256
from quorate_protocol.limits import DRAW_TRIES, Limits
from quorate_protocol.messages import frames
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.messages.signed import Accept, CommitSet, Decline
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_TIMEOUT, Address, Hash32, Label, Outcome
from sim import repeat_checks
from sim.coverage import Coverage
from sim.parties import DOMAIN, beacon_signature
from sim.workload import paid_seconds


@dataclass(slots=True)
class ConductChecks:
    """Checks one coordinator. Times are those of its journal: it is responsible for its clock
    only.
    """

    limits: Limits
    coverage: Coverage
    trust_class: Hash32  # of all jobs
    accepts: dict[Hash32, Accept] = field(default_factory=dict)
    closed_at: dict[Hash32, int] = field(default_factory=dict)
    blinds: dict[bytes, Hash32] = field(default_factory=dict)
    nonces: dict[tuple[Address, int], Hash32] = field(default_factory=dict)
    holds: dict[Hash32, tuple[int, Address, int]] = field(
        default_factory=dict
    )  # job -> (end of its hold, its provider, that provider's accepted jobs at the time)
    served: Counter[Address] = field(default_factory=Counter)  # accepted jobs of each primary
    vouched: dict[Address, int] = field(default_factory=dict)
    # what clients' tabs have locked for this coordinator, and when they close, by the chain
    tabs: dict[Address, tuple[int, int]] = field(default_factory=dict)
    # executions that each provider declined or gave up since its last Commit
    block_time: int = 0  # of the newest block that the coordinator has read
    passed: dict[Address, int] = field(default_factory=dict)
    strikes: dict[Address, int] = field(default_factory=dict)
    # time-outs and memory kills that were outvoted
    kills: Counter[Address] = field(default_factory=Counter)
    named: dict[Hash32, int] = field(
        default_factory=dict
    )  # accepted leases: when a heartbeat named them last, or the coordinator came back
    fresh: int = 0  # verdicts since records were last compared

    # ------------------------------------------------------------------------------------ deadlines

    def took(self, core: CoordinatorCore, event: ev.Event, at: int) -> None:
        """Checks a message that the coordinator took: it must have been in time and allowed."""
        match event:
            case ev.OrderReceived(submission):
                order = submission.order.message
                job_id = digest(DOMAIN, order)
                if (order.client, order.nonce) not in self.nonces:
                    assert at - self.block_time <= self.limits.ack_age_max, (
                        "I9: an Ack over a list of a block that is too old"
                    )
                    self._ordered(core, job_id, order.client)
                assert self.nonces.setdefault((order.client, order.nonce), job_id) == job_id, (
                    "I4: a nonce was used for two orders"
                )
            case ev.HeartbeatReceived(beat):
                named = {item.assignment_hash for item in beat.message.leases}
                self.named |= dict.fromkeys(named & self.named.keys(), at)
            case ev.Restarted():
                self.named = dict.fromkeys(self.named, at)
            case ev.DeclineReceived(decline):
                self._declined(core, decline.message, at)
            case ev.AcceptReceived(accept):
                self._accepted(
                    core.state.leases[accept.message.assignment_hash], accept.message, at
                )
            case ev.CommitReceived(commit):
                self._committed(
                    core.state.leases[commit.message.assignment_hash],
                    digest(DOMAIN, commit.message),
                    at,
                )
            case ev.LogRead():
                _check_read(core, event)
            case ev.VoucherReceived(voucher):
                client, cumulative = voucher.message.payer, voucher.message.cumulative
                self.vouched[client] = max(self.vouched.get(client, 0), cumulative)
                self._check_vouched(core, client)
            case ev.ChainAdvanced(_, _, block_time, notes):
                self.block_time = max(self.block_time, block_time)
                self._learn_tabs(core, notes)
            case ev.ChainStateQueried(notes) | ev.TransactionConfirmed(_, notes):
                self._learn_tabs(core, notes)
            case _:
                pass

    def _learn_tabs(self, core: CoordinatorCore, notes: tuple[ev.ChainNote, ...]) -> None:
        """Keeps what the chain says of each client's tab."""
        told = {
            note.payer: (note.locked, note.closes_at)
            for note in notes
            if isinstance(note, ev.ChainTabChanged) and note.payee == core.rules.coordinator
        }
        self.tabs |= told
        for client in told.keys() & core.state.clients.keys():
            self._check_vouched(core, client)

    def _check_vouched(self, core: CoordinatorCore, client: Address) -> None:
        """I6: the newest voucher counts, as far as its tab has it locked."""
        known, locked = core.state.clients[client], self.tabs[client][0]
        if known.voucher is None:
            return
        signed = known.voucher.message.cumulative
        newest = self.vouched.get(client, signed)
        assert signed == newest, "I6: a voucher was replaced by an older one"
        assert known.vouched == min(signed, locked), (
            f"I4: {known.vouched} count of a voucher over {signed}, with {locked} locked"
        )

    def _ordered(self, core: CoordinatorCore, job_id: Hash32, account: Address) -> None:
        """I4: an order fits into what its client's open tab has locked."""
        if core.state.jobs[job_id].is_escrowed:
            self.coverage.facts["orders with an escrow of their own"] += 1
            return
        debtor, (locked, closes_at) = core.state.clients[account], self.tabs[account]
        assert debtor.charged + debtor.reserved <= locked, (
            f"I4: an order was taken beyond the {locked} that are locked"
        )
        assert not closes_at, "I4: an order was taken on a tab that closes"

    def _declined(self, core: CoordinatorCore, decline: Decline, at: int) -> None:
        """I3: a provider that has committed cannot give up."""
        if decline.assignment_hash in self.accepts:
            phase = core.state.leases[decline.assignment_hash].phase
            assert b"commit" + decline.assignment_hash not in self.blinds, (
                "I3: somebody gave up what it had committed"
            )
            assert isinstance(phase, Lapsed | Returned), f"who gave up is {type(phase).__name__}"
            self.coverage.facts["given up after an Accept"] += 1

    def _accepted(self, lease: Lease, accept: Accept, at: int) -> None:
        if lease.assignment_hash not in self.accepts:
            self.accepts[lease.assignment_hash] = accept
            self.named[lease.assignment_hash] = at
            late = at - lease.assignment.message.accept_by
            assert late <= 0, f"an Accept was taken {late} s after acceptBy"

    def _committed(self, lease: Lease, commit_hash: Hash32, at: int) -> None:
        if self.blinds.setdefault(b"commit" + lease.assignment_hash, commit_hash) != commit_hash:
            raise AssertionError("two Commits were taken for one assignment")
        if b"time" + lease.assignment_hash in self.blinds:
            return  # a repeat
        self.blinds[b"time" + lease.assignment_hash] = commit_hash
        accept, assignment = self.accepts[lease.assignment_hash], lease.assignment.message
        quoted = accept.quoted_fetch_seconds + accept.quoted_store_seconds
        late = at - (accept.time + quoted + assignment.max_duration + self.limits.commit_grace)
        assert late <= 0, f"a Commit was taken {late} s after commitBy"
        silent = at - self.named.get(lease.assignment_hash, at)
        assert silent <= self.limits.lease_silence, (
            f"4.47: a Commit was taken after {silent} s of silence about its lease"
        )

    # ---------------------------------------------------------------------------------------- roles

    def assigned(
        self, core: CoordinatorCore, lease: Lease, frame: frames.AssignmentSent, at: int
    ) -> None:
        """I9: an Assignment does not show its role."""
        message = frame.assignment.message
        job = core.state.jobs[lease.job_id]
        order, spec = job.submission.order.message, job.submission.spec
        shape = (message.spec_hash, message.max_duration, frame.spec, frame.sources)
        asked = (order.spec_hash, paid_seconds(spec), spec, core.rules.sources)
        is_right = shape == asked and message.pool in {pool.id() for pool in job.pools}
        assert is_right, "I9: an Assignment differs from the order in more than its price"
        assert message.price_per_hour <= order.max_price_per_hour, "I4: a price above the client's"
        seen = core.state.counters.get(NEWEST_ROUND)
        now = max(at, core.rules.timing.appears_at(seen)) if seen else at
        # A closing may be dated ahead of a slow clock, and what it repeats is never younger.
        now = max(now, *(batch.commit_set.message.closed_at for batch in job.batches), 0)
        assert message.accept_by <= now + self.limits.accept_within, (
            "I9: an Assignment leaves more time than others"
        )
        known = self.blinds.setdefault(b"blind" + lease.blind, lease.assignment_hash)
        assert lease.blind != bytes(32) and known == lease.assignment_hash, (
            "I9: a blind that can be guessed shows the job and the role"
        )
        assert message.assignment_id == hash_tuple(job.id, lease.index, lease.blind), (
            "I9: assignmentId"
        )

    # ---------------------------------------------------------------------------------------- draws

    def closed(self, core: CoordinatorCore, job: Job, message: CommitSet, lease: Hash32) -> None:
        """I9: the drawn auditors follow from the beacon, x and the list, and each is asked."""
        self.closed_at[lease] = message.closed_at
        if not message.beacon_round:
            return
        seed = hash_tuple(
            sha256(beacon_signature(message.beacon_round)), job.id, message.secret, message.batch
        )
        slots = {slot.index: slot.owner for slot in core.state.eligible(job)}
        places = [
            int.from_bytes(hash_tuple(seed, "slot", attempt), "big") % job.list_length
            for attempt in message.slots
        ]
        owners = [entry.provider for entry in message.ordered]
        drawn = owners[len(owners) - len(places) :] if message.batch == 0 else owners
        assert sorted(slots[place] for place in places) == sorted(drawn), (
            "I9: auditors that the beacon did not draw"
        )
        is_wanted = int.from_bytes(hash_tuple(seed, "audit"), "big") % 1_000_000 < message.audit_ppm
        if message.batch == 0 and is_wanted and not message.slots:
            tries = (hash_tuple(seed, "slot", attempt) for attempt in range(DRAW_TRIES))
            found = {slots.get(int.from_bytes(each, "big") % job.list_length) for each in tries}
            is_nobody_left = not found - {None, *owners} or message.skips_hash != hash_list(())
            assert is_nobody_left or len(job.leases) > 1, (
                "I9: the beacon wanted an audit, and nobody was asked"
            )

    # -------------------------------------------------------------------------------------- records

    def judged(self, core: CoordinatorCore, body: Receipt) -> None:
        """I10: the trust record that a stranger computes from receipts.

        I5: no provider gets a strike for something that was no wrong result.
        """
        verdict = body.verdict.message
        if verdict.outcome is not Outcome.ACCEPTED or verdict.label is Label.UNVERIFIED:
            return
        if not repeat_checks.is_exact(body):
            self.coverage.facts["accepted within a tolerance"] += len(verdict.group) > 1
            pools = {core.state.leases[name].assignment.message.pool for name in verdict.group}
            self.coverage.facts["accepted by two pools"] += len(pools) > 1
            return  # its trust is of another job class
        primary = body.executions[0].assignment.message.provider
        if digest(DOMAIN, body.executions[0].assignment.message) in verdict.group:
            self.served[primary] += 1
        if verdict.label is Label.ADAPTIVE and len(body.executions) == 1:
            reveal = body.executions[0].reveal
            assert reveal and reveal.exit_status not in (EXIT_TIMEOUT, EXIT_MEMORY_KILL), (
                "I4: a kill is paid that nobody else has seen"
            )
            self.holds[body.ack.message.job_id] = (
                verdict.time + self.limits.max_hold,
                primary,
                self.served[primary],
            )
            return
        self.holds.pop(body.ack.message.job_id, None)
        self.fresh += 1
        counted = self._counted(core, body)
        alone = {
            batch.message.ordered[0].assignment_hash
            for batch in body.batches
            if len(batch.message.ordered) == 1
        }
        drawn = repeat_checks.drawn_of(body)
        for item in body.executions:
            owner, hashed = (
                item.assignment.message.provider,
                digest(DOMAIN, item.assignment.message),
            )
            if item not in drawn and hashed not in verdict.faulted:
                continue  # a repeat counts only if its owner contradicts itself
            if hashed in verdict.group:
                self.passed[owner] = min(3000, self.passed.get(owner, 0) + 1)
            elif hashed in alone and item.reveal is None:
                assert hashed not in verdict.faulted, (
                    "I5: who is alone in its batch and silent has lapsed, and is not faulted"
                )
            elif item.reveal is not None and hashed not in verdict.faulted:
                has_peer = _has_peer(body, item)
                fact = "a fault was not confirmed" if has_peer else "outvoted by other classes"
                self.coverage.facts[fact] += 1
                if hashed in counted:
                    self.passed[owner] = 0
            elif hashed not in counted:
                self.coverage.facts["a fault counted against nobody"] += 1
            elif item.reveal is None or item.reveal.exit_status not in (
                EXIT_TIMEOUT,
                EXIT_MEMORY_KILL,
            ):
                self.passed[owner], self.strikes[owner] = 0, self.strikes.get(owner, 0) + 1
            else:
                self.kills[owner] += 1
                if self.kills[owner] % 3 == 0:  # no run lasts for 90 days
                    self.passed[owner], self.strikes[owner] = 0, self.strikes.get(owner, 0) + 1

    def _counted(self, core: CoordinatorCore, body: Receipt) -> set[Hash32]:
        """5.119: of one client that has paid fees, one fault counts against an owner."""
        client = body.order.message.client
        found = {
            fault.assignment_hash: (owner, fault)
            for owner, faults in core.state.faults.items()
            for fault in faults
        }
        for hashed in body.verdict.message.faulted:
            if hashed in found:
                owner, fault = found[hashed]
                others = [one for one in core.state.faults[owner] if one.client == client]
                assert others == [fault], "5.119: two faults of one client count against an owner"
                paid = core.state.clients[client].fees_paid
                assert paid >= self.limits.strike_fees, "5.119: a strike by who has paid nothing"
        return set(found)

    def compare_records(self, core: CoordinatorCore) -> None:
        """I10: compares records after a whole step.

        One tick may judge several jobs: the state then holds all of them, each receipt only one.
        """
        self.coverage.facts["jobs judged in one step"] += self.fresh if self.fresh > 1 else 0
        self.fresh = 0
        for owner, passed in self.passed.items():
            trusts = core.state.trust.get(owner)
            trust = trusts.by_class.get(self.trust_class) if trusts else None
            found = (trust.passed, len(trust.strikes)) if trust else (0, 0)
            assert found == (passed, min(8, self.strikes.get(owner, 0))), (
                f"I10: a record of {found}, receipts say {passed}"
            )

    def stepped(self, core: CoordinatorCore, at: int) -> None:
        """I3: held pay becomes final not before its time, a draw, an execution, or W further
        jobs.
        """
        for job_id, (until, primary, served) in list(self.holds.items()):
            job = core.state.jobs[job_id]
            if isinstance(job.phase, Decided) and job.phase.is_final:
                is_passed = self.served[primary] - served >= (self.limits.window_jobs or 1)
                assert at >= until or len(job.beacons) > 1 or is_passed, (
                    f"held pay became final {until - at} s before its time"
                )
                del self.holds[job_id]

    def check_faults(self, core: CoordinatorCore, leases: dict[Hash32, Lease]) -> None:
        """I5: a fault is a result outside the group, or a commitment left unopened while others
        opened.
        """
        for faults in core.state.faults.values():
            for fault in faults:
                phase = leases[fault.assignment_hash].phase
                assert isinstance(phase, Revealed | Silent), (
                    f"I5: a fault over a lease that is {type(phase).__name__}"
                )
                killed = isinstance(phase, Revealed) and phase.reveal.exit_status in (
                    EXIT_TIMEOUT,
                    EXIT_MEMORY_KILL,
                )
                assert not killed or fault.is_in_no_case, "I5: a fault over a killed run"


def _has_peer(body: Receipt, item: ExecutionEvidence) -> bool:
    """Whether a member of the accepted group is of the execution's determinism class."""
    return any(
        other.commit.message.class_id == item.commit.message.class_id
        for other in body.executions
        if other.commit.message.assignment_hash in body.verdict.message.group
    )


def _check_read(core: CoordinatorCore, event: ev.LogRead) -> None:
    """I3: lines of a log are read, so the execution is charged or gave no result."""
    job, lease = core.state.jobs[event.job_id], core.state.leases[event.assignment_hash]
    is_marked = event.assignment_hash in job.read or job.is_readable
    assert is_marked or isinstance(lease.phase, Declined | Lapsed | Stopped), (
        "I3: a client read lines of a log, and nothing says so"
    )
