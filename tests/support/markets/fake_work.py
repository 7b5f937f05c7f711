"""The work behind the fake market: jobs, executions, draws, verdicts and receipts.

Messages and signatures are real. The fake can cheat in one way at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.sealed import seal_directory
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import hash_list, hash_tuple, sha256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.beacon_rounds import Timing
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.commitment import (
    assignment_id,
    commitment,
    result_digest,
    secret_hash,
)
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.messages.receipt import (
    VERSION,
    BeaconEvidence,
    Evidence,
    ExecutionEvidence,
    Receipt,
    RegisteredProvider,
    TakenFromChain,
    decided,
)
from quorate_protocol.messages.signed import (
    Accept,
    Ack,
    Assignment,
    Commit,
    CommitEntry,
    CommitReceipt,
    CommitSet,
    Reveal,
    Session,
    Stop,
    Verdict,
    Voucher,
    Witness,
)
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.refusals import Code
from quorate_protocol.rules import audit_draw, settlement, verdict
from quorate_protocol.rules.orders import Submission
from quorate_protocol.rules.receipts import receipt_draws
from quorate_protocol.rules.settlement import Ran
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Bps,
    ExitStatus,
    Hash32,
    Label,
    Milliseconds,
    Outcome,
    Ppm,
    Price,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import KeySigner
from support.offers import MACHINE, class_of

STAKES = Address(b"\x11" * 20)
FEE = Bps(500)
USAGE_MS = Milliseconds(7_200)
RUN_SECONDS = 8  # the usage in whole seconds
PRICE = Price(300_000)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def key(name: str) -> KeySigner:
    """Returns the test key that belongs to a name."""
    return KeySigner(sha256(name.encode()))


@dataclass
class Cheat:
    """What the fake market does wrong on purpose. With every field at its default the market is
    honest.
    """

    liars: frozenset[int] = frozenset()  # indices of providers that give a wrong output
    exit_status: int = 0
    plan_fee: int = FEE  # the fee that a plan shows
    no_files: bool = False  # the program left nothing, or its files were refused
    text: str = "hello from the job\n"  # what the program printed
    charge_extra: int = 0
    stale_round: bool = False  # the commit names a round that has appeared
    wrong_class: bool = False
    crown_liar: bool = False  # the verdict names the minority as its group
    foreign_verdict_key: bool = False
    swap_ciphertext: bool = False
    ack_other_job: bool = False
    another_run: bool = False  # every request for a run is answered with the first run
    plan_rule: Label = Label.QUORUM_2
    ack_rule: Label = Label.QUORUM_2
    ack_twice: bool = False  # the Ack in the receipt differs from the Ack that answered the order
    price: int = PRICE
    lapse: bool = False  # ends without a verdict
    ended: str = "nobody could be matched"  # why
    # so many requests for a run's status get a proxy's answer, as while the coordinator restarts
    away: int = 0
    refuse_order: Code | None = None
    refuse_again: Code | None = None  # refuses every try of an order except the first
    # refuses vouchers until the client sends a session without an order
    is_session_ending: bool = False
    drop_first_order: bool = False  # closes the connection after taking the order


@dataclass
class FakeJob:
    """One order and everything that resulted from it."""

    submission: Submission
    job_id: Hash32
    ack: Envelope[Ack]
    secret: Hash32
    executions: list[ExecutionEvidence] = field(default_factory=list)
    batches: list[Envelope[CommitSet]] = field(default_factory=list)
    beacons: list[BeaconEvidence] = field(default_factory=list)
    exhausted_by: Round = Round(0)
    witness: Envelope[Witness] | None = None
    verdict: Envelope[Verdict] | None = None
    charged: Amount = Amount(0)
    phase: str = "running"
    stopped: bool = False
    hold: asyncio.Event = field(default_factory=asyncio.Event)


class FakeWork:
    """Everything of the fake market except the HTTP routes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cheat = Cheat()
        self.clock = SystemClock()
        self.domain = Domain(1337, STAKES)
        self.coordinator, self.statement = key("coordinator"), key("statement")
        self.operators = [key(f"operator {i}") for i in range(5)]
        self.owners = [key(f"owner {i}").address for i in range(5)]
        self.slots = tuple(
            StakeSlot(
                i,
                owner,
                self.operators[i].address,
                key(f"payout {i}").address,
                hash_tuple("net", i),
                BlockNumber(1),
            )
            for i, owner in enumerate(self.owners)
        )
        self.beacon_secret = bls.keygen(b"a test beacon's seed")
        self.genesis = int(self.clock.now()) - 1000
        self.timing = Timing(
            self.genesis,
            DEVNET.beacon_period,
            DEVNET.reveal_within,
            DEVNET.max_hold,
            DEVNET.accept_within,
        )
        self.store = ContentStore(folder / "store", 1 << 30, spare_bytes=0)
        self.jobs: dict[Hash32, FakeJob] = {}
        self.events: list[JobEvent] = []
        self.changed = asyncio.Condition()
        self.vouchers: list[Envelope[Voucher]] = []
        self.stops: list[Envelope[Stop]] = []
        self.posts: dict[str, int] = {}
        self.is_silent: Callable[[web.Request], bool] | None = (
            None  # does what a request says, and never answers
        )
        self.vouched = Amount(0)
        self.sessions: list[Session] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.auto_finish = True
        self.url = ""

    @property
    def charged(self) -> Amount:
        """The sum of the charges of all jobs."""
        return Amount(sum(job.charged for job in self.jobs.values()))

    def _new_job(self, submission: Submission, job_id: Hash32) -> FakeJob:
        secret, root = sha256(b"x" + job_id), EligibleList(self.slots, len(self.slots)).root
        ack = Ack(
            job_id,
            CPUS.id(),
            UnixSeconds(int(self.clock.now())),
            BlockNumber(5),
            root,
            ZERO_HASH,
            ZERO_HASH,
            Sequence(0),
            secret_hash(secret),
            self.cheat.ack_rule,
            FEE,
            submission.escrowed,
        )
        return FakeJob(submission, job_id, seal(self.domain, ack, self.statement.sign), secret)

    async def note(
        self, job: FakeJob, name: str, text: str, commit: Envelope[Commit] | None = None
    ) -> None:
        """Adds an event to a job."""
        async with self.changed:
            self.events.append(
                JobEvent(
                    Sequence(len(self.events) + 1),
                    UnixSeconds(int(self.clock.now())),
                    job.job_id,
                    name,
                    text,
                    commit,
                )
            )
            self.changed.notify_all()

    async def _perform(self, job: FakeJob) -> None:
        if self.cheat.lapse:
            job.phase = "ended"
            await self.note(job, "ended", self.cheat.ended)
            return
        now = int(self.clock.now()) - self.genesis
        named = Round(now // 2 if self.cheat.stale_round else (now + RUN_SECONDS) // 2 + 4)
        await self._execute(job, 0, named)
        await self.note(job, "committed", "execution 0", job.executions[0].commit)
        if not self.auto_finish:
            await job.hold.wait()
        elif not self.cheat.stale_round:
            async with asyncio.timeout(10):
                async with self.changed:
                    await self.changed.wait_for(lambda: job.witness is not None)
        stored_at = job.executions[0].commit_receipt.message.time
        first, number = 0, self.timing.first_round(named, stored_at)
        for batch in range(4):
            await self._batch(job, batch, number, first)
            number = self.timing.later_round(job.batches[-1].message.closed_at)
            first = len(job.executions)
            decision = self._decision(job)
            if isinstance(decision, verdict.Accepted):
                await self._decide(job, decision)
                return
            if isinstance(decision, verdict.Unresolved):
                await self._unresolved(job)
                return
        job.beacons.append(BeaconEvidence(number, bls.sign_round(self.beacon_secret, number)))
        job.exhausted_by = number
        await self._unresolved(job)

    async def _batch(self, job: FakeJob, batch: int, number: Round, first: int) -> None:
        signature = bls.sign_round(self.beacon_secret, number)
        job.beacons.append(BeaconEvidence(number, signature))
        seed = audit_draw.seed(bls.randomness(signature), job.job_id, job.secret, batch)
        used = {item.assignment.message.provider for item in job.executions}
        excluded = [slot for slot in self.slots if slot.owner in used]
        drawn = next(
            audit_draw.draw(
                seed, len(self.slots), {slot.index: slot for slot in self.slots}, excluded
            )
        )
        await self._execute(job, drawn.slot.index, number)
        members = job.executions[first:]
        entries = tuple(
            CommitEntry(
                _hash(item),
                item.assignment.message.provider,
                digest(self.domain, item.commit.message),
            )
            for item in members
        )
        blinds = tuple(sha256(b"blind" + job.job_id + bytes([item.index])) for item in members)
        message = CommitSet(
            job.job_id,
            Small(batch),
            entries,
            blinds,
            number,
            job.secret,
            Ppm(PPM_ONE),
            (drawn.attempt,),
            hash_list(()),
            job.witness.digest(self.domain) if job.witness and not batch else ZERO_HASH,
            UnixSeconds(
                max(
                    self.timing.appears_at(number),
                    *(item.commit_receipt.message.time for item in members),
                )
            ),
        )
        job.batches.append(seal(self.domain, message, self.statement.sign))
        await self.note(job, "closed", f"batch {batch}")

    async def _execute(self, job: FakeJob, who: int, number: Round) -> None:
        index, order, spec = len(job.executions), job.submission.order.message, job.submission.spec
        blind = sha256(b"blind" + job.job_id + bytes([index]))
        # The fake does not wait for the rounds that draw, but dates what follows from them.
        sent = self.timing.appears_at(number) if index else int(self.clock.now())
        assignment = Assignment(
            assignment_id(job.job_id, index, blind),
            self.coordinator.address,
            self.owners[who],
            order.spec_hash,
            CPUS.id(),
            order.price_tier,
            Price(self.cheat.price),
            spec.max_duration,
            UnixSeconds(sent + self.timing.accept_within),
        )
        hashed = digest(self.domain, assignment)
        accepted_at = UnixSeconds(max(sent, int(self.clock.now())))
        accept = Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), accepted_at)
        salt = sha256(b"salt" + hashed)
        output, sealed = self.folder / f"out-{hashed.hex()}", self.folder / f"sealed-{hashed.hex()}"
        output.mkdir(parents=True)
        lie = f" a lie of {who}" if who in self.cheat.liars else ""
        if not self.cheat.no_files:
            (output / "result.txt").write_text(f"{' '.join(spec.command())}{lie}\n")
            (output / "deep").mkdir()
            (output / "deep" / "empty").write_bytes(b"")
        output_digest, cid, _ = await asyncio.to_thread(seal_directory, output, salt, sealed)
        if self.cheat.swap_ciphertext:
            raw = bytearray(sealed.read_bytes())
            raw[-1] ^= 1
            sealed.write_bytes(raw)
        stat = await self.store.put(sealed, "providers", None)
        status = ExitStatus(self.cheat.exit_status)
        result = result_digest(status, output_digest)
        commit = Commit(
            hashed,
            ZERO_HASH if self.cheat.wrong_class else class_of(spec),
            commitment(hashed, self.owners[who], salt, result),
            stat.cid.digest if self.cheat.swap_ciphertext else cid.digest,
            USAGE_MS,
            number,
        )
        reveal = Reveal(hashed, self.owners[who], status, output_digest, salt)
        sign = self.operators[who].sign
        # The fake does not wait for the run either.
        stored_at = UnixSeconds(accepted_at + RUN_SECONDS)
        job.executions.append(
            ExecutionEvidence(
                index,
                seal(self.domain, assignment, self.statement.sign),
                seal(self.domain, accept, sign),
                seal(self.domain, commit, sign),
                seal(
                    self.domain,
                    CommitReceipt(digest(self.domain, commit), stored_at),
                    self.statement.sign,
                ),
                reveal,
                self.operators[who].address,
            )
        )

    def _decision(self, job: FakeJob) -> verdict.Decision:
        order = job.submission.order.message
        runs = [
            verdict.Execution(
                i.commit.message.assignment_hash, i.assignment.message.provider, _result(i)
            )
            for i in job.executions
        ]
        decision = verdict.decide(
            Label.QUORUM_2, order.verify_tier, runs, order.max_executions, False
        )
        if self.cheat.crown_liar and isinstance(decision, verdict.Accepted):
            return verdict.Accepted(decision.faulted, decision.group)
        return decision

    async def _decide(self, job: FakeJob, decision: verdict.Accepted) -> None:
        group = [job.executions[i] for i in decision.group]
        silent = (i for i in decision.faulted if job.executions[i].reveal is None)
        # Nobody repeats the job, so another result is no fault.
        faulted = tuple(_hash(job.executions[i]) for i in silent)
        await self._finish(job, Outcome.ACCEPTED, tuple(_hash(item) for item in group), faulted)

    async def _unresolved(self, job: FakeJob) -> None:
        await self._finish(job, Outcome.UNRESOLVED, (), ())

    async def _finish(
        self, job: FakeJob, outcome: Outcome, group: tuple[Hash32, ...], faulted: tuple[Hash32, ...]
    ) -> None:
        evidence = self._evidence(job)
        message = Verdict(
            job.job_id,
            Sequence(1),
            Label.QUORUM_2,
            outcome,
            Small(len(job.batches)),
            group,
            faulted,
            (),
            evidence.digest(),
            UnixSeconds(max(int(self.clock.now()), job.batches[-1].message.closed_at)),
        )
        order = job.submission.order.message
        ran = [
            Ran(
                _hash(i),
                settlement.pay_of(order, i.assignment.message, i.commit.message.usage_ms),
                _result(i),
            )
            for i in job.executions
        ]
        bill = settlement.bill(order, job.ack.message, message, ran)
        job.charged = Amount(bill.split.charged + self.cheat.charge_extra)
        signer = key("stranger") if self.cheat.foreign_verdict_key else self.statement
        job.verdict, job.phase = seal(self.domain, message, signer.sign), "decided"
        await self.note(job, "verdict", outcome.name.lower())

    def _met(self, job: FakeJob, batch: int, tries: List[int], beacon: BeaconEvidence) -> list[int]:
        seed = audit_draw.seed(bls.randomness(beacon.signature), job.job_id, job.secret, batch)
        return audit_draw.touched(seed, tries, len(self.slots))

    def receipt_of(self, job: FakeJob) -> Receipt:
        """Returns the receipt of a decided job."""
        assert job.verdict is not None
        return decided(self._evidence(job), job.verdict)

    def _evidence(self, job: FakeJob) -> Evidence:
        by_owner = {slot.owner: slot for slot in self.slots}
        slots = [by_owner[item.assignment.message.provider] for item in job.executions]
        parties = tuple(
            RegisteredProvider(slot.owner, slot.operator_key, slot.payout, slot.network)
            for slot in slots
        )
        draws = [(number, batch.message.slots) for number, batch in enumerate(job.batches)]
        draws += [(len(draws), receipt_draws.ALL_TRIES)] if job.exhausted_by else []
        met = (
            index
            for (number, tries), beacon in zip(draws, job.beacons, strict=True)
            for index in self._met(job, number, tries, beacon)
        )
        return Evidence(
            chain_id=self.domain.chain_id,
            stakes=STAKES,
            beacon_key=bls.public_key(self.beacon_secret),
            timing=self.timing,
            coordinator_key=self.statement.address,
            pools=(CPUS,),
            image=image_digest(job.submission.spec.image),
            profile=job.submission.spec.profile().digest(),
            session=job.submission.session,
            order=job.submission.order,
            ack=job.ack,
            batches=tuple(job.batches),
            beacons=tuple(job.beacons),
            executions=tuple(job.executions),
            compare=job.submission.spec.compare,
            distances=(),
            skips=(),
            exhausted_by=job.exhausted_by,
            witness=job.witness,
            withdrawals=(),
            slots=EligibleList(self.slots, len(self.slots)).show(met),
            taken_from_chain=TakenFromChain(5, ZERO_HASH, (len(self.slots),), parties),
            stop=None,
            version=VERSION,
        )


def _hash(item: ExecutionEvidence) -> Hash32:
    return item.commit.message.assignment_hash


def _result(item: ExecutionEvidence) -> Hash32:
    assert item.reveal is not None
    return result_digest(item.reveal.exit_status, item.reveal.output_digest)
