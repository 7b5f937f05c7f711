"""Asks for a challenge when records are about to expire, and answers it as prover.

It asks in the first seconds of a period (PROTOCOL 10.19), one coordinator after the other, and only
while no job runs: a challenge needs all memory of the GPUs. Nothing of a challenge survives a
restart; the provider asks again.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from quorate_attestation.attestation_document import GpuEvidence
from quorate_attestation.catalogue import CPU
from quorate_attestation.challenge import STAGES, ChallengeOpened, GpuClaim
from quorate_attestation.proof_document import Proof, Sections
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.prover import Prover
from quorate_attestation.seeds import gpu_hash
from quorate_attestation.session_messages import (
    AttestationAsked,
    Message,
    NonceSent,
    ProofSent,
    RecordSent,
    RefusalSent,
    RootsSent,
)
from quorate_attestation.sessions import prover_session
from quorate_attestation.sessions.prover_session import ProverState
from quorate_attestation.sessions.schedule import challenge_round, check_start
from quorate_node.market.published_records import PublishedRecords
from quorate_protocol.codec import cids
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Round, Small, UnixSeconds
from quorate_runtime.peers.verifications import Verifier

T = TypeVar("T")
EngineOf = Callable[[GpuClaim], Engine]


class GpuProver:
    """All calls to its engine come from one thread, as drivers demand."""

    def __init__(
        self, challenge: ChallengeOpened, gpu: int, domain: Domain, engine_of: EngineOf
    ) -> None:
        self._challenge, self._gpu, self._domain = challenge, gpu, domain
        self._engine_of = engine_of
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attestation")
        self._prover: Prover | None = None

    async def begin(self) -> None:
        self._prover = await self._in_thread(self._make)

    def _make(self) -> Prover:
        claim = self._challenge.gpus[self._gpu]
        base = self._challenge.base_seed(self._domain, self._gpu)
        engine = self._engine_of(claim)
        try:
            return Prover(engine, claim.parameters, self._challenge.right_seed(), base)
        except BaseException:
            engine.close()
            raise

    async def commit(self, nonces: tuple[Hash32, ...]) -> tuple[Hash32, ...]:
        prover = self._ready
        return await self._in_thread(lambda: prover.commit(nonces))

    async def open(self, sample_seed: Hash32) -> Sections:
        prover = self._ready
        return await self._in_thread(lambda: prover.open(sample_seed))

    @property
    def _ready(self) -> Prover:
        assert self._prover is not None, "begin comes first"
        return self._prover

    async def close(self) -> None:
        prover, self._prover = self._prover, None
        if prover is not None:
            await self._in_thread(prover.close)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


POLL_SECONDS = 0.5
ANSWER_SECONDS = 120.0  # without a message of the verifiers for so long, a challenge ends
WAITING_MAX = 1024

log = logging.getLogger(__name__)

Send = Callable[[Address, Message], Awaitable[None]]
"""Sends a message to a coordinator; returns when it has passed it on."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is attested, and what the prover needs of the daemon."""

    peer_key: Hash32
    claims: Callable[[], tuple[GpuClaim, ...]]  # of the slots on offer
    is_idle: Callable[[], bool]  # on offer, and no job runs
    coordinators: Callable[[], tuple[Address, ...]]  # that are connected
    published: Callable[[], Awaitable[object]]  # called after new records: sends a new offer
    engine_of: EngineOf
    upload: Callable[[Address, str], Awaitable[None]]  # a CID, to a coordinator


@dataclass(slots=True)
class _Challenge:
    coordinator: Address
    state: ProverState
    came: "asyncio.Queue[NonceSent | RecordSent | RefusalSent]" = field(
        default_factory=lambda: asyncio.Queue(WAITING_MAX)
    )


