"""Runs whole jobs through the coordinator's real actor, journal, codec and core.

Real are: decoding of every incoming frame, signature checks, the core, the journal with its fsync
before any answer, and encoding of every outgoing frame. Scripted are: the work (none), the content
store (it stores nothing), the network (a pipe), and the beacon. A round appears as soon as it is
wanted, so a job's time is that of the code and not of the beacon. The providers sign and encode in
a process of their own (`market_providers`), on the second core. The cost of the pipe in the
coordinator's process replaces that of its sockets and is part of every figure. Orders are signed
beforehand.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.market_providers import DOMAIN, Party, Providers, digest, now_seconds, parties, seal
from bench.market_setup import Crypto, Figures, Setup
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import (
    AppendSummary,
    ArchiveRuns,
    Effect,
    Send,
    SendPayroll,
    SendRedeem,
    StoreReceipt,
    StoreSpec,
)
from quorate_coordinator.core.model.entities import WorkWindow
from quorate_coordinator.core.model.step_context import Rules
from quorate_coordinator.core.money import receipts
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.stored_effects import ArchiveWriter
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages import frames
from quorate_protocol.messages import offer as offers
from quorate_protocol.messages.classes import CPUS, job_class
from quorate_protocol.messages.envelope import AnyEnvelope, signer
from quorate_protocol.messages.signed import Heartbeat, Session, Voucher
from quorate_protocol.rules import orders as orders_module
from quorate_protocol.rules.orders import Submission
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Bps,
    Comparator,
    Hash32,
    JobKind,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import KeySigner, SecretStream
from quorate_runtime.process import gc_tuning
from support.messages import a_spec, an_order
from support.offers import a_slot, an_offer

CODEC: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)


CLIENTS = 8


BEACON_POLL_SECONDS = 0.02


TICK_SECONDS = 0.5
MONEY = Amount(10**12)


VOUCHER_SECONDS = 0.25
AHEAD = 10**10  # millionths that clients pay ahead


HEARTBEAT_SECONDS = 10.0


@dataclass(slots=True)
class Market:
    """One run's market."""

    setup: Setup
    crypto: Crypto
    core: CoordinatorCore
    clients: list[Party]
    sessions: list[Party]
    providers: dict[Address, Party]
    actor: Actor[ev.Event, Effect] = field(init=False)
    archive_writer: ArchiveWriter = field(init=False)
    apart: Providers = field(init=False)
    verdicts: dict[Hash32, "asyncio.Future[None]"] = field(default_factory=dict)
    executions: int = 0
    block: int = 5

    @classmethod
    def of(cls, setup: Setup) -> "Market":
        """Keys and a core whose providers have passed audits and committed in time. So audits are
        at their steady rate, and windows as wide as the offers.
        """
        crypto = Crypto(setup.is_signed)
        statement, coordinator = KeySigner(b"\x02" * 32), KeySigner(b"\x01" * 32)
        now = int(time.time())
        rules = Rules(
            DOMAIN,
            coordinator.address,
            statement.address,
            crypto.signing(statement),
            MAINNET,
            Bps(200),
            now - 1_000,
            b"",
            ("bench",),
        )
        history = Trusts({job_class(JobKind.TASK, Comparator.EXACT, CPUS.id()): Trust(passed=1000)})
        core = CoordinatorCore(rules)
        providers = parties(setup.providers, setup.is_signed)
        with core.state.transaction():
            for party in providers:
                core.state.trust[party.address] = history
                core.state.work_windows[party.address] = (
                    WorkWindow(CPUS.id(), Small(setup.slots)),
                )
        clients = [Party(number, setup.is_signed) for number in range(CLIENTS)]
        sessions = [Party(100 + number, setup.is_signed) for number in range(CLIENTS)]
        return cls(
            setup, crypto, core, clients, sessions, {party.address: party for party in providers}
        )

    # ------------------------------------------------------------------------------------- the gate

    def signer_of(self, envelope: AnyEnvelope, party: Party) -> Address:
        """Checks the signature as `FrameHandler` does, or trusts it."""
        return (
            signer(DOMAIN, envelope, self.crypto.recover) if self.setup.is_signed else party.address
        )

    async def frame(self, peer: Address, data: bytes) -> None:
        """Takes one frame of a provider."""
        party = self.providers[peer]
        match frames.decode(data):
            case frames.AcceptSent(accept):
                await self.actor.submit(ev.AcceptReceived(accept, self.signer_of(accept, party)))
            case frames.CommitSent(commit):
                await self.actor.submit(
                    ev.CommitReceived(commit, self.signer_of(commit, party), is_stored=True)
                )
            case frames.RevealSent(reveal):
                await self.actor.submit(ev.RevealReceived(reveal, has_opened=True))
            case other:
                raise AssertionError(f"nobody sends {type(other).__name__} here")

    # ------------------------------------------------------------------------------------ providers

    async def perform(self, effect: Effect) -> None:
        """Encodes the frame as the effect performer does; the provider's answer comes later."""
        match effect:
            case Send():
                self.apart.pipe.send(effect.peer, 0, frames.encode(effect.frame))
                self._see(effect.frame)
            case SendPayroll():
                await self.actor.submit(ev.TransactionConfirmed(effect.key, self._paid(effect)))
            case SendRedeem():
                await self.actor.submit(ev.TransactionConfirmed(effect.key, self._redeemed(effect)))
            case StoreSpec() | StoreReceipt():
                receipts.document(self.core.state, self.core.rules, effect)
            case ArchiveRuns() | AppendSummary():
                await self.archive_writer(effect)
            case _:
                pass

    def _paid(self, effect: SendPayroll) -> tuple[ev.ChainNote, ...]:
        coordinator = self.core.rules.coordinator
        pays = ((pay.payee, pay.cumulative) for pay in effect.pays)
        return tuple(ev.ChainTabChanged(coordinator, who, paid, paid) for who, paid in pays)

    def _redeemed(self, effect: SendRedeem) -> tuple[ev.ChainNote, ...]:
        vouchers = (item.voucher.message for item in effect.vouchers)
        return tuple(
            ev.ChainTabChanged(item.payer, item.payee, MONEY, item.cumulative) for item in vouchers
        )

    async def keep(self, job_id: Hash32) -> None:
        """The store has every document at once."""

    async def drop(self, _: object) -> None:
        """Nothing is dropped."""

    def _see(self, frame: frames.Frame) -> None:
        match frame:
            case frames.AssignmentSent():
                self.executions += 1
            case frames.VerdictSent(_, verdict):
                waiting = self.verdicts.pop(verdict.message.job_id, None)
                if waiting is not None:
                    waiting.set_result(None)
            case _:
                pass

    # -------------------------------------------------------------------------------------- clients

    def orders(self) -> list[bytes]:
        """All submissions, signed and encoded beforehand, as they would be posted to the API."""
        return [canonical.encode(self._submission(number)) for number in range(self.setup.jobs)]

    def _submission(self, number: int) -> Submission:
        who = number % CLIENTS
        spec = a_spec(f"job-{number}")
        coordinator, now = self.core.rules.coordinator, now_seconds()
        wanted = {"budget": Amount(1_000_000), "max_executions": Small(7), "pool": CPUS.id()}
        client = self.clients[who].address
        message = an_order(client, coordinator, spec, number + 1, now + 3600, **wanted)
        until = UnixSeconds(now + MAINNET.session_max)
        session = Session(
            self.clients[who].address,
            self.sessions[who].address,
            coordinator,
            Amount(10**12),
            until,
        )
        return Submission(
            seal(DOMAIN, message, self.sessions[who].sign),
            seal(DOMAIN, session, self.clients[who].sign),
            spec,
        )

    async def job(self, data: bytes) -> float:
        """One job from its order to its verdict; returns seconds."""
        begun = time.perf_counter()
        submission = canonical.decode(Submission, data)
        if self.setup.is_signed:
            orders_module.validate(
                submission,
                DOMAIN,
                self.crypto.recover_again,
                self.core.rules.coordinator,
                now_seconds(),
                MAINNET,
            )
        done = asyncio.get_running_loop().create_future()
        self.verdicts[digest(DOMAIN, submission.order.message)] = done
        await self.actor.submit(ev.OrderReceived(submission))
        await done
        return time.perf_counter() - begun

    async def vouch(self) -> None:
        """Clients sign vouchers ahead of what they owe, again and again."""
        while True:
            await asyncio.sleep(VOUCHER_SECONDS)
            await self._pay_ahead()

    async def _pay_ahead(self) -> None:
        for party, session in zip(self.clients, self.sessions, strict=True):
            client = self.core.state.clients.get(party.address)
            ahead = Amount(AHEAD + (client.charged if client else 0))
            if client is not None and client.sessions and ahead > client.vouched:
                coordinator = self.core.rules.coordinator
                message = Voucher(party.address, coordinator, ahead)
                voucher = seal(DOMAIN, message, session.sign)
                await self.actor.submit(
                    ev.VoucherReceived(voucher, self.signer_of(voucher, session))
                )

    # ------------------------------------------------------------------------------ time and beacon

    async def tick(self) -> None:
        """Ticks as the service does."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.core.needs_tick(int(time.time())):
                await self.actor.submit(ev.Tick())

    async def beacon(self) -> None:
        """Every wanted round appears at once."""
        while True:
            for wanted in self.core.rounds_wanted():
                signature = sha256(wanted.to_bytes(8, "big")) * 3
                await self.actor.submit(ev.RoundAppeared(wanted, signature, sha256(signature)))
            await asyncio.sleep(BEACON_POLL_SECONDS)

    async def open(self) -> None:
        """Registrations, tabs, offers and heartbeats."""
        notes: list[ev.ChainNote] = [ev.ChainBalanceChanged(MONEY, MONEY, MONEY)]
        for index, party in enumerate(self.providers.values()):
            who, network = party.address, hash_tuple("net", index)
            notes.append(ev.ChainProviderRegistered(who, who, who, network))
            notes += [
                ev.ChainSlotOpened(
                    CPUS.id(), index * self.setup.slots + place, party.address, BlockNumber(1)
                )
                for place in range(self.setup.slots)
            ]
        for client in self.clients:
            notes.append(
                ev.ChainTabChanged(client.address, self.core.rules.coordinator, MONEY, Amount(0))
            )
        await self.actor.submit(
            ev.ChainAdvanced(BlockNumber(self.block), ZERO_HASH, now_seconds(), tuple(notes))
        )
        for index, party in enumerate(self.providers.values()):
            slot = a_slot(CPUS, 100_000 + index, self.setup.slots)
            offer = an_offer(party.address, 1, int(time.time()) + 900, (slot,))
            envelope = offers.OfferEnvelope(offer, seal(DOMAIN, offer.signed(), party.sign))
            await self.actor.submit(ev.OfferReceived(envelope, party.address))
        for who in range(CLIENTS):
            await self.actor.submit(ev.SessionReceived(self._submission(who).session))
        await self._pay_ahead()
        await self._beat(Sequence(1))

    async def beat(self) -> None:
        """Sends the providers' heartbeats, however slow the machine is."""
        for number in itertools.count(2):
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._beat(Sequence(number))

    async def _beat(self, number: Sequence) -> None:
        for party in self.providers.values():
            beat = seal(DOMAIN, Heartbeat(party.address, number, (), (), now_seconds()), party.sign)
            await self.actor.submit(ev.HeartbeatReceived(beat, self.signer_of(beat, party)))


