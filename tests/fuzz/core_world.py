"""A coordinator core with providers and clients that may send everything they can sign.

`World.send` does what the actor does around a step: it encodes and decodes, checks that effects
have distinct keys and that money adds up. Every exception except `Refused` is a bug, because it
would end the running coordinator.
"""

from dataclasses import dataclass, field

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import (
    ArchiveRuns,
    Effect,
    OpenCase,
    SendGiveBack,
    SendLocks,
    SendPayroll,
    SendRedeem,
)
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.lease import Accepted, Assigned, Closed, Lease
from quorate_coordinator.core.money import ledger
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.limits import Limits
from quorate_protocol.messages import job_spec as jobs
from quorate_protocol.messages import offer as offers
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.commitment import commitment, result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import (
    Accept,
    Commit,
    Decline,
    Heartbeat,
    LeaseProgress,
    Reveal,
    Session,
    Voucher,
)
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import orders
from quorate_protocol.rules.orders import Submission
from quorate_protocol.step import Input
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    DeclineReason,
    ExitStatus,
    Hash32,
    JobKind,
    Milliseconds,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    WorkStage,
)
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.keys.crypto import KeySigner, recover
from support.markets.scripted_market import COORDINATOR, DOMAIN, GENESIS, RULES
from support.messages import an_order
from support.offers import a_slot, an_offer, class_of, machine_of

HOSTS = (
    CPUS,
    Pool("RTX 4090", "", Small(1)),
    Pool("L40S", "", Small(1)),
    Pool("T4", "", Small(2)),  # offered, but without stake
)
CODEC: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
IMAGE = document_cid(b"image")
US = COORDINATOR.address
SENT = (OpenCase, SendPayroll, SendRedeem, SendLocks, SendGiveBack)


@dataclass
class Owner:
    """A registered provider and the keys that it may sign with."""

    address: Address
    key: KeySigner
    old_keys: list[KeySigner] = field(default_factory=list)


