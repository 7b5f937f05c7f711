"""Checks which orders are taken, and how long and how often a job may wait for its providers.

The formulas are its own. They look at the messages that the coordinator took and at its leases.
"""

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Ended, Job
from quorate_coordinator.core.model.lease import Accepted, Lapsed, Lease
from quorate_protocol.limits import Limits
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Accept, Summary
from quorate_protocol.rules.reputation import fold
from quorate_protocol.units import Address, Hash32, Label, Outcome, UnixSeconds, WorkStage
from sim.coordinator import FEE_BPS
from sim.coverage import Coverage
from sim.forgery_fast import is_fast
from sim.parties import BEACON
from sim.workload import paid_seconds

ASSIGNMENTS_MAX = 64
BYTES_PER_SECOND = 1_000_000
REGISTRY_IMAGE_BYTES = 2 << 30  # assumed of an image of a registry
OWNERS_AT_PRICE = 2
EXECUTIONS_LEAST = 3


class OrderChecks:
    """Follows the orders of one coordinator."""

    def __init__(self, coverage: Coverage, limits: Limits) -> None:
        self._coverage, self._limits = coverage, limits
        self.credits: dict[Address, int] = {}  # of clients at the start, by earlier fees
        self._jobs: set[Hash32] = set()
        self._started: set[Hash32] = set()
        self._assigned: dict[Hash32, int] = {}  # job -> its Assignments
        self._accepts: dict[Hash32, Accept] = {}
        self._stopped: dict[Hash32, int] = {}  # lease -> when its job was stopped
        self._committed: set[Hash32] = set()
        self._declined_jobs: set[Hash32] = set()  # jobs that ended by Declines
        self._clients: dict[Hash32, Address] = {}  # by the hash of a job in the public log
        self._lapsed: set[Hash32] = set()
        self._late: dict[Hash32, int] = {}  # leases that were still fetching too late, and when
        self._windows: dict[Address, int] = {}  # of clients
        self._metered_jobs: set[Hash32] = set()

    def took(self, core: CoordinatorCore, event: ev.Event, at: int) -> None:
        """Checks an order, an Accept, a Commit or a Stop that was taken."""
        match event:
            case ev.OrderReceived(submission):
                job_id = submission.order.digest(core.rules.domain)
                if job_id not in self._jobs:
                    self._jobs.add(job_id)
                    self._clients[fold.job_hash(job_id)] = submission.order.message.client
                    self._ordered(core, core.state.jobs[job_id], at)
            case ev.HeartbeatReceived(beat):
                for item in beat.message.leases:
                    lease = core.state.leases.get(item.assignment_hash)
                    if lease is not None and item.stage in (WorkStage.RUNNING, WorkStage.STORING):
                        self._started.add(lease.job_id)
                    if lease is not None and item.assignment_hash in self._accepts:
                        self._fetching(lease, item.stage, at)
            case ev.Restarted():
                self._late.clear()
            case ev.AcceptReceived(accept):
                self._accepted(core, accept.message)
            case ev.DeclineReceived(decline):
                self._declined(core, decline.message.assignment_hash)
            case ev.CommitReceived(commit):
                self._commit(core, commit.message.assignment_hash, at)
            case ev.MeterReceived(lease_hash):
                self._metered(core, core.state.leases[lease_hash])
            case ev.StopReceived(stop):
                self._stop(core, core.state.jobs[stop.message.job_id], at)
            case _:
                pass

    def assigned(self, core: CoordinatorCore, lease: Lease, is_primary: bool, at: int) -> None:
        """Checks an Assignment: the job may still wait, and its client may have one more."""
        job = core.state.jobs[lease.job_id]
        count = self._assigned[job.id] = self._assigned.get(job.id, 0) + 1
        assert count <= ASSIGNMENTS_MAX, f"4.45: a job got {count} Assignments"
        if not is_primary:
            return
        waited = at - job.created_at
        assert job.id in self._started or waited < job.submission.spec.start_within, (
            f"4.44: a job that has not started got a provider after {waited} s"
        )
        client = job.submission.order.message.client
        if client not in self._windows:
            return
        busy = sum(
            item.occupies_slot
            and core.state.jobs[item.job_id].submission.order.message.client == client
            for item in core.state.leases.values()
        )
        self._coverage.facts["assigned within a client's window"] += 1
        assert busy <= self._windows[client], (
            f"4.46: {busy} executions at once of a client with a window of {self._windows[client]}"
        )

    def moved(self, core: CoordinatorCore, lease_hash: Hash32) -> None:
        """Notes a lease that lapsed: what its provider says of it later does not count."""
        if isinstance(core.state.leases[lease_hash].phase, Lapsed):
            self._lapsed.add(lease_hash)

    def judged(self, core: CoordinatorCore, body: Receipt) -> None:
        """I4: nobody repeats an execution that its client cut short."""
        is_drawn = is_fast(body.order.message.verify_tier, body.ack.message.rule)
        self._coverage.facts["fast jobs decided"] += is_drawn
        first = body.executions[0].assignment.digest(core.rules.domain)
        is_lapsed = body.verdict.message.outcome is Outcome.LAPSED
        assert first not in self._stopped or is_lapsed, "4.43: what a client stopped was compared"

    def _ordered(self, core: CoordinatorCore, job: Job, at: int) -> None:
        """I3: an order covers what verification may need, at a price that two owners meet."""
        order, spec = job.submission.order.message, job.submission.spec
        if is_fast(order.verify_tier, job.ack.message.rule):
            self._check_round(job)
        longest = 1000 * paid_seconds(spec) * order.max_price_per_hour // 3_600_000
        is_verified = job.ack.message.rule is not Label.UNVERIFIED
        if job.is_escrowed:
            assert not job.reserved, "I4: a funded order reserves money of its client's tab"
            self._check_owners(core, job, at)
            return
        client = core.state.clients[order.client]
        lent = client.charged + client.reserved - client.vouched
        signed = client.voucher.message.cumulative if client.voucher else 0
        earned = self.credits.get(order.client, 0) + signed * FEE_BPS // 10_000
        assert lent <= client.fees_paid <= earned, f"I4: an order runs on {lent} of credit"
        self._coverage.facts["an order on credit"] += lent > 0
        if job.is_rental:
            ahead = self._limits.rental_ahead * order.max_price_per_hour // 3_600
            assert job.reserved >= ahead + ahead * FEE_BPS // 10_000, "12.9: too little is reserved"
            return
        least = longest * (EXECUTIONS_LEAST if is_verified else 1)
        assert order.budget >= least + least * FEE_BPS // 10_000, "4.50: a budget that is too small"
        most = longest * (order.max_executions if is_verified else 1)
        assert job.reserved == min(order.budget, most + most * FEE_BPS // 10_000), (
            f"4.51: {job.reserved} are reserved for a job"
        )
        if is_verified:
            self._check_owners(core, job, at)

    def _check_round(self, job: Job) -> None:
        """5.165: nobody can know the round of a fast job at its Ack, and its client has a period to
        countersign.
        """
        assert isinstance(job.phase, AwaitingRound), "5.165: a fast job is matched"
        ahead = round_time(BEACON, job.phase.round) - job.ack.message.ack_time
        assert BEACON.period < ahead <= 2 * BEACON.period, f"I9: a round {ahead} s after the Ack"
        self._coverage.facts["fast orders"] += 1

    def _check_owners(self, core: CoordinatorCore, job: Job, at: int) -> None:
        order = job.submission.order.message
        assert order.max_executions >= EXECUTIONS_LEAST, "4.50: two executions decide nothing"
        able = sum(
            any(
                slot.pool in job.pools and slot.on_demand <= order.max_price_per_hour
                for slot in provider.offer.slots
            )
            for provider in core.state.providers.values()
            if provider.offer is not None and provider.is_alive(UnixSeconds(at))
        )
        assert able >= OWNERS_AT_PRICE, f"4.57: {able} owners meet the price of an order"

    def _accepted(self, core: CoordinatorCore, accept: Accept) -> None:
        """I7: no quote is longer than the bytes that the job declares can take at the bandwidth of
        the offer, or than its client waits.
        """
        lease = core.state.leases[accept.assignment_hash]
        spec = core.state.jobs[lease.job_id].submission.spec
        self._accepts.setdefault(accept.assignment_hash, accept)
        image = spec.image_bytes or REGISTRY_IMAGE_BYTES
        fetched = image + sum(item.size_bytes for item in spec.inputs)
        offer = core.state.providers[lease.provider].offer
        assert offer is not None, "it was assigned by an offer"
        bandwidth = min(offer.bandwidth, lease.bandwidth)
        seconds = min(spec.start_within, 60 + 2 * -(-fetched // bandwidth))
        assert accept.quoted_fetch_seconds <= seconds, f"4.4: {fetched} bytes within {seconds} s"
        seconds = min(3600, 60 + spec.resources.output_bytes // BYTES_PER_SECOND)
        assert accept.quoted_store_seconds <= seconds, f"4.4: an output within {seconds} s"

    def _fetching(self, lease: Lease, stage: WorkStage, at: int) -> None:
        """I7: a lease that still fetches long after its quote goes to another provider."""
        hashed = lease.assignment_hash
        accept, since = self._accepts[hashed], self._late.get(hashed)
        if since is not None and isinstance(lease.phase, Accepted):
            assert at - since <= 3, f"4.47: a lease fetches on, {at - since} s after it was late"
        if stage is not WorkStage.FETCHING:
            self._late.pop(hashed, None)
        elif at > accept.time + accept.quoted_fetch_seconds + self._limits.commit_grace:
            self._late.setdefault(hashed, at)

    def _declined(self, core: CoordinatorCore, lease_hash: Hash32) -> None:
        job = core.state.jobs[core.state.leases[lease_hash].job_id]
        if not isinstance(job.phase, Ended) or job.stop is not None:
            return
        if "declined" not in job.phase.reason or job.id in self._declined_jobs:
            return
        self._declined_jobs.add(job.id)
        client = job.submission.order.message.client
        # A step that ends other jobs too has fewer under way afterwards, never more.
        under_way = core.state.clients[client].under_way + 1
        self._windows[client] = max(1, min(self._windows.get(client, under_way), under_way) // 2)

    def summed_up(self, line: Summary) -> None:
        """Widens a client's window by the executions of a job that ended accepted."""
        client = self._clients[line.job_hash]
        is_result = line.outcome is Outcome.ACCEPTED and line.label is not Label.NONE
        if client in self._windows and is_result:
            self._windows[client] += len(line.executions)

    def _metered(self, core: CoordinatorCore, lease: Lease) -> None:
        """Widens a client's window by a rental whose first meter is charged, once."""
        if lease.job_id in self._metered_jobs:
            return
        self._metered_jobs.add(lease.job_id)
        job = core.state.jobs[lease.job_id]
        if job.order.client in self._windows and job.split.charged:
            self._windows[job.order.client] += 1

    def _commit(self, core: CoordinatorCore, lease_hash: Hash32, at: int) -> None:
        """I4: what its client stopped may end soon, and not run on."""
        if lease_hash in self._committed:
            return
        self._committed.add(lease_hash)
        lease = core.state.leases[lease_hash]
        self._started.add(lease.job_id)
        stopped = self._stopped.get(lease_hash)
        if stopped is not None:
            stored = self._accepts[lease_hash].quoted_store_seconds
            late = at - stopped - stored - self._limits.commit_grace
            assert late <= 0, f"4.43: a stopped execution committed {late} s too late"

    def _stop(self, core: CoordinatorCore, job: Job, at: int) -> None:
        """I4: a Stop ends a job that nobody has accepted, and frees money at once."""
        running = [digest for digest in job.leases if core.state.leases[digest].occupies_slot]
        if not any(digest in self._accepts for digest in job.leases):
            assert isinstance(job.phase, Ended) and not job.reserved, (
                "4.43: a Stop did not end a job that nobody had accepted"
            )
            self._coverage.facts["stopped before an Accept"] += 1
        if (
            job.stop is None
            or job.batches
            or job.is_rental
            or len(running) != 1
            or len(job.commits) > 0
        ):
            return
        lease = core.state.leases[running[0]]
        if running[0] not in self._accepts or running[0] in self._stopped:
            return
        self._stopped[running[0]] = at
        order, stored = job.submission.order.message, self._accepts[running[0]].quoted_store_seconds
        sent = lease.assignment.message.accept_by - self._limits.accept_within
        latest = at + stored + self._limits.commit_grace + 1 - sent
        seconds = min(paid_seconds(job.submission.spec), max(0, latest))
        pay = 1000 * seconds * order.max_price_per_hour // 3_600_000
        assert job.reserved <= pay + pay * FEE_BPS // 10_000, (
            f"4.43: {job.reserved} stay reserved for a stopped job that can cost {pay}"
        )
        self._coverage.facts["stopped after an Accept"] += 1
