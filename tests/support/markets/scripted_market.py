"""The coordinator's core with scripted providers and clients in virtual time, for tests of whole
jobs.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from quorate_coordinator.core import views
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease
from quorate_coordinator.core.model.effects import (
    Effect,
    Send,
    SendGiveBack,
    SendLocks,
    SendPayroll,
    SendRedeem,
    StoreReceipt,
)
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    Client,
    Decided,
    Job,
    JobPhase,
    Payee,
)
from quorate_coordinator.core.model.step_context import Rules, StepContext
from quorate_coordinator.core.money import ledger, payees, receipts
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames, job_spec
from quorate_protocol.messages.beacon_rounds import round_at
from quorate_protocol.messages.classes import CPUS, Host, Pool
from quorate_protocol.messages.commitment import commitment, result_digest
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.offer import Offer, OfferEnvelope
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import (
    Accept,
    Assignment,
    Commit,
    Decline,
    Heartbeat,
    LeaseProgress,
    Reveal,
    Session,
    Stop,
    Verdict,
    Voucher,
    Witness,
)
from quorate_protocol.messages.views import PlanRequest, PlanView
from quorate_protocol.rules.orders import Submission
from quorate_protocol.step import Input
from quorate_protocol.units import (
    KILLED,
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Bps,
    Comparator,
    DeclineReason,
    ExitStatus,
    Hash32,
    Milliseconds,
    Price,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    VerifyTier,
    WorkStage,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import keygen, public_key, sign_round
from quorate_runtime.keys.crypto import KeySigner
from support.messages import a_spec, an_order
from support.offers import MACHINE, a_slot, an_offer, class_of

E = TypeVar("E", bound=Effect)
P = TypeVar("P", bound=JobPhase)

DOMAIN = Domain(31337, Address(b"\x11" * 20))
GENESIS = 1_000
BLS = keygen(b"unit-test-beacon-seed-32-bytes!!")
INFO = BeaconInfo(public_key(BLS), DEVNET.beacon_period, GENESIS)
COORDINATOR = KeySigner(b"\x01" * 32)
STATEMENT = KeySigner(b"\x02" * 32)
RULES = Rules(
    DOMAIN,
    COORDINATOR.address,
    STATEMENT.address,
    STATEMENT.sign,
    DEVNET,
    Bps(200),
    GENESIS,
    INFO.public_key,
    ("http://127.0.0.1:1",),
)


@dataclass
class Party:
    """A scripted provider. It runs every job as long as its market's `ran_ms` says.

    A provider that lies changes its output; those with the same `tale` agree on the change. A mute
    provider never reveals. A deaf provider receives no frames.
    """

    number: int
    lies: bool = False
    is_mute: bool = False
    is_deaf: bool = False
    tale: int = 0
    # how its runs end; 512 and 513 (killed) give the empty directory
    status: ExitStatus = ExitStatus(0)
    host: Host = MACHINE  # what it says of its machine
    pool: Pool = CPUS
    owner: Address = field(init=False)
    key: KeySigner = field(init=False)
    commits: dict[Hash32, Reveal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owner = KeySigner(bytes([100 + self.number]) * 32).address
        self.key = KeySigner(bytes([50 + self.number]) * 32)


class Market:
    """Coordinator core, providers and clients with one virtual clock."""

    slots = 1  # run slots of each provider
    offered = 86_400  # seconds until the offers expire
    limit = 60  # maximum duration of each job, in seconds
    ran_ms = 36_000  # run time of each job; the clock passes its whole seconds in one step
    claimed_ms: int | None = None  # run time that each provider claims instead
    # whether the core hears of a new block before an order if the last one is old
    hears_blocks = True

    def __init__(self, *parties: Party) -> None:
        self.core = CoordinatorCore(RULES, ledger.check)
        self.parties = {party.owner: party for party in parties}
        self.at = GENESIS + 1_000
        self.steps = 0
        self.chain: list[Effect] = []
        self.escrow = ScriptedEscrow()
        self.receipts: list[bytes] = []
        self.effects: list[Effect] = []  # all effects so far
        self.pending: list[Send] = []
        self.running: list[tuple[int, ev.CommitReceived]] = []  # when it ends, and its Commit
        self.clients = [KeySigner(bytes([10 + i]) * 32) for i in range(2)]
        self.sessions = [KeySigner(bytes([20 + i]) * 32) for i in range(2)]
        self.log: list[Input[ev.Event]] = []
        self.specs: dict[Hash32, job_spec.JobSpec] = {}  # ordered so far, by digest
        self._register()

    def send(self, event: ev.Event) -> object:
        """Steps an event at the present moment and performs its effects at once; returns the
        reply.
        """
        self.steps += 1
        item = Input(UnixSeconds(self.at), hash_tuple("random", self.steps), event)
        outcome = self.core.step(item)
        self.log.append(item)
        for effect in outcome.effects:
            self._perform(effect)
        return outcome.reply

    def _register(self) -> None:
        notes: list[ev.ChainNote] = self.escrow.own_notes()
        for index, party in enumerate(self.parties.values()):
            network = hash_tuple("net", index)
            notes.append(
                ev.ChainProviderRegistered(party.owner, party.key.address, party.owner, network)
            )
        stakes = [party.owner for _ in range(self.slots) for party in self.parties.values()]
        places = {party.pool.id(): count() for party in self.parties.values()}
        notes += [
            ev.ChainSlotOpened(pool, next(places[pool]), owner, BlockNumber(1))
            for owner in stakes
            if (pool := self.parties[owner].pool.id())
        ]
        notes += [self.escrow.lock(client.address, 50_000_000) for client in self.clients]
        self.send(ev.ChainAdvanced(BlockNumber(5), ZERO_HASH, UnixSeconds(self.at), tuple(notes)))
        for party in self.parties.values():
            price = 90_000 if party.lies else 100_000
            slot = a_slot(party.pool, price, self.slots, host=party.host)
            self.send_offer(party, an_offer(party.owner, 1, self.at + self.offered, (slot,)))
        steps = self.steps
        self._send_heartbeats(is_first=True)
        self.steps = steps  # so that later steps draw the same with and without these

    def _send_heartbeats(self, is_first: bool = False) -> None:
        for owner, provider in list(self.core.state.providers.items()):
            if is_first or not self.parties[owner].is_deaf:
                signer = self.parties[owner].key
                seq, now = Sequence(provider.heartbeat_seq + 1), UnixSeconds(self.at)
                leases = self.progress(owner)
                beat = seal(DOMAIN, Heartbeat(owner, seq, (), leases, now), signer.sign)
                self.send(ev.HeartbeatReceived(beat, signer.address))

    def progress(self, owner: Address) -> tuple[LeaseProgress, ...]:
        """What a provider's heartbeat says of the leases that it accepted: it runs them."""
        known = self.core.state.leases
        held = self.core.state.leases_in_slots.get(owner) or ()
        found = [item for item in held if isinstance(known[item].phase, lease.Accepted)]
        return tuple(LeaseProgress(item, WorkStage.RUNNING) for item in found)

    def _perform(self, effect: Effect) -> None:
        self.effects.append(effect)
        if isinstance(effect, Send):
            self.pending.append(effect)
        else:
            self.chain.append(effect)
        if isinstance(effect, StoreReceipt):
            data = receipts.document(self.core.state, self.core.rules, effect)
            assert data is not None, "its job is still there"
            self.receipts.append(data)

    def deliver(self) -> None:
        """Makes the providers answer all frames that wait for them."""
        while self.pending or self.running:
            if not self.pending:
                self._end_run()
                continue
            effect = self.pending.pop(0)
            party = self.parties[effect.peer]
            if party.is_deaf:
                continue
            match effect.frame:
                case frames.AssignmentSent(assignment, spec, _):
                    self._run(party, assignment.message, spec)
                case frames.CommitSetSent(assignment_hash) if not party.is_mute:
                    self.send(ev.RevealReceived(party.commits[assignment_hash], has_opened=True))
                case _:
                    pass

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        hashed = digest(DOMAIN, assignment)
        self.accept(party, hashed)
        output = sha256(
            spec.encode() + (bytes([party.tale or party.number]) if party.lies else b"")
        )
        output = sha256(b"the empty directory") if party.status in KILLED else output
        salt = hash_tuple("salt", party.owner, hashed)
        reveal = Reveal(hashed, party.owner, party.status, output, salt)
        party.commits[hashed] = reveal
        value = commitment(hashed, party.owner, salt, result_digest(party.status, output))
        commit = Commit(
            hashed,
            class_of(spec, party.host, party.pool),
            value,
            sha256(salt + output),
            Milliseconds(self.ran_ms if self.claimed_ms is None else self.claimed_ms),
            Round(round_at(INFO, self.at + self.ran_ms // 1000) + 3),
        )
        signed = seal(DOMAIN, commit, party.key.sign)
        event = ev.CommitReceived(signed, party.key.address, is_stored=True)
        if self.ran_ms < 1000:
            self.send(event)
        else:
            self.running.append((self.at + self.ran_ms // 1000, event))

    def _end_run(self) -> None:
        """Lets the time of the oldest run pass, and commits its result."""
        ends, event = self.running.pop(0)
        if ends > self.at:
            self.at = ends
            steps = self.steps
            self._send_heartbeats()
            self.steps = steps  # so that later steps draw the same, however long a run takes
        self.send(event)

    def beat(self) -> None:
        """Lets one second pass: heartbeats, a tick, beacon rounds, the providers' answers,
        vouchers.
        """
        self.at += 1
        self._send_heartbeats()
        self.send(ev.Tick())
        self.deliver()
        for wanted in self.core.rounds_wanted():
            if wanted <= round_at(INFO, self.at):
                self.appears(wanted)
        self.deliver()
        for i, client in enumerate(self.clients):
            state = self.core.state.clients[client.address]
            if state.charged > state.vouched:
                self.vouch(i, state.charged)
        self.confirm()

    def confirm(self) -> None:
        """Lets the chain take the transactions of money that were sent since the last time."""
        steps = self.steps
        for effect in self.chain[self.escrow.seen :]:
            self.escrow.seen += 1
            if isinstance(effect, SendPayroll | SendRedeem | SendLocks | SendGiveBack):
                notes = (*self.escrow.take(effect), *self.escrow.own_notes())
                self.send(ev.TransactionConfirmed(effect.key, notes))
        self.steps = steps  # so that later steps draw the same with and without these

    def beats(self, seconds: int) -> None:
        """Lets so many seconds pass."""
        for _ in range(seconds):
            self.beat()

    # ------------------------------------------------------------------------ what providers send

    def send_offer(self, party: Party, offer: Offer) -> None:
        """The provider signs this offer."""
        envelope = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), party.key.sign))
        self.send(ev.OfferReceived(envelope, party.key.address))

    def accept(self, party: Party, hashed: Hash32, time: int = 0) -> None:
        """The provider accepts an Assignment."""
        at = UnixSeconds(time or self.at)
        host = party.host.digest()
        message = Accept(hashed, host, Seconds(0), Seconds(1), Seconds(0), at)
        self.send(ev.AcceptReceived(seal(DOMAIN, message, party.key.sign), party.key.address))

    def decline(
        self, party: Party, assigned: Assignment | Hash32, reason: DeclineReason, start_by: int = 0
    ) -> None:
        """The provider declines an Assignment, or gives it up."""
        hashed = digest(DOMAIN, assigned) if isinstance(assigned, Assignment) else assigned
        message = Decline(hashed, reason, UnixSeconds(start_by), UnixSeconds(self.at))
        self.send(ev.DeclineReceived(seal(DOMAIN, message, party.key.sign), party.key.address))

    # ------------------------------------------------------------ what chain, beacon and clients do

    @property
    def next_block(self) -> BlockNumber:
        """The number of the block that comes next."""
        return BlockNumber(self.core.state.own.block + 1)

    def chain_says(self, *notes: ev.ChainNote) -> None:
        """The next block comes, with these events."""
        self.send(ev.ChainAdvanced(self.next_block, ZERO_HASH, UnixSeconds(self.at), notes))

    def appears(self, number: Round) -> None:
        """The beacon publishes a round."""
        signature = sign_round(BLS, number)
        self.send(ev.RoundAppeared(number, signature, sha256(signature)))

    def stop(self, job_id: Hash32, key: KeySigner | None = None) -> None:
        """A client stops a job. By default the session key of the first client signs."""
        signer = key or self.sessions[0]
        message = Stop(job_id, UnixSeconds(self.at))
        self.send(ev.StopReceived(seal(DOMAIN, message, signer.sign), signer.address))

    def witness(
        self, job_id: Hash32, key: KeySigner | None = None, **changes: object
    ) -> Envelope[Witness]:
        """A client countersigns the first commit of a job, or the Ack of a fast one. By default the
        session key of the first client signs.
        """
        signer, job = key or self.sessions[0], self.job(job_id)
        assert isinstance(job.phase, AwaitingRound)
        acked, now = job.ack.digest(DOMAIN), UnixSeconds(self.at)
        seen = ZERO_HASH if job.is_fast else job.commits[0]
        message = Witness(seen, acked, job.phase.round, now)
        signed = seal(DOMAIN, replace(message, **changes), signer.sign)  # type: ignore[arg-type]
        self.send(ev.WitnessReceived(signed, signer.address))
        return signed

    def order(self, who: int, nonce: int, **changes: object) -> Hash32:
        """Orders a small job of client number `who`; returns its id. Its client first signs the
        voucher that the order needs, unless `prepays` is false.
        """
        if self.hears_blocks and self.at > self.core.state.own.block_time + DEVNET.ack_age_max // 2:
            self.chain_says()
        lacks_content = bool(changes.pop("lacks_content", False))
        prepays = changes.pop("prepays", True)
        submission = self.submission(who, nonce, **changes)
        if prepays:
            self.prepay(who, submission.order.message.budget, submission.session)
        self.send(ev.OrderReceived(submission, lacks_content=lacks_content))
        return digest(DOMAIN, submission.order.message)

    def submission(self, who: int, nonce: int, **changes: object) -> Submission:
        """Returns an order that nobody has sent yet."""
        up_to = changes.pop("up_to", Amount(40_000_000))
        spec_changes = {
            name: changes.pop(name)
            for name in (
                *("kind", "gateways", "inputs", "resources", "start_within", "compare"),
                *("egress", "seal_key", "spot"),
            )
            if name in changes
        }
        fields: dict[str, object] = {"budget": Amount(1_000_000), "max_executions": Small(7)}
        fields |= {"accept_unwitnessed": False, "accept_unverified": False} | changes
        limit = Seconds(self.limit)
        spec = replace(a_spec(f"job-{nonce}"), max_duration=limit, **spec_changes)  # type: ignore[arg-type]
        self.specs[spec.digest()] = spec
        comparator = spec.compare.comparator
        fields = {"comparator": comparator, "caseable": comparator is Comparator.EXACT, **fields}
        terms = OrderTerms(f"job-{nonce}")
        fields = {"terms_hash": terms.digest(), **fields}
        message = an_order(
            self.clients[who].address, COORDINATOR.address, spec, nonce, self.at + 600, **fields
        )
        session = Session(
            self.clients[who].address,
            self.sessions[who].address,
            COORDINATOR.address,
            up_to,
            UnixSeconds(self.at + 3600),  # type: ignore[arg-type]
        )
        return Submission(
            seal(DOMAIN, message, self.sessions[who].sign),
            seal(DOMAIN, session, self.clients[who].sign),
            spec,
            terms,
        )

    def plan(self, spec: job_spec.JobSpec, price: int, **changes: object) -> PlanView:
        """What an order for this spec would find now, for a client that is not known."""
        asked = PlanRequest(spec, Price(price), VerifyTier.STANDARD, accept_unverified=False)
        wanted = replace(asked, **changes)
        state, rules, now = self.core.state, self.core.rules, UnixSeconds(self.at)
        return views.plan_view(state, rules, now, wanted, ZERO_ADDRESS)

    def prepay(self, who: int, budget: Amount, session: Envelope[Session]) -> None:
        """Sends the voucher that an order needs, as far as the client's money and session reach."""
        steps, client = self.steps, self.clients[who].address
        known = self.core.state.clients[client]
        needed = Amount(known.charged + known.reserved + budget)
        reach = min(needed, known.tab.locked, session.message.up_to)
        if reach > known.vouched:
            self.send(ev.SessionReceived(session))
            self.vouch(who, Amount(reach))
        self.steps = steps  # so that later steps draw the same with and without a voucher

    def order_on_credit(self, who: int, nonce: int, **changes: object) -> Hash32:
        """Orders without a voucher, by a client that has paid enough fees for that."""
        account = self.clients[who].address
        with self.core.state.transaction():
            known = self.core.state.clients[account]
            self.core.state.clients[account] = replace(known, fees_paid=Amount(10_000_000))
        job_id = self.order(who, nonce, prepays=False, **changes)
        with self.core.state.transaction():
            known = self.core.state.clients[account]
            self.core.state.clients[account] = replace(known, fees_paid=Amount(0))
        return job_id

    def vouch(self, who: int, cumulative: Amount) -> None:
        """Sends a client's voucher."""
        message = Voucher(self.clients[who].address, COORDINATOR.address, cumulative)
        key = self.sessions[who]
        self.send(ev.VoucherReceived(seal(DOMAIN, message, key.sign), key.address))

    def job(self, job_id: Hash32) -> Job:
        """Returns a job as the state has it now."""
        return self.core.state.jobs[job_id]

    def client(self, who: int = 0) -> Client:
        """Returns what the coordinator knows of client number `who`."""
        return self.core.state.clients[self.clients[who].address]

    def verdict(self, job_id: Hash32) -> Verdict:
        """Returns the verdict of a decided job."""
        phase = self.job(job_id).phase
        assert isinstance(phase, Decided)
        return phase.verdict.message

    def receipt(self, place: int = -1) -> Receipt:
        """Returns one of the receipts, the newest by default."""
        found: Receipt = canonical.decode(Receipt, self.receipts[place])
        return found

    def context(self, later: int = 0, random: Hash32 = ZERO_HASH) -> StepContext:
        """Returns the context of a step that comes so many seconds later."""
        at = UnixSeconds(self.at + later)
        return StepContext(self.core.state, self.core.rules, at, random)

    def sent(self, kind: type[E]) -> list[E]:
        """Returns the effects of one kind, the oldest first."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def payee(self, owner: Address) -> Payee:
        """Returns what the coordinator owes an account."""
        return payees.of(self.core.state, owner)

    def earned(self, owner: Address) -> int:
        """Returns what an account has earned so far, held pay included."""
        return self.payee(owner).final + self.payee(owner).held

    def until(self, job_id: Hash32, kind: type[P], seconds: int = 200) -> P:
        """Beats until the job is in this phase; returns the phase."""
        for _ in range(seconds):
            if isinstance(phase := self.job(job_id).phase, kind):
                return phase
            self.beat()
        raise AssertionError(type(self.job(job_id).phase).__name__)

    def until_decided(self, *job_ids: Hash32, seconds: int = 120) -> None:
        """Beats until all these jobs have a verdict."""
        for _ in range(seconds):
            if all(isinstance(self.job(job_id).phase, Decided) for job_id in job_ids):
                return
            self.beat()
        raise AssertionError([type(self.job(job_id).phase).__name__ for job_id in job_ids])


class StoppingMarket(Market):
    """A market whose client stops each job as soon as a provider has accepted it."""

    ran_ms = 0

    def send(self, event: ev.Event) -> object:
        reply = super().send(event)
        if isinstance(event, ev.AcceptReceived):
            self.stop(self.core.state.leases[event.accept.message.assignment_hash].job_id)
        return reply


@dataclass
class ScriptedEscrow:
    """The coordinator's balance and tabs, as `Escrow` keeps them."""

    balance: int = 1_000_000_000
    limit: int = 1_000_000_000
    seen: int = 0  # so many effects of the market it has looked at
    tabs: dict[tuple[Address, Address], tuple[int, int]] = field(default_factory=dict)

    def own_notes(self) -> list[ev.ChainNote]:
        """What the coordinator may spend."""
        limit = Amount(self.limit)
        return [ev.ChainBalanceChanged(Amount(self.balance), limit, limit)]

    def lock(self, client: Address, amount: int) -> ev.ChainTabChanged:
        """A client deposits into its tab."""
        return self._move(client, COORDINATOR.address, locked=amount)

    def take(self, effect: Effect) -> list[ev.ChainTabChanged]:
        """Performs a transaction, and returns the tabs that it changed."""
        us = COORDINATOR.address
        match effect:
            case SendPayroll(pays=pays):
                found = []
                for pay in pays:
                    added = pay.cumulative - self.tabs.get((us, pay.payee), (0, 0))[1]
                    self.balance -= added
                    found.append(self._move(us, pay.payee, locked=added, paid=added))
                assert self.balance >= 0, "a payroll spends the balance only"
                return found
            case SendLocks(locks=locks):
                self.balance -= sum(lock.amount for lock in locks)
                assert self.balance >= 0, "locks spend the balance only"
                return [self._move(us, lock.payee, locked=lock.amount) for lock in locks]
            case SendRedeem(vouchers=vouchers):
                found = []
                for voucher in (item.voucher.message for item in vouchers):
                    locked, paid = self.tabs[voucher.payer, us]
                    added = max(0, min(voucher.cumulative, locked) - paid)
                    self.balance += added
                    found.append(self._move(voucher.payer, us, paid=added))
                return found
            case SendGiveBack(client=client, amount=amount):
                return [self._move(client, us, locked=-amount)]
            case _:
                return []

    def _move(
        self, payer: Address, payee: Address, locked: int = 0, paid: int = 0
    ) -> ev.ChainTabChanged:
        before = self.tabs.get((payer, payee), (0, 0))
        self.tabs[payer, payee] = after = before[0] + locked, before[1] + paid
        assert after[1] <= after[0], "no tab pays more than is locked in it"
        return ev.ChainTabChanged(payer, payee, Amount(after[0]), Amount(after[1]))
