"""The coordinator's daemon around the real core, with the staging store beside it."""

import dataclasses
from collections.abc import Callable

from quorate_coordinator.core import views
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.jobs import log_reads
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import (
    AppendSummary,
    ArchiveRuns,
    CompareOutputs,
    Effect,
    OpenCase,
    PayOrder,
    ProveEquivocation,
    ReleaseOrder,
    Send,
    SendGiveBack,
    SendLocks,
    SendPayroll,
    SendRedeem,
    ShowExecution,
    StoreReceipt,
    StoreSpec,
)
from quorate_coordinator.core.model.entities import Client, Job
from quorate_coordinator.core.model.step_context import Rules
from quorate_coordinator.core.model.tables import OWN
from quorate_coordinator.core.money import ledger, payees, receipts
from quorate_coordinator.market.frame_handler import PendingRefreshes
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages import frames
from quorate_protocol.messages import offer as offers
from quorate_protocol.messages.beacon_rounds import round_at
from quorate_protocol.messages.classes import job_class
from quorate_protocol.messages.commitment import check_opens
from quorate_protocol.messages.envelope import AnyEnvelope, Envelope, signer
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import (
    Heartbeat,
    Reveal,
    Session,
    Stop,
    Summary,
    Voucher,
    Witness,
)
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import orders
from quorate_protocol.rules.offer_gate import MarketSnapshot, OfferGate, OwnerStanding
from quorate_protocol.rules.orders import Submission
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.step import Core
from quorate_protocol.units import Address, Amount, BlockNumber, Bps, Comparator, Hash32, JobKind
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.keys.crypto import recover
from sim import workload
from sim.archived_rows import ArchivedRows, PollAnswer
from sim.chain import Chain
from sim.network import Answer, Network, Silence
from sim.parties import BEACON, DOMAIN, GENESIS, START, beacon_signature, key
from sim.plan import Market, Plan
from sim.process import Again, Finish, Process, Result, Watcher
from sim.schedule import Schedule
from sim.unbacked_assignments import UnbackedAssignments

ANSWER_SECONDS = 3.0
FEE_BPS = Bps(200)
FUND = 1_000_000  # money in the audit fund, from premiums of earlier jobs
CODEC: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
ChainEffect = (
    SendPayroll
    | SendRedeem
    | SendLocks
    | SendGiveBack
    | ShowExecution
    | PayOrder
    | ReleaseOrder
    | OpenCase
    | ProveEquivocation
)


def rules_of(plan: Plan) -> Rules:
    """The coordinator's fixed rules."""
    statement = key("statement")
    return Rules(
        DOMAIN,
        key("coordinator").address,
        statement.address,
        statement.sign,
        plan.limits,
        FEE_BPS,
        GENESIS,
        BEACON.public_key,
        ("sim",),
    )


def passed_before(number: int) -> int:
    """Audits that a provider of a large market passed before the run."""
    return 300 + 100 * number


def new_core(plan: Plan) -> CoordinatorCore:
    """A core before its first event. In a large market the providers have passed audits before.

    Otherwise every job there would be audited.
    """
    core = CoordinatorCore(rules_of(plan), ledger.check)
    with core.state.transaction():
        for number in range(2):
            account = key("client", number).address
            fees = Amount(plan.credit(number))
            if fees:
                core.state.clients[account] = Client(account, fees_paid=fees)
    if plan.market is Market.LARGE:
        trust_class = job_class(JobKind.TASK, Comparator.EXACT, plan.pool.id())
        with core.state.transaction():
            for number in range(len(plan.behaviours)):
                known = Trust(passed=passed_before(number))
                core.state.trust[key("owner", number).address] = Trusts({trust_class: known})
    if plan.has_fund:
        with core.state.transaction():
            past, amount = key("stranger", 1).address, Amount(FUND)
            tab = Tab(locked=amount, paid=amount)
            core.state.clients[past] = Client(past, tab=tab, charged=amount, vouched=amount)
            core.state.own_record[OWN] = replace(core.state.own, fund=amount)
    return core