async def measure(
    folder: Path, setup: Setup, profiled: Callable[[], None] | None = None
) -> Figures:
    """Runs `setup.jobs` jobs, `setup.outstanding` at a time."""
    market, journal = Market.of(setup), Journal.open(folder)
    market.actor = Actor(market.core, journal, SystemClock(), CODEC, SecretStream())
    market.actor.bind(market.perform)
    history = RunReader(market.core.state, FileArchive(folder / "archive.sqlite"))
    outputs = Outputs(market.core.state, history.archive)
    market.archive_writer = ArchiveWriter(
        history, outputs, market.actor.submit, market.keep, market.drop
    )
    await market.actor.start()
    orders = iter(market.orders())
    market.apart = await Providers.start(setup.providers, setup.is_signed)
    async with asyncio.TaskGroup() as group:
        daemons = [
            group.create_task(work())
            for work in (market.actor.run, market.tick, market.beacon, market.vouch, market.beat)
        ]
        daemons.append(group.create_task(market.apart.serve(market.frame, group)))
        await market.open()
        took: list[float] = []

        async def one_after_another() -> None:
            for data in orders:
                took.append(await market.job(data))

        gc_tuning.tune_memory()
        market.crypto.seconds, commits = 0.0, journal.commits
        begun, cpu = time.perf_counter(), time.process_time()
        if profiled is not None:
            profiled()
        async with asyncio.TaskGroup() as workers:
            for _ in range(setup.outstanding):
                workers.create_task(one_after_another())
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        commits = journal.commits - commits
        for daemon in daemons:
            daemon.cancel()
    await market.apart.stop()
    await journal.close()
    history.archive.close()
    took.sort()
    return Figures(
        jobs_s=setup.jobs / seconds,
        p50_ms=1000 * took[len(took) // 2],
        p99_ms=1000 * took[len(took) * 99 // 100],
        fsyncs_per_job=commits / setup.jobs,
        cpu_ms_per_job=1000 * cpu / setup.jobs,
        crypto_share=market.crypto.seconds / seconds,
        executions_per_job=market.executions / setup.jobs,
    )


def without(setup: Setup, **changes: int) -> Setup:
    """The same run with changes."""
    return replace(setup, **changes)  # type: ignore[arg-type]
