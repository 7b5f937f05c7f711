"""Independent checks of I1 to I10, from messages and documents, with formulas of their own."""

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import (
    AppendSummary,
    OpenCase,
    Send,
    SendPayroll,
    StoreReceipt,
)
from quorate_coordinator.core.model.effects import Effect as CoordinatorEffect
from quorate_coordinator.core.model.entities import Job, Running
from quorate_coordinator.core.model.lease import Committed, Lease, Revealed
from quorate_coordinator.core.money import receipts
from quorate_node.core.events import AssignmentReceived, Tick, VerdictReceived
from quorate_node.core.phases import Done, Lapsed
from quorate_node.market import verdict_checks
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.merkle import Log
from quorate_protocol.limits import Limits
from quorate_protocol.messages import frames
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.classes import Pool, job_class
from quorate_protocol.messages.signed import CommitSet, Witness
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.reputation import fold
from quorate_protocol.step import Effect, StepOutcome
from quorate_protocol.units import ZERO_HASH, Comparator, Hash32, JobKind
from sim.account_checks import AccountChecks
from sim.audit_rate import rate_of
from sim.conduct_checks import ConductChecks
from sim.coordinator import CoordinatorDaemon, new_core
from sim.coverage import Coverage, Watched, phase_name
from sim.exposure_checks import ExposureChecks
from sim.order_checks import OrderChecks
from sim.parties import BEACON, DOMAIN, key
from sim.plan import Behaviour
from sim.provider import Provider
from sim.rental_checks import RentalChecks
from sim.slot_checks import SlotChecks