class CoordinatorDaemon(Process[ev.Event, Effect]):
    """The one coordinator."""

    def __init__(
        self, plan: Plan, schedule: Schedule, network: Network, chain: Chain, watcher: Watcher
    ) -> None:
        super().__init__("coordinator", plan, schedule, watcher, CODEC)
        self.network, self.chain = network, chain
        self.core: CoordinatorCore
        self.staging: dict[
            Hash32, tuple[Hash32, Hash32]
        ] = {}  # ciphertext -> (salt, output); survives the daemon
        self.documents: dict[str, bytes] = {}  # effect key -> document
        self.log_lines: dict[int, Envelope[Summary]] = {}  # of the public log; survives the daemon
        self.archive: dict[Hash32, ArchivedRows] = {}  # jobs that are over; survives the daemon too
        self.peers: dict[Address, tuple[str, Callable[[bytes], object]]] = {}
        self.wiretap: list[frames.Frame] = []
        self.taken: dict[bytes, frames.Frame] = {}  # frames that were answered with Ok (I6)
        self.is_beacon_silent = False
        self.accuses = True
        self.deaf_to: frozenset[Address] = frozenset()  # owners whose heartbeats it drops
        self.on_gossip: Callable[[bool], None] = lambda is_news: None  # counts what gossip brought
        self.unbacked = UnbackedAssignments(self)

    def fresh_core(self) -> CoordinatorCore:
        """As `Process`."""
        return new_core(self.plan)

    @property
    def any_core(self) -> CoordinatorCore:
        """As `Process`."""
        return self.core

    def set_core(self, core: Core[ev.Event, Effect]) -> None:
        """As `Process`."""
        assert isinstance(core, CoordinatorCore)
        self.core = core
        self.refreshes = PendingRefreshes(core.state)  # lost when the daemon ends
        self.gate = OfferGate(DOMAIN, self.plan.limits.offer_ttl, recover, MarketSnapshot({}))

    def awake(self) -> None:
        """Starts the daemon's timers and asks the chain."""
        self.report(ev.Restarted())
        self.report(ev.ChainStateQueried(self.chain.asked()))
        self.report(ev.Compared())
        if not self.is_up:
            return
        assert not payees.paid_beyond(self.core.state), "I6: the chain paid an unsigned sum"
        self.every(1, self._tick)
        self.every(2, self._follow_chain)
        self.every(0.5, self._follow_beacon)

    def calm_down(self) -> None:
        """Ends the faults of its machine."""
        self.crash_chance, self.is_beacon_silent = 0.0, False
        self.plan = dataclasses.replace(self.plan, unbacked_chance=0.0, is_stingy=False)
        self.clock.correct()

    def _tick(self) -> None:
        for job in list(self.core.state.jobs.values()):
            can_take = workload.can_fetch(job.submission.spec, self.name)
            if job.lacks_content and can_take and job.created_at < self.now:
                self.report(ev.ContentTaken(job.id))
            if not self.is_up:
                return
        if self.core.needs_tick(self.now):
            self.report(ev.Tick())

    def _follow_chain(self) -> None:
        if self._is_chain_away():
            return
        advanced = self.chain.notes_after(self.core.state.own.block)
        if advanced is not None:
            self.report(advanced)
        if self.is_up and self.plan.has_reorganisations and self.random.random() < 0.05:
            kept = BlockNumber(max(0, self.core.state.own.block - self.random.randint(1, 12)))
            self.report(ev.ChainReorganised(kept))
            if self.is_up:
                self.report(ev.ChainStateQueried(self.chain.asked()))

    def _is_chain_away(self) -> bool:
        away = self.plan.chain_outage
        return away is not None and 0 <= self.schedule.now - START - away.start < away.seconds

    def _follow_beacon(self) -> None:
        if self.is_beacon_silent:
            return
        for wanted in self.core.rounds_wanted():
            if wanted <= round_at(BEACON, self.schedule.now) and self.is_up:
                signature = beacon_signature(wanted)
                self.report(ev.RoundAppeared(wanted, signature, sha256(signature)))

    # ----------------------------------------------------------------------------------------- gate

    def handle(self, data: bytes) -> object:
        """Takes one frame of a provider, as `FrameHandler` does."""
        if not self.is_up:
            raise Silence
        frame = frames.decode(data)
        if self.unbacked.take(frame):
            return frames.Ok()
        if isinstance(frame, frames.OfferSent):
            self._take_offer(frame.offer)
        elif isinstance(frame, frames.HeartbeatSent):
            if frame.heartbeat.message.provider in self.deaf_to:
                return frames.Ok()
            self._take_heartbeat(frame.heartbeat)
        elif isinstance(frame, frames.VoucherSent):
            newer = payees.is_newer(self.core.state, frame.voucher.message)
            assert not newer, "I6: a provider has a newer voucher than its coordinator"
        elif isinstance(frame, frames.RevealSent):
            self._check_reveal(frame.reveal)
            self.submit(ev.RevealReceived(frame.reveal, has_opened=True))
        elif isinstance(frame, frames.Metered):
            self._take_meter(frame)
        else:
            self._submit_frame(frame)
        self.taken[sha256(data)] = frame
        if isinstance(frame, frames.AcceptSent | frames.CommitSent | frames.RevealSent):
            self.wiretap.append(frame)
        return frames.Ok()

    def _take_meter(self, meter: frames.Metered) -> None:
        lease = self.core.state.leases.get(meter.assignment_hash)
        if lease is None:
            raise Refused(Code.UNKNOWN, "assignment")
        usage, status = meter.usage_ms, meter.exit_status
        event = ev.MeterReceived(meter.assignment_hash, usage, status, lease.provider)
        refusal = self.submit(event)
        if isinstance(refusal, Refused):
            raise refusal

    def _submit_frame(self, frame: frames.Frame) -> None:
        try:
            self.submit(self._event(frame))
        except Refused as refused:
            if refused.code is Code.EQUIVOCATION and isinstance(frame, frames.CommitSent):
                self.report(ev.EquivocationSeen(frame.commit, _signer(frame.commit)))
            raise

    def _take_offer(self, offer: OfferEnvelope) -> None:
        limits = self.plan.limits
        signed_by = offers.validate(offer, DOMAIN, recover, self.clock.now, limits.offer_ttl)
        if not self.refreshes.keep(offer, signed_by):
            self.submit(ev.OfferReceived(offer, signed_by))

    def hear(self, data: bytes) -> None:
        """Takes an offer that came by gossip, as the daemon does."""
        if not self.is_up:
            return
        self.gate.replace_snapshot(self._standings())
        judged = self.gate.judge(data, self.clock.now)
        if judged.offer is None:
            return
        known = self.core.state.providers[judged.offer.offer.provider].offer
        try:
            self._take_offer(judged.offer)
        except (Refused, Silence):
            return  # an offer over the connection was newer, or the daemon crashed
        is_news = known is None or known.seq < judged.offer.offer.seq
        self.on_gossip(is_news)

    def _standings(self) -> MarketSnapshot:
        market = self.core.state.market
        return MarketSnapshot(
            {
                owner: OwnerStanding(
                    provider.operator_key,
                    {
                        host: market.stake_slots(host).get(owner, 0)
                        for host in self.core.state.pool_slots
                    },
                )
                for owner, provider in self.core.state.providers.items()
            }
        )

    def _take_heartbeat(self, heartbeat: Envelope[Heartbeat]) -> None:
        owner = heartbeat.message.provider
        refresh = self.refreshes.of(owner)
        self.submit(ev.HeartbeatReceived(heartbeat, _signer(heartbeat), refresh))
        self.refreshes.carried(owner, refresh)

    def _event(self, frame: frames.Frame) -> ev.Event:
        match frame:
            case frames.AcceptSent(accept):
                return ev.AcceptReceived(accept, _signer(accept))
            case frames.DeclineSent(decline):
                return ev.DeclineReceived(decline, _signer(decline))
            case frames.CommitSent(commit):
                return ev.CommitReceived(
                    commit, _signer(commit), commit.message.encrypted_output in self.staging
                )
            case _:
                raise Refused(
                    Code.UNSUPPORTED, f"{type(frame).__name__} is not sent to a coordinator"
                )

    def _check_reveal(self, reveal: Reveal) -> None:
        lease = self.core.state.leases.get(reveal.assignment_hash)
        if lease is None:
            raise Refused(Code.UNKNOWN, "assignment")
        if isinstance(lease.phase, leases.Closed):
            check_opens(lease.phase.commit.message, reveal)
            stored = self.staging.get(lease.phase.commit.message.encrypted_output)
            if stored is None:
                raise Refused(Code.NOT_STORED, "reveal")
            if stored != (reveal.salt, reveal.output_digest):
                raise Refused(Code.DOES_NOT_OPEN, "reveal")

    def put_content(self, ciphertext: Hash32, salt: Hash32, output: Hash32) -> object:
        """Takes an upload, if the daemon runs."""
        if not self.is_up:
            raise Silence
        assert ciphertext == sha256(salt + output), "the store checks every CID"
        self.staging[ciphertext] = (salt, output)
        return True

    # ------------------------------------------------------------------------------------------ API

    def take_order(self, submission: Submission) -> object:
        """POST /v1/orders"""
        if not self.is_up:
            raise Silence
        orders.validate(
            submission,
            DOMAIN,
            recover,
            key("coordinator").address,
            self.clock.now,
            self.plan.limits,
        )
        kept = self.archive.get(submission.order.digest(DOMAIN))
        if submission.escrowed and kept is None and not self._is_funded(submission):
            raise Silence  # the daemon answers that it is not there yet, and the client repeats
        spec = submission.spec
        if spec.gateways and set(spec.gateways) <= {workload.EMPTY_GATEWAY}:  # asked by HEAD
            raise Refused(Code.NOT_STORED, f"order.image: nobody has {spec.image}")
        order = ev.OrderReceived(submission, submission.escrowed, bool(spec.gateways))
        acked = kept.job.ack if kept is not None else self.submit(order)
        if isinstance(acked, Refused):
            raise acked
        self.chain.specs[submission.spec.digest()] = submission.spec
        return acked

    def _is_funded(self, submission: Submission) -> bool:
        order = submission.order.message
        job = self.chain.final_money().jobs.jobs.get((order.client, digest(DOMAIN, order)))
        until = orders.escrow_until(order, self.plan.limits)
        return job is not None and job.budget >= order.budget and job.until >= until

    def give_back(self, client: Address, amount: Amount) -> object:
        """POST /v1/give-back"""
        if not self.is_up:
            raise Silence
        return self.submit(ev.GiveBackAsked(client, amount))

    def take_session(self, session: Envelope[Session]) -> object:
        """POST /v1/sessions"""
        if not self.is_up:
            raise Silence
        return self.submit(ev.SessionReceived(session)) or True

    def take_allowance(self, job_id: Hash32, client: Address, most: Amount) -> object:
        """POST /v1/runs/{job}/allowance"""
        if not self.is_up:
            raise Silence
        return self.submit(ev.AllowanceNamed(job_id, client, most)) or True

    def take_signed(
        self, envelope: Envelope[Witness] | Envelope[Voucher] | Envelope[Stop]
    ) -> object:
        """POST of a witness, a voucher or a stop."""
        if not self.is_up:
            raise Silence
        who = _signer(envelope)
        match envelope.message:
            case Witness():
                self.submit(ev.WitnessReceived(Envelope(envelope.message, envelope.sig), who))
            case Voucher():
                self.submit(ev.VoucherReceived(Envelope(envelope.message, envelope.sig), who))
            case Stop():
                self.submit(ev.StopReceived(Envelope(envelope.message, envelope.sig), who))
        return True

    def read_logs(self, job_id: Hash32) -> object:
        """GET of a run's log. Only the lines of its first execution are shown."""
        if not self.is_up:
            raise Silence
        job = self.core.state.jobs.get(job_id)
        known = [self.core.state.leases[item] for item in job.leases] if job is not None else []
        first = next((lease for lease in known if not log_reads.has_given_up(lease)), None)
        if first is not None:
            self.submit(ev.LogRead(job_id, first.assignment_hash))
        return True

    def look(self, client: Address, after: int) -> PollAnswer:
        """GET of events, runs and account."""
        if not self.is_up:
            raise Silence
        state = self.core.state
        mine = [job for job in self.jobs() if job.submission.order.message.client == client]
        lines = [line for job in mine for line in self.lines(job.id) if line.seq > after]
        seen = tuple(sorted(lines, key=lambda line: line.seq))
        named = {line.job_id for line in seen}
        runs = tuple(
            views.run_view(state, job, is_client=True)
            for job in mine
            if job.id in named and job.id in state.jobs
        )
        return PollAnswer(seen, runs, views.account_view(state, client))

    # ------------------------------------------------------------------ what there is and there was

    def jobs(self) -> list[Job]:
        """All jobs, including those that have left the state."""
        gone = [
            kept.job for job_id, kept in self.archive.items() if job_id not in self.core.state.jobs
        ]
        return [*gone, *self.core.state.jobs.values()]

    def lines(self, job_id: Hash32) -> tuple[JobEvent, ...]:
        """A job's history."""
        kept = self.archive.get(job_id)
        return self.core.state.events.get(job_id) or (kept.lines if kept else ())

    def leases(self) -> dict[Hash32, leases.Lease]:
        """All leases, including those that have left the state."""
        gone = {
            lease.assignment_hash: lease for kept in self.archive.values() for lease in kept.leases
        }
        return gone | dict(self.core.state.leases.items())

    # -------------------------------------------------------------------------------------- effects

    def perform(self, effect: Effect, finish: Finish) -> None:
        """Performs an effect, as `EffectPerformer` of the daemon does."""
        match effect:
            case Send():
                self._send(effect, finish)
            case StoreSpec() | StoreReceipt():
                data = receipts.document(self.core.state, self.core.rules, effect)
                if data is not None:
                    self.documents[effect.key] = data
                finish(None)
            case CompareOutputs():
                one, other = (self.core.state.leases[it].phase for it in (effect.one, effect.other))
                assert isinstance(one, leases.Revealed) and isinstance(other, leases.Revealed)
                apart = workload.apart(one.reveal.output_digest, other.reveal.output_digest)
                self.report(ev.OutputsCompared(effect.job_id, effect.one, effect.other, apart))
                finish(None)
            case ArchiveRuns():
                self._archive(effect)
                self.report(ev.RunsArchived(effect.jobs))
                finish(None)
            case AppendSummary():
                self.log_lines[effect.line.message.seq] = effect.line
                finish(None)
            case _ if self._is_chain_away():
                finish(Again(1.0))
            case SendPayroll() if self.plan.is_stingy:
                finish(Again(1.0))
            case _:
                self._transact(effect, finish)

    def _transact(self, effect: ChainEffect, finish: Finish) -> None:
        match effect:
            case SendPayroll():
                self.chain.payroll(effect, self._confirmed(effect.key, finish))
            case SendRedeem():
                self.chain.redeem(effect, self._confirmed(effect.key, finish))
            case SendLocks():
                self.chain.lock(effect, self._confirmed(effect.key, finish))
            case SendGiveBack():
                self.chain.give_back(effect, self._confirmed(effect.key, finish))
            case ShowExecution():
                self.chain.show(self.name, effect.order, effect.run, finish)
            case PayOrder():
                self._pay_order(effect, finish)
            case ReleaseOrder():
                self.chain.release_order(effect, finish)
            case OpenCase() if not self.accuses:
                finish(Refused(Code.CHAIN, "it spares the accused"))
            case OpenCase():
                self.chain.open_case(effect, finish)
            case ProveEquivocation():
                self.chain.prove(effect, finish)

    def _confirmed(self, purpose: str, finish: Finish) -> Finish:
        """Tells the core what a transaction changed, as the chain says after it."""

        def act(result: Result) -> None:
            if result is None and self.is_up:
                self.report(ev.TransactionConfirmed(purpose, self.chain.asked()))
            finish(result)

        return act

    def _pay_order(self, effect: PayOrder, finish: Finish) -> None:
        job = self.chain.final_money().jobs.jobs.get(
            (effect.order.client, digest(DOMAIN, effect.order))
        )
        if job is None or job.is_over:
            finish(None)
        elif self.chain.now <= max(effect.not_before, job.last + self.plan.limits.evidence_window):
            finish(Again(1.0))
        else:
            self.chain.pay_order(self.name, effect.order, finish)

    def _archive(self, effect: ArchiveRuns) -> None:
        state = self.core.state
        for job_id in effect.jobs:
            job = state.jobs.get(job_id)
            if job is not None:
                self._keep_documents(job)
                kept = tuple(state.leases[digest] for digest in job.leases)
                self.archive[job_id] = ArchivedRows(job, kept, state.events.get(job_id) or ())

    def _keep_documents(self, job: Job) -> None:
        """Stores documents, as `JobDocuments.store_before_leaving` of the daemon does."""
        for cid, write in receipts.job_documents(self.core.state, self.core.rules, job.id):
            name = f"receipt-doc-{cid}" if cid == job.receipt_cid else f"spec-{job.id.hex()}"
            if name not in self.documents:
                self.documents[name] = write()

    def effect_refused(self, effect: Effect, refused: Refused) -> None:
        """Tells the core of refused transactions; it needs no other refusals."""
        if isinstance(effect, SendPayroll | SendRedeem | SendLocks | SendGiveBack | OpenCase):
            self.report(ev.TransactionRefused(effect.key, str(refused)))

    def _send(self, effect: Send, finish: Finish) -> None:
        if isinstance(effect.frame, frames.AssignmentSent):
            self.unbacked.follow(effect.frame)
        if isinstance(effect.frame, frames.VoucherSent) and self.plan.is_stingy:
            finish(Again(1.0))
            return
        name, handle = self.peers[effect.peer]
        data = frames.encode(effect.frame)

        def answered(answer: Answer) -> None:
            if answer is not None:
                finish(answer if isinstance(answer, Refused) else None)
            elif self.clock.now > effect.expires:
                finish(None)
            else:
                finish(Again(0.3))

        self.network.request(self.name, name, lambda: handle(data), answered, ANSWER_SECONDS)


def _signer(envelope: AnyEnvelope) -> Address:
    return signer(DOMAIN, envelope, recover)