@dataclass(slots=True)
class ProverService:
    """The provider as prover. `run` owns its tasks."""

    me: Verifier
    subject: Subject
    records: PublishedRecords
    send: Send
    _asked: AttestationAsked | None = None  # while a coordinator may open a challenge
    _challenge: _Challenge | None = None
    _tried: Round = field(init=False)
    _pause_until: float = 0.0
    _group: asyncio.TaskGroup | None = None
    _uploading: asyncio.Lock = field(default_factory=asyncio.Lock)  # one after the other

    def __post_init__(self) -> None:
        self._tried = Round(0)

    @property
    def is_using_gpus(self) -> bool:
        """Whether a challenge uses GPUs now, so that no job can."""
        return self._challenge is not None and any(
            claim.model != CPU.name for claim in self._challenge.state.challenge.gpus
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            while True:
                await self._ask_if_due()
                await self.me.clock.sleep(POLL_SECONDS)

    # -------------------------------------------------------------------------------------- asking

    async def _ask_if_due(self) -> None:
        now = self.me.clock.now()
        is_early = now < max(self.me.beacon.genesis_time, self._pause_until)
        if is_early or self._challenge is not None:
            return
        number = challenge_round(self.me.beacon, int(now), self.me.limits)
        late = now - round_time(self.me.beacon, number)
        is_time = 0 <= late < self.me.limits.attestation_start_within
        is_needed = self.records.expires() - now < self.me.limits.attestation_ttl / 2
        if is_time and is_needed and number != self._tried and self.subject.is_idle():
            await self._ask(number)

    async def _ask(self, number: Round) -> None:
        self._asked = AttestationAsked(self.subject.peer_key, self.subject.claims())
        try:
            for coordinator in self.subject.coordinators():
                try:
                    await self.send(coordinator, self._asked)
                except Unavailable as error:
                    # Not re-raised: the round may not have appeared there yet, or too many ask at
                    # once. The pause varies, so that they do not come back at once.
                    pause = max(POLL_SECONDS, error.retry_after) * random.uniform(0.5, 1.5)
                    self._pause_until = self.me.clock.now() + pause
                    log.debug("0x%s opens no challenge yet: %s", coordinator.hex(), error)
                except Refused as refused:
                    # Not re-raised: another coordinator may open one, else the next period comes.
                    log.warning("0x%s refused a challenge: %s", coordinator.hex(), refused)
                    self._tried = number
                else:
                    self._tried = number
                    return
        finally:
            self._asked = None

    def open(self, coordinator: Address, challenge: ChallengeOpened) -> None:
        """Raises Refused unless this provider asked for it and the period begins."""
        known = self._challenge
        if known is not None and known.state.challenge == challenge:
            return
        if known is not None or not self.subject.is_idle():
            raise Refused(Code.BUSY, "challenge: this provider is busy; it asks in the next period")
        asked = self._asked
        is_asked = asked is not None and (asked.peer_key, asked.gpus) == (
            challenge.peer_key,
            challenge.gpus,
        )
        if not is_asked or challenge.verifiers[:1] != (coordinator,):
            raise Refused(Code.NOT_YOURS, "challenge: this provider has not asked for it")
        now = UnixSeconds(int(self.me.clock.now()))
        check_start(challenge, self.me.beacon, now, self.me.limits)
        assert self._group is not None, "it asks only while it runs"
        self._challenge = _Challenge(coordinator, prover_session.begin(challenge))
        self._group.create_task(self._serve(self._challenge), name="attestation")

    def take(self, coordinator: Address, message: NonceSent | RecordSent | RefusalSent) -> None:
        """Raises Refused(UNKNOWN)."""
        known = self._challenge
        is_known = known is not None and known.coordinator == coordinator
        digest = (
            message.record.message.challenge
            if isinstance(message, RecordSent)
            else message.challenge
        )
        if known is None or not is_known or known.state.digest != digest:
            raise Refused(Code.UNKNOWN, "attestation: no such challenge is under way here")
        try:
            known.came.put_nowait(message)
        except asyncio.QueueFull as full:
            raise Unavailable("too many messages of this challenge wait") from full

    # --------------------------------------------------------------------------- the challenge

    async def _serve(self, challenge: _Challenge) -> None:
        beacon_round = challenge.state.challenge.beacon.round
        log.info("challenged by beacon round %d", beacon_round)
        try:
            async with AsyncExitStack() as stack:
                found = await self._prove(challenge, stack)
            evidence = await self._collect(challenge, found)
            await self.records.publish(beacon_round, evidence)
            for document in self.records.newest.documents:
                await self._upload(challenge, cids.cid_text(cids.RAW, document.record))
            await self.subject.published()
            log.info("attested by beacon round %d", beacon_round)
        except (Refused, Unavailable, TimeoutError) as error:
            # Not re-raised: the old records count until they expire, and the next period comes.
            log.warning(
                "no attestation by beacon round %d: %s", beacon_round, str(error) or "no answer"
            )
            await self.records.drop_proofs(beacon_round)
        finally:
            self._challenge = None

    async def _prove(self, challenge: _Challenge, stack: AsyncExitStack) -> list[str]:
        """Returns the CIDs of the proofs. Memory is freed at its end."""
        opened = challenge.state.challenge
        provers = [
            GpuProver(opened, gpu, self.me.domain, self.subject.engine_of)
            for gpu in range(len(opened.gpus))
        ]
        for prover in provers:
            stack.push_async_callback(prover.close)
        await _all(prover.begin() for prover in provers)
        for stage in range(STAGES):
            await self._await_nonces(challenge, stage)
            await _all(
                self._commit(challenge, gpu, prover, stage) for gpu, prover in enumerate(provers)
            )
        await self._await_nonces(challenge, STAGES)
        return await _all(self._open(challenge, gpu, prover) for gpu, prover in enumerate(provers))

    async def _await_nonces(self, challenge: _Challenge, stage: int) -> None:
        while not challenge.state.are_complete(stage):
            message = await self._next(challenge)
            if not isinstance(message, NonceSent):
                raise Refused(Code.WRONG_PHASE, "attestation: a record came before its proof")
            challenge.state = prover_session.take_nonce(
                challenge.state, message.place, message.opened()
            )

    async def _commit(self, challenge: _Challenge, gpu: int, prover: GpuProver, stage: int) -> None:
        roots = await prover.commit(challenge.state.nonces[stage])
        challenge.state, committed = prover_session.add_roots(challenge.state, gpu, roots)
        await self.send(challenge.coordinator, RootsSent(committed))

    async def _open(self, challenge: _Challenge, gpu: int, prover: GpuProver) -> str:
        state = challenge.state
        sections = await prover.open(prover_session.sample_of(state, gpu))
        proof = Proof(prover_session.header(state, gpu), sections).encode()
        cid = await self.records.keep_proof(state.challenge.beacon.round, proof)
        await self._upload(challenge, cid)
        await self.send(challenge.coordinator, ProofSent(state.digest, Small(gpu), cid))
        return cid

    async def _upload(self, challenge: _Challenge, cid: str) -> None:
        """Others fetch it from the coordinator where they do not reach this provider's gateway."""
        async with self._uploading:
            try:
                await self.subject.upload(challenge.coordinator, cid)
            except (Refused, Unavailable) as error:
                # Not re-raised: the gateway may be reached.
                log.warning("0x%s did not take %s: %s", challenge.coordinator.hex(), cid, error)

    async def _collect(
        self, challenge: _Challenge, proofs: list[str]
    ) -> dict[str, list[GpuEvidence]]:
        """Waits for one record of each verifier and GPU. Returns the evidence by model."""
        opened = challenge.state.challenge
        found: dict[Hash32, dict[Address, Envelope[AttestationRecord]]] = defaultdict(dict)
        while sum(map(len, found.values())) < len(opened.gpus) * len(opened.verifiers):
            message = await self._next(challenge)
            if isinstance(message, RecordSent):
                record = message.record.message
                found[record.gpu].setdefault(record.verifier, message.record)
        evidence: dict[str, list[GpuEvidence]] = defaultdict(list)
        for claim, cid in zip(opened.gpus, proofs, strict=True):
            records = found[gpu_hash(claim.uuid)]
            ordered = tuple(records[account] for account in opened.verifiers if account in records)
            evidence[claim.model].append(GpuEvidence(claim.uuid, cid, ordered))
        return evidence

    async def _next(self, challenge: _Challenge) -> NonceSent | RecordSent:
        """Raises Refused with a verifier's reason for no record."""
        async with asyncio.timeout(ANSWER_SECONDS):
            message = await challenge.came.get()
        if isinstance(message, RefusalSent):
            raise Refused(message.code, f"verifier {message.place}: {message.detail}")
        return message


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    found = await asyncio.gather(*works, return_exceptions=True)
    for item in found:
        if isinstance(item, BaseException):
            raise item
    return [item for item in found if not isinstance(item, BaseException)]