class World:
    """One core, owners with a stake slot in each of the first three classes, and two funded
    clients.
    """

    def __init__(self, limits: Limits, owner_count: int) -> None:
        self.limits = limits
        rules = replace(RULES, limits=limits, beacon_key=b"\x03" * 96)
        self.core = CoordinatorCore(rules, ledger.check)
        self.at, self.steps, self.block = GENESIS + 10_000, 0, 5
        self.refused, self.accepted = 0, 0
        self.purposes: list[str] = []
        self.leaving: list[tuple[Hash32, ...]] = []
        self.deaf: set[Address] = set()  # providers that do nothing in `market_goes_on`
        self.mute: set[Address] = set()  # providers that do not reveal
        self.cases: list[Hash32] = []  # executions
        self.clients = [KeySigner(bytes([10 + i]) * 32) for i in range(2)]
        self.sessions = [KeySigner(bytes([20 + i]) * 32) for i in range(2)]
        self.owners = [
            Owner(KeySigner(bytes([100 + i]) * 32).address, KeySigner(bytes([50 + i]) * 32))
            for i in range(owner_count)
        ]
        self._register()

    def send(self, event: ev.Event) -> bool:
        """Sends an event; False when the core refused it."""
        assert CODEC.decode_event(CODEC.version, CODEC.encode_event(event)) == event, (
            "what is journaled is read back"
        )
        self.steps += 1
        try:
            outcome = self.core.step(
                Input(UnixSeconds(self.at), hash_tuple("random", self.steps), event)
            )
        except Refused:
            self.refused += 1
            return False
        self.accepted += 1
        keys = [effect.key for effect in outcome.effects]
        assert len(set(keys)) == len(keys), f"two effects of one step have one key: {keys}"
        for effect in outcome.effects:
            assert CODEC.decode_effect(CODEC.version, CODEC.encode_effect(effect)) == effect
            if isinstance(effect, SENT):
                self.purposes.append(effect.key)
            if isinstance(effect, ArchiveRuns):
                self.leaving.append(effect.jobs)
        if self.steps % 3:
            self.archive()
        return True

    def archive(self) -> None:
        """Writes jobs that wait for the archive, at once or a little later."""
        while self.leaving:
            assert self.send(ev.RunsArchived(self.leaving.pop()))

    def notes(self, *notes: ev.ChainNote) -> bool:
        """One more block with these notes."""
        self.block += 1
        return self.send(
            ev.ChainAdvanced(
                BlockNumber(self.block),
                hash_tuple("block", self.block),
                UnixSeconds(self.at),
                notes,
            )
        )

    def restart(self) -> None:
        """Restores a new core from a snapshot; the state must be the same."""
        taken = self.core.snapshot()
        fresh = CoordinatorCore(self.core.rules, ledger.check)
        fresh.restore(taken)
        assert fresh.snapshot() == taken
        self.core = fresh
        assert self.send(ev.Restarted())

    # ---- views of the state

    def leases(self) -> list[Lease]:
        """All leases, oldest first."""
        return list(self.core.state.leases.values())

    def jobs(self) -> list[Job]:
        """All jobs, oldest first."""
        return list(self.core.state.jobs.values())

    def owner_of(self, lease: Lease) -> Owner:
        """The provider that runs the lease."""
        return next(owner for owner in self.owners if owner.address == lease.provider)

    # ---- honest moves, which lead to deep states

    def beat(self, seconds: int) -> None:
        """Lets time pass; every provider sends a heartbeat."""
        self.at += seconds
        for owner in self.owners:
            self.heartbeat(owner)
        assert self.send(ev.Tick())

    def work(self, lease: Lease, lie: int, usage: int) -> None:
        """Accepts and commits, as far as the lease allows."""
        self.moves(lease, "ac", lie, usage)

    def class_of(self, lease: Lease) -> Hash32:
        spec = self.core.state.jobs[lease.job_id].submission.spec
        pool = self.pool_of(lease)
        return class_of(spec, machine_of(pool), pool)

    def pool_of(self, lease: Lease) -> Pool:
        return next(item for item in HOSTS if item.id() == lease.assignment.message.pool)

    def moves(self, lease: Lease, steps: str, lie: int, usage: int = 1) -> None:
        """Accept, Commit, Decline, Reveal of one execution in any order, each valid by itself."""
        owner, at = self.owner_of(lease), UnixSeconds(self.at)
        reveal = self.reveal(lease, lie)
        value = commitment(
            lease.assignment_hash,
            lease.provider,
            reveal.salt,
            result_digest(reveal.exit_status, reveal.output_digest),
        )
        commit = Commit(
            lease.assignment_hash,
            self.class_of(lease),
            value,
            sha256(reveal.salt),
            Milliseconds(usage),
            Round(0),
        )
        host = machine_of(self.pool_of(lease)).digest()
        accept = Accept(lease.assignment_hash, host, Seconds(0), Seconds(1), Seconds(0), at)
        decline = Decline(lease.assignment_hash, DeclineReason.BUSY, UnixSeconds(self.at + 1), at)
        made: dict[str, ev.Event] = {
            "a": ev.AcceptReceived(seal(DOMAIN, accept, owner.key.sign), owner.key.address),
            "c": ev.CommitReceived(
                seal(DOMAIN, commit, owner.key.sign), owner.key.address, is_stored=True
            ),
            "d": ev.DeclineReceived(seal(DOMAIN, decline, owner.key.sign), owner.key.address),
            "r": ev.RevealReceived(reveal, has_opened=True),
        }
        for step in steps:
            self.send(made[step])

    def reveal(self, lease: Lease, lie: int) -> Reveal:
        """What opens the commitment of `work` with the same `lie`."""
        salt = hash_tuple("salt", lease.assignment_hash, lie)
        output = hash_tuple("output", lease.job_id, lie)
        return Reveal(lease.assignment_hash, lease.provider, ExitStatus(0), output, salt)

    def offer(
        self,
        owner: Owner,
        seq: int,
        prices: tuple[int, ...],
        counts: tuple[int, ...],
        hosts: tuple[Pool, ...],
    ) -> bool:
        """An offer through the shell's checks."""
        slots = tuple(
            a_slot(host, price, count)
            for host, price, count in zip(hosts, prices, counts, strict=False)
        )
        offer = an_offer(owner.address, seq, self.at + 900, slots)
        signed = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), owner.key.sign))
        return self.offer_signed(signed)

    def offer_signed(self, signed: OfferEnvelope) -> bool:
        """Any signed offer, through the shell's checks."""
        try:
            key = offers.validate(
                signed, DOMAIN, recover, UnixSeconds(self.at), self.limits.offer_ttl
            )
        except Refused:
            self.refused += 1
            return False
        return self.send(ev.OfferReceived(signed, key))

    def order(
        self,
        who: int,
        nonce: int,
        changes: dict[str, object],
        spec_changes: dict[str, object],
        up_to: int = 40_000_000,
    ) -> bool:
        """An order through the shell's checks."""
        client, key = self.clients[who], self.sessions[who]
        resources = (
            jobs.Resources(gpu=jobs.GpuRequest(1, "", 0))
            if changes.get("pool") == HOSTS[2].id()
            else jobs.Resources()
        )
        fields: dict[str, object] = {
            "kind": JobKind.TASK,
            "image": IMAGE,
            "image_bytes": 10,
            "argv": ("true",),
            "shell": "",
            "env": (),
            "working_dir": "/",
            "inputs": (),
            "resources": resources,
            "max_duration": Seconds(60),
            "compare": jobs.Compare(),
        }
        terms = OrderTerms(f"job-{who}")
        spec = jobs.JobSpec(**(fields | spec_changes))  # type: ignore[arg-type]
        wanted: dict[str, object] = {
            "input_root": ZERO_HASH,
            "terms_hash": terms.digest(),
            "budget": Amount(1_000_000),
            "max_executions": Small(7),
            "accept_unwitnessed": False,
            "pool": HOSTS[0].id()
            if self.limits.class_owner_age
            else ZERO_HASH,  # all known heartbeats are old
        }
        order = an_order(
            client.address, COORDINATOR.address, spec, nonce, self.at + 600, **(wanted | changes)
        )
        session = Session(
            client.address,
            key.address,
            COORDINATOR.address,
            Amount(up_to),
            UnixSeconds(self.at + 3600),
        )
        submission = Submission(
            seal(DOMAIN, order, key.sign), seal(DOMAIN, session, client.sign), spec, terms
        )
        try:
            orders.validate(
                submission, DOMAIN, recover, COORDINATOR.address, UnixSeconds(self.at), self.limits
            )
        except Refused:
            self.refused += 1
            return False
        known = self.core.state.clients.get(client.address)
        if known is not None and 0 < order.budget < up_to:
            self.send(ev.SessionReceived(submission.session))
            reach = Amount(known.charged + known.reserved + order.budget)
            ahead = Voucher(client.address, COORDINATOR.address, reach)
            self.send(ev.VoucherReceived(seal(DOMAIN, ahead, key.sign), key.address))
        # every fifth order has an escrow of its own
        return self.send(ev.OrderReceived(submission, nonce % 5 == 0))

    def market_goes_on(self, lies: list[int], usage: int, turns: int) -> None:
        """One honest round of the market, so that other moves meet jobs in every phase."""
        self.notes()
        for context in range(turns):
            self.beat(2)
            for owner in self.owners:
                known = self.core.state.providers[owner.address].offer
                if (
                    known is None
                    or known.expires <= self.at + 60
                    or not any(slot.on_demand for slot in known.slots)
                ):
                    seq = min(2**64 - 1, known.seq + 1) if known else 1
                    self.offer(owner, seq, (100_000, 90_000, 80_000), (2, 1, 1), HOSTS[:3])
            for number, lease in enumerate(self.leases()[-16:]):
                if isinstance(lease.phase, Assigned | Accepted) and lease.provider not in self.deaf:
                    self.work(lease, lies[(number + context) % len(lies)], usage)
            self.rounds(context)
            for lease in self.leases()[-16:]:
                if isinstance(lease.phase, Closed) and lease.provider not in self.mute:
                    for lie in set(lies):
                        self.send(ev.RevealReceived(self.reveal(lease, lie), has_opened=True))

    def everybody_is_well(self) -> None:
        """Gives all parties money, stake and freedom again."""
        self.deaf.clear()
        self.mute.clear()
        notes: list[ev.ChainNote] = [
            ev.ChainCaseDecided(execution, False, Amount(0)) for execution in self.cases
        ]
        notes += [self.tab(client.address, US, 2**60) for client in self.clients]
        notes += self._stakes()
        self.notes(*notes)
        for client, key in zip(self.clients, self.sessions, strict=True):
            known = self.core.state.clients[client.address]
            voucher = Voucher(client.address, COORDINATOR.address, known.charged)
            self.send(ev.VoucherReceived(seal(DOMAIN, voucher, key.sign), key.address))

    def rounds(self, salt: int) -> None:
        """Every round that is waited for appears, if its time has come."""
        period = self.limits.beacon_period
        for wanted in self.core.rounds_wanted():
            if (wanted - 1) * period + GENESIS <= self.at:
                self.send(ev.RoundAppeared(wanted, b"\x05" * 48, hash_tuple("round", wanted, salt)))

    def _register(self) -> None:
        notes: list[ev.ChainNote] = []
        for index, owner in enumerate(self.owners):
            network = hash_tuple("net", index)
            notes.append(
                ev.ChainProviderRegistered(owner.address, owner.key.address, owner.address, network)
            )
        notes += self._stakes()
        notes += [self.tab(client.address, US, 50_000_000) for client in self.clients]
        assert self.notes(*notes)
        for owner in self.owners:
            assert self.offer(owner, 1, (100_000, 90_000, 80_000), (2, 1, 1), HOSTS[:3])
            assert self.heartbeat(owner)

    def tab(
        self, payer: Address, payee: Address, locked: int, paid: int = 0, is_closing: bool = False
    ) -> ev.ChainTabChanged:
        """A tab of which no more is paid than is locked."""
        closes_at = UnixSeconds(self.at + 60 if is_closing else 0)
        return ev.ChainTabChanged(
            payer, payee, Amount(locked), Amount(min(paid, locked)), closes_at
        )

    def _stakes(self) -> list[ev.ChainNote]:
        """Two stake slots of each owner in each class."""
        return [
            ev.ChainSlotOpened(host.id(), index, owner.address, BlockNumber(1))
            for host in HOSTS[:3]
            for index, owner in enumerate(self.owners * 2)
        ]

    def progress(self, owner: Owner) -> tuple[LeaseProgress, ...]:
        """What an owner's heartbeat says of its leases: it runs all of them."""
        held = self.core.state.leases_in_slots.get(owner.address) or ()
        return tuple(LeaseProgress(item, WorkStage.RUNNING) for item in held)

    def heartbeat(self, owner: Owner) -> bool:
        """A heartbeat of an owner that does not say which slots are free."""
        known = self.core.state.providers[owner.address].heartbeat_seq
        message = Heartbeat(
            owner.address,
            Sequence(min(2**64 - 1, known + 1)),
            (),
            self.progress(owner),
            UnixSeconds(self.at),
        )
        return self.send(
            ev.HeartbeatReceived(seal(DOMAIN, message, owner.key.sign), owner.key.address)
        )