class Checks:
    """Checks one world after every step."""

    def __init__(self, coverage: Coverage, limits: Limits, host: Pool) -> None:
        trust_class = job_class(JobKind.TASK, Comparator.EXACT, host.id())
        self.coverage = coverage
        self.conduct = ConductChecks(limits, coverage, trust_class)
        self.accounts = AccountChecks(coverage, self.conduct)
        self.slots = SlotChecks(coverage, limits)
        self.orders = OrderChecks(coverage, limits)
        self.exposure = ExposureChecks(coverage)
        self.rentals = RentalChecks(coverage, limits, self.accounts.ledger)
        self.coordinator: CoordinatorDaemon
        self.providers: dict[str, Provider] = {}
        # commit hash -> the earliest time at which the coordinator can have taken it
        self.commits: dict[Hash32, int] = {}
        self._closed: set[Hash32] = set()
        self._revealed: set[Hash32] = set()
        # job and beacon round -> auditPpm at its draw
        self._rates: dict[tuple[Hash32, int], int] = {}
        # job -> the earliest time at which the coordinator can have taken its last reveal
        self._last_reveal: dict[Hash32, int] = {}
        self._countersigned: dict[Hash32, int] = {}  # fast jobs whose Ack has a Witness
        self._newest_round_time = 0  # of the rounds that the coordinator has seen

    def watch(self, coordinator: CoordinatorDaemon, providers: "dict[str, Provider]") -> None:
        """Sets what is checked, before the first step."""
        self.coordinator = self.accounts.coordinator = coordinator
        self.providers = self.accounts.providers = providers
        clients = {key("client", number).address: number for number in range(2)}
        credit = coordinator.plan.credit
        self.orders.credits = {account: credit(number) for account, number in clients.items()}

    # -------------------------------------------------------------------------------------- watcher

    def stepped(self, process: str, event: object, outcome: StepOutcome[Effect]) -> None:
        """Checks one durable step of any process."""
        if process == "coordinator":
            self._coordinator_stepped(event, outcome)
        else:
            self._provider_stepped(self.providers[process])
            if isinstance(event, Tick):
                self.rentals.ticked(self.providers[process], self.providers[process].now)
            if isinstance(event, AssignmentReceived):
                self.exposure.accepted(self.providers[process], event)
            if isinstance(event, VerdictReceived):
                self._reads_receipt(self.providers[process], event)

    def heard_offer(self, is_news: bool) -> None:
        """Counts an offer that came by gossip."""
        self.coverage.facts["offers that gossip brought first"] += is_news
        self.coverage.facts["offers that gossip repeated"] += not is_news

    def refused(self, process: str, event: object, refused: Refused) -> None:
        """Counts the refusal and forgets the moves of the refused step, which was undone."""
        self.coverage.code(process, refused.code.value)
        for table in self._tables(process):
            table.take()

    def rebuilt(self, process: str) -> None:
        """I6: everything that was answered with Ok before a crash is in the state after it."""
        if process != "coordinator":
            core = self.providers[process].core
            Watched.watch(core.executions, phase_name)
            Watched.watch(core.jury, phase_name)
            return
        Watched.watch(self.coordinator.core.state.leases, phase_name)
        Watched.watch(self.coordinator.core.state.jobs, phase_name)
        known, archived = (
            self.coordinator.leases(),
            {
                lease.assignment_hash
                for kept in self.coordinator.archive.values()
                for lease in kept.leases
            },
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

    def _coordinator_stepped(self, event: object, outcome: StepOutcome[Effect]) -> None:
        core = self.coordinator.core
        if not isinstance(outcome.reply, Refused):
            self.conduct.took(core, event, self.coordinator.at)  # type: ignore[arg-type]
            self.slots.took(core, event, self.coordinator.at)  # type: ignore[arg-type]
            self.orders.took(core, event, self.coordinator.at)  # type: ignore[arg-type]
        if isinstance(event, ev.MeterReceived) or not isinstance(outcome.reply, Refused):
            self.rentals.took(core, event, self.coordinator.at)  # type: ignore[arg-type]
        if isinstance(event, ev.WitnessReceived) and not isinstance(outcome.reply, Refused):
            self._witnessed(core, event.witness.message)
        if isinstance(event, ev.CommitReceived):
            self.commits.setdefault(digest(DOMAIN, event.commit.message), self._known_moment())
        if isinstance(event, ev.RevealReceived):
            lease = core.state.leases[event.reveal.assignment_hash]
            assert lease.assignment_hash in self._closed, (
                "I8: a reveal was taken before its CommitSet"
            )
            assert getattr(lease.phase, "reveal", None) == event.reveal, (
                "I6: a reveal was answered with Ok and is not kept"
            )
            if lease.assignment_hash not in self._revealed:
                self._revealed.add(lease.assignment_hash)
                self._revealed_in_time(core, lease)
                self._last_reveal[lease.job_id] = self._known_moment()
        if isinstance(event, ev.RoundAppeared):
            self._newest_round_time = max(self._newest_round_time, round_time(BEACON, event.round))
            drawn = [core.state.jobs[job_id] for job_id in core.state.live]
            for job in drawn:
                draw = job.id, event.round
                is_first = len(job.beacons) == 1 and job.beacons[0].round == event.round
                if (
                    is_first and draw not in self._rates
                ):  # a round appears again when another job's dispute continues with it
                    self._rates[draw] = rate_of(
                        core,
                        job,
                        self.accounts.held_before,
                        self.accounts.trust_before,
                        job_class(JobKind.TASK, job.order.comparator, job.pool.id()),
                    )
        for effect in outcome.effects:
            self._effect(core, effect)  # type: ignore[arg-type]
        self.conduct.stepped(core, self.coordinator.at)
        self._see_moves(core)
        if not isinstance(event, ev.HeartbeatReceived | ev.OfferReceived):
            self.conduct.compare_records(core)
            self.accounts.compare_accounts(core)

    def _witnessed(self, core: CoordinatorCore, message: Witness) -> None:
        """5.165: a fast job's Witness came before its round, which is 2 periods after its Ack."""
        if message.commit_hash != ZERO_HASH:
            return
        found = (core.state.jobs[it] for it in core.state.live)
        job = next(it for it in found if it.ack.digest(DOMAIN) == message.ack_hash)
        appears = round_time(BEACON, message.beacon_round)
        ahead = appears - job.ack.message.ack_time
        assert BEACON.period < ahead <= 2 * BEACON.period, "I9: another round than the Ack's"
        self._countersigned.setdefault(job.id, self._known_moment())

    def _effect(self, core: CoordinatorCore, effect: CoordinatorEffect) -> None:
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
                self.orders.judged(core, self.accounts.take_receipt(core, data))
            case Send(frame=frames.VoucherSent(voucher)):
                self.accounts.vouched(core, voucher.message)
            case SendPayroll():
                self.accounts.pays(core, effect)
            case AppendSummary(line=line):
                self.slots.summed_up(core, line.message)
                self.orders.summed_up(line.message)
            case OpenCase():
                self.coverage.facts["cases"] += 1
            case _:
                pass

    def _assigned(
        self, core: CoordinatorCore, lease_hash: Hash32, frame: frames.AssignmentSent
    ) -> None:
        """I2 and I9: one live primary; auditors only after a round that was unknown at the
        commits.
        """
        lease = core.state.leases[lease_hash]
        job = core.state.jobs[lease.job_id]
        self.conduct.assigned(core, lease, frame, self.coordinator.at)
        self.slots.assigned(core, lease, self.coordinator.at)
        assert isinstance(job.phase, Running), "I2: an assignment of a job that has no place open"
        place = next(item for item in job.phase.places if item.assignment_hash == lease_hash)
        self.orders.assigned(core, lease, place.attempt < 0, self.coordinator.at)
        if place.attempt < 0:
            assert len(job.phase.places) == 1 and not job.batches, "I2: a second primary"
            return
        beacon = job.phase.beacon
        if job.phase.is_repeat:
            self._repeats(core, job, lease)
            return
        assert beacon is not None, "I9: an auditor without a beacon round"
        appeared = round_time(BEACON, beacon.round)
        assert appeared <= self.coordinator.schedule.now, (
            "I9: an auditor was announced before its round appeared"
        )
        bound = self._last_reveal.get(job.id)
        if not job.batches:
            first = job.phase.places[0]
            bound = (
                self._commit_time(core, first.assignment_hash)
                if first.attempt < 0
                else self._countersigned.get(job.id)
            )
            assert bound is not None or first.attempt < 0, "I9: a draw without the client's Witness"
        assert bound is None or appeared > bound, (
            f"I9: round {beacon.round} was known when the results were bound"
        )

    def _revealed_in_time(self, core: CoordinatorCore, lease: Lease) -> None:
        """I7: a reveal counts until revealBy, as the newest CommitSet of its batch dates it."""
        due = self.conduct.closed_at[lease.assignment_hash] + core.rules.limits.reveal_within
        late = self._known_moment() - due
        assert late <= 0, f"I7: a reveal was taken {late} s after it was due"

    def _repeats(self, core: CoordinatorCore, job: Job, lease: Lease) -> None:
        """I9: only one that agreed repeats a job, once."""
        again = [
            item
            for item in (core.state.leases[digest] for digest in job.leases)
            if item.provider == lease.provider and item.batch == lease.batch
        ]
        first = [core.state.leases[digest].provider for digest in job.agreed]
        assert lease.provider in first, "I9: somebody repeats what it did not execute"
        assert len([item for item in again if not item.is_terminal]) == 1, "I2: two repeats at once"
        self.coverage.facts["repeats"] += 1

    def _known_moment(self) -> int:
        """The earliest time that the coordinator must know of: its clock's or that of a round it
        saw.

        If its clock is behind, it takes Commits after rounds that others know, and cannot notice.
        But it must not ignore a round that it has seen itself.
        """
        known = max(self.coordinator.at, self._newest_round_time)
        self.coverage.facts["bound by a clock that is behind"] += (
            known < self.coordinator.schedule.now
        )
        return known

    def _check_rate(self, core: CoordinatorCore, closed: CommitSet) -> None:
        """I10: the rate in a CommitSet is the primary's rate when the draw was made."""
        job = core.state.jobs[closed.job_id]
        if closed.batch == 0 and closed.beacon_round:
            expected = self._rates[job.id, closed.beacon_round]
            assert closed.audit_ppm == expected, (
                f"I10: auditPpm {closed.audit_ppm}, the draw was made with {expected}"
            )

    def _commit_time(self, core: CoordinatorCore, lease_hash: Hash32 | None) -> int | None:
        phase = core.state.leases[lease_hash].phase if lease_hash else None
        return (
            self.commits[digest(DOMAIN, phase.commit.message)]
            if isinstance(phase, Committed)
            else None
        )

    def _see_moves(self, core: CoordinatorCore) -> None:
        for lease_hash, start, _ in self._take_moves("lease", core.state.leases):
            if start != "new":
                self.orders.moved(core, lease_hash)
        self._take_moves("job", core.state.jobs)

    def check_end(self) -> None:
        """I3: every result that was opened in time is in a receipt, which says who is paid for
        it.
        """
        found = self.coordinator.leases()
        self.conduct.check_faults(self.coordinator.core, found)
        told = {
            digest(DOMAIN, item.assignment.message)
            for body in self.accounts.ledger.receipts.values()
            for item in body.executions
        }
        missing = [
            lease.assignment_hash.hex()
            for lease in found.values()
            if isinstance(lease.phase, Revealed) and lease.assignment_hash not in told
        ]
        assert not missing, f"I3: results that no receipt names: {missing}"
        self._log_gives_trust()

    def _log_gives_trust(self) -> None:
        """I10: a stranger computes the coordinator's table of trust from its public log alone."""
        daemon, trusts, log = self.coordinator, {}, Log()
        core = new_core(daemon.plan)
        trusts.update(core.state.trust.items())
        for seq in range(len(daemon.log_lines)):
            assert seq in daemon.log_lines, f"I6: line {seq} of the public log is missing"
            line = daemon.log_lines[seq]
            assert line.message.previous_root == log.root(), f"I10: line {seq} is rewritten"
            log = log.append(digest(DOMAIN, line.message))
            trusts.update(fold.after_summary(trusts, line.message))
        assert log == daemon.core.state.own.log, "I6: the file of the log differs from the state"
        assert trusts == dict(daemon.core.state.trust.items()), "I10: the log gives other trust"
        self.coverage.facts["lines of the public log"] += log.count

    # ------------------------------------------------------------------------------------ providers

    def _provider_stepped(self, provider: Provider) -> None:
        core = provider.core
        count = sum(slot.count for slot in provider.slots)
        assert provider.running() <= count, (
            f"I2: {provider.name} runs {provider.running()} containers in {count} slots"
        )
        if provider.groups:
            self._gpus_are_exclusive(provider)
        self._take_moves("execution", core.executions)
        self._take_moves("duty", core.jury)

    def _reads_receipt(self, provider: Provider, event: VerdictReceived) -> None:
        """I10: an honest coordinator's receipt is what its provider signed and was sent."""
        if provider.planned is not Behaviour.HONEST:
            return  # it may have signed two Commits
        execution = provider.core.executions.get(event.assignment_hash)
        body = self.accounts.ledger.receipts.get(event.verdict.message.job_id)
        if execution is None or body is None or not isinstance(execution.phase, Done):
            return
        if body.verdict.message.seq == execution.phase.verdict.message.seq:
            try:
                verdict_checks.compare(execution, body)
            except Refused as refused:
                raise AssertionError(f"I10: a provider would refuse a receipt: {refused}") from None
            self.coverage.facts["receipts that their providers compared"] += 1

    def _gpus_are_exclusive(self, provider: Provider) -> None:
        """I2: no GPU is in two live leases or duties, nor in two running containers."""
        core = provider.core
        leases = [item.gpus for item in core.executions.values() if item.occupies_slot]
        duties = [item.gpus for item in core.jury.values() if item.occupies_slot]
        running = [item.gpus for item in provider.running_containers()]
        for where, groups in (("live leases", leases + duties), ("running containers", running)):
            named = [uuid for group in groups for uuid in group]
            assert len(set(named)) == len(named), f"I2: a GPU of {provider.name} is in two {where}"
            assert set(groups) <= set(provider.groups), f"I2: {provider.name} leased half a slot"
            self.coverage.facts[f"several {where} with GPUs"] += len(groups) > 1

        for item in core.executions.values():
            container = provider.containers.get(item.lease_id)
            if container is not None and container.has_lost_gpu:
                assert item.commit() is None, f"I3: {provider.name} committed a lost GPU's result"
                self.coverage.facts["lost GPUs under a lease"] += isinstance(item.phase, Lapsed)

    def _take_moves(self, machine: str, table: object) -> list[tuple[Hash32, str, str]]:
        assert isinstance(table, Watched)
        moves: list[tuple[Hash32, str, str]] = table.take()
        for _, start, end in moves:
            self.coverage.edge(machine, start, end)
        return moves

    # ------------------------------------------------------------------------------------------- I6

    def _is_remembered(
        self, frame: frames.Frame, known: dict[Hash32, Lease], archived: set[Hash32]
    ) -> None:
        """I6: what the coordinator acknowledged with Ok is still in its state."""
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
