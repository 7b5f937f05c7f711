"""The challenges in which this program is a verifier, each as one task.

A verifier sends nonces, takes roots with the time of its own clock, fetches each proof from the
provider's gateway or the coordinator, checks it in a thread, and signs a record. A challenge that
a crash or a lost connection ends has no record; the provider asks again in the next period.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from quorate_attestation import proof_document, records, verifier_draw
from quorate_attestation.arithmetic import proof_check
from quorate_attestation.arithmetic.proof_check import SecretKeeper
from quorate_attestation.challenge import STAGES, ChallengeOpened, GpuClaim, SampleOpened
from quorate_attestation.claims import check_sizes, judge, model_of, standard_sizes
from quorate_attestation.parameters import Parameters
from quorate_attestation.session_messages import (
    DETAIL_MAX,
    ChallengeSent,
    Message,
    NonceSent,
    ProofSent,
    RecordSent,
    RefusalSent,
    RootsSent,
    challenge_of,
)
from quorate_attestation.sessions import verifier_session
from quorate_attestation.sessions.schedule import check_start
from quorate_attestation.sessions.verifier_session import VerifierState
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Sign, seal
from quorate_protocol.messages.ports import BeaconInfo, Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Milliseconds, Small, UnixSeconds
from quorate_runtime.keys import bls

CHALLENGES_MAX = 64
WAITING_MAX = 512  # messages of one challenge that its task has not read yet
ANSWER_SECONDS = 120.0  # without a message for so long, a challenge ends

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)

Fetch = Callable[[str, tuple[str, ...], int], Awaitable[bytes]]
"""Returns a document by its CID, from these gateways, of at most so many bytes."""

Standard = Callable[[GpuClaim], Parameters]
"""Returns the sizes that the challenge of a claim must have."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """Who this verifier is, and what its deployment is like."""

    account: Address
    domain: Domain
    limits: Limits
    beacon: BeaconInfo
    clock: Clock
    standard: Standard = standard_sizes


@dataclass(slots=True)
class _Session:
    """One challenge. `came` holds messages with the time at which they came."""

    sent: ChallengeSent
    digest: Hash32
    place: Small
    came: "asyncio.Queue[tuple[Message, Milliseconds]]" = field(
        default_factory=lambda: asyncio.Queue(WAITING_MAX)
    )
    round_trip_ms: Milliseconds = Milliseconds(verifier_session.STAGE_MS_MAX)  # the shortest so far


class Verifications:
    """Takes part in challenges as verifier. `run` owns their tasks."""

    def __init__(
        self,
        verifier: Verifier,
        sign: Sign,
        send: Callable[[Hash32, Message], Awaitable[None]],
        fetch: Fetch,
    ) -> None:
        """`send` returns when the provider of that challenge has the message, and raises
        Unavailable or Refused otherwise.
        """
        self._me, self._sign, self._send, self._fetch = verifier, sign, send, fetch
        self._keeper = SecretKeeper(os.urandom(32))
        self._sessions: dict[Hash32, _Session] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            await asyncio.get_running_loop().create_future()

    def check_room(self) -> None:
        if self._group is None or len(self._sessions) >= CHALLENGES_MAX:
            raise Unavailable(f"it verifies {len(self._sessions)} challenges already")

    def live(self) -> frozenset[Hash32]:
        return frozenset(self._sessions)

    def open(self, sent: ChallengeSent) -> None:
        """Begins a challenge as one of its verifiers. A second call changes nothing. Raises Refused
        if beacon, time, sizes or draw are wrong, and Unavailable without room.
        """
        challenge = sent.challenge
        digest = challenge.digest()
        if digest in self._sessions:
            return
        self.check_room()
        assert self._group is not None, "there is room only while it runs"
        place = self._place(challenge)
        session = _Session(sent, digest, place)
        self._sessions[digest] = session
        self._group.create_task(self._serve(session), name=f"verification {digest.hex()[:8]}")

    def _place(self, challenge: ChallengeOpened) -> Small:
        me, beacon = self._me, challenge.beacon
        challenge.validate()
        if me.account not in challenge.verifiers:
            raise Refused(Code.NOT_YOURS, "challenge: this account is none of its verifiers")
        is_signed = bls.verify_round(me.beacon.public_key, beacon.round, beacon.signature)
        if not is_signed or beacon.randomness != sha256(beacon.signature):
            raise Refused(Code.BAD_SIGNATURE, "challenge: beacon: it does not verify")
        check_start(challenge, me.beacon, UnixSeconds(int(me.clock.now())), me.limits)
        check_sizes(challenge, me.standard)
        verifier_draw.check(challenge)
        return Small(challenge.verifiers.index(me.account))

    def take(self, message: RootsSent | ProofSent) -> None:
        """Takes a message of the provider. Raises Refused(UNKNOWN), or Unavailable if too many
        wait.
        """
        digest = challenge_of(message)
        session = self._sessions.get(digest) if digest is not None else None
        if session is None:
            raise Refused(Code.UNKNOWN, "attestation: no such challenge is under way here")
        try:
            session.came.put_nowait((message, self._now_ms()))
        except asyncio.QueueFull as full:
            raise Unavailable("too many messages of this challenge wait") from full

    # ------------------------------------------------------------------------------ one challenge

    async def _serve(self, session: _Session) -> None:
        name = f"challenge {session.digest.hex()[:16]}"
        try:
            await self._verify(session)
        except Refused as refused:
            log.warning("%s: no record: %s", name, refused)
            await self._refuse(session, refused)
        except (Unavailable, TimeoutError) as error:
            log.warning("%s: ended without a record: %s", name, str(error) or "no answer")
        finally:
            del self._sessions[session.digest]

    async def _refuse(self, session: _Session, refused: Refused) -> None:
        detail = (refused.detail or str(refused))[:DETAIL_MAX]
        told = RefusalSent(session.digest, session.place, refused.code, detail)
        try:
            await self._send(session.digest, told)
        except (Refused, Unavailable) as error:
            log.info("the provider was not told: %s", error)

    async def _verify(self, session: _Session) -> None:
        challenge = session.sent.challenge
        state, opened = verifier_session.begin(challenge, session.place, _nonce(), self._now_ms())
        await self._send_nonce(session, opened.stage, opened.nonce)
        while state.stage < STAGES:
            roots, at = await self._next(session, RootsSent)
            state, answer = verifier_session.take_roots(state, roots.committed, _nonce(), at)
            if answer is not None:
                stage = STAGES if isinstance(answer, SampleOpened) else answer.stage
                await self._send_nonce(session, stage, answer.nonce)
        for _ in challenge.gpus:
            proof, at = await self._next(session, ProofSent)
            await self._record(session, state, proof, at)

    async def _send_nonce(self, session: _Session, stage: int, nonce: Hash32) -> None:
        began = self._now_ms()
        sent = NonceSent(session.digest, session.place, Small(stage), nonce)
        await self._send(session.digest, sent)
        session.round_trip_ms = min(
            session.round_trip_ms, Milliseconds(max(0, self._now_ms() - began))
        )

    async def _record(
        self, session: _Session, state: VerifierState, sent: ProofSent, at: Milliseconds
    ) -> None:
        me, challenge = self._me, session.sent.challenge
        limit = proof_document.PROOF_BYTES_MAX
        data = await self._proof(sent.cid, session.sent.gateways, limit)
        proof, found = verifier_session.take_proof(state, data, at)
        await asyncio.to_thread(proof_check.check, proof, me.domain, self._keeper)
        claim = challenge.gpus[proof.header.gpu]
        ratio = judge(claim, found, model_of(claim), session.round_trip_ms)
        now = UnixSeconds(int(me.clock.now()))
        record = records.record_of(
            proof, session.place, found, ratio, now, me.limits.attestation_ttl
        )
        await self._send(session.digest, RecordSent(seal(me.domain, record, self._sign)))
        log.info("GPU %s of 0x%s: record signed", claim.uuid, challenge.provider.hex())

    async def _proof(self, cid: str, gateways: tuple[str, ...], bytes_max: int) -> bytes:
        try:
            return await self._fetch(cid, gateways, bytes_max)
        except Unavailable as error:
            raise Refused(
                Code.NOT_STORED,
                f"proof: {' '.join(gateways)[:200]} did not send it ({error}); update the "
                "coordinator, or let others reach the gateway (--public-url)",
            ) from error

    async def _next(self, session: _Session, kind: type[M]) -> tuple[M, Milliseconds]:
        async with asyncio.timeout(ANSWER_SECONDS):
            message, at = await session.came.get()
        if not isinstance(message, kind):
            raise Refused(
                Code.WRONG_PHASE, f"attestation: {type(message).__name__} came too early or late"
            )
        return message, at

    def _now_ms(self) -> Milliseconds:
        return Milliseconds(int(self._me.clock.now() * 1000))


def _nonce() -> Hash32:
    return Hash32(os.urandom(32))
