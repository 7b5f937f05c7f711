"""Opens challenges for providers that ask, and passes messages between provider and verifiers.

Providers ask in the first seconds of a period (PROTOCOL 10.19). Challenges live in memory only:
after a restart the providers ask again in the next period.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from quorate_attestation import session_messages, verifier_draw
from quorate_attestation.challenge import ChallengeOpened, VerifierDraw
from quorate_attestation.claims import check_sizes
from quorate_attestation.session_messages import (
    AttestationAsked,
    ChallengeSent,
    Message,
    NonceSent,
    ProofSent,
    RecordSent,
    RefusalSent,
    RootsSent,
    VerificationAsked,
)
from quorate_attestation.sessions.schedule import challenge_round, check_start
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.entities import Provider
from quorate_protocol.messages import frames
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.offer import Offer
from quorate_protocol.messages.ports import Beacon, Clock, Peers
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.audit_draw import Drawn
from quorate_protocol.units import Address, Hash32, Round, Seconds, UnixSeconds
from quorate_runtime.peers.verifications import Verifications, Verifier

CHALLENGES_MAX = 64
CHALLENGE_SECONDS_MAX = 1800.0
ASK_SECONDS = Seconds(3)  # a drawn provider that does not answer by then is skipped
SEND_SECONDS = Seconds(10)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    provider: Address
    verifiers: tuple[Address, ...]  # this coordinator first
    beacon_round: Round
    missing: int  # records that have not been passed on yet
    until: float


class Challenges:
    """The challenges that this coordinator has opened."""

    def __init__(
        self, core: CoordinatorCore, peers: Peers, beacon: Beacon, verifier: Verifier
    ) -> None:
        """Call `bind` before the first message."""
        self._core, self._peers, self._beacon, self._me = core, peers, beacon, verifier
        self._own: Verifications | None = None
        self._open: dict[Hash32, _Open] = {}
        self._asking: set[Address] = set()

    def bind(self, own: Verifications) -> None:
        self._own = own

    @property
    def _clock(self) -> Clock:
        return self._me.clock

    @property
    def _verifications(self) -> Verifications:
        assert self._own is not None, "bind comes before the first message"
        return self._own

    async def take(self, sender: Address, message: Message) -> None:
        """Raises Refused if its sender may not send it, Unavailable if its receiver is away."""
        match message:
            case AttestationAsked():
                await self._ask(sender, message)
            case NonceSent() | RecordSent() | RefusalSent():
                await self._pass_on(self._of_verifier(sender, message), message)
            case RootsSent() | ProofSent():
                challenge = self._of_provider(sender, message)
                self._verifications.take(message)
                await self._to_all(challenge.verifiers[1:], message)
            case _:
                raise Refused(
                    Code.UNSUPPORTED, f"{type(message).__name__} is not sent to a coordinator"
                )

    async def send_own(self, digest: Hash32, message: Message) -> None:
        challenge = self._open.get(digest)
        if challenge is None:
            raise Unavailable("the challenge has ended")
        await self._pass_on(challenge, message)

    async def _pass_on(self, challenge: _Open, message: Message) -> None:
        """The last record ends the challenge, and so does a refusal: all verifiers must sign."""
        await self._request(challenge.provider, message)
        challenge.missing -= isinstance(message, RecordSent)
        if isinstance(message, RefusalSent) or not challenge.missing:
            digest = session_messages.challenge_of(message)
            assert digest is not None, "these messages belong to a challenge"
            self._open.pop(digest, None)

    # -------------------------------------------------------------------------------- who may send

    def _known(self, message: Message) -> _Open:
        digest = session_messages.challenge_of(message)
        found = self._open.get(digest) if digest is not None else None
        if found is None:
            raise Refused(Code.UNKNOWN, "attestation: no such challenge is under way here")
        return found

    def _of_verifier(self, sender: Address, message: Message) -> _Open:
        found = self._known(message)
        place = getattr(message, "place", None)
        is_theirs = sender in found.verifiers[1:] and (
            place is None or (place < len(found.verifiers) and found.verifiers[place] == sender)
        )
        if not is_theirs:
            raise Refused(Code.NOT_YOURS, "attestation: another verifier has this place")
        return found

    def _of_provider(self, sender: Address, message: Message) -> _Open:
        found = self._known(message)
        if found.provider != sender:
            raise Refused(Code.NOT_YOURS, "attestation: another provider is challenged")
        return found

    # ------------------------------------------------------------------------------------- opening

    async def _ask(self, sender: Address, asked: AttestationAsked) -> None:
        number = challenge_round(self._beacon.info, int(self._clock.now()), self._me.limits)
        self._forget_old(sender, number)
        if sender in self._asking or any(item.provider == sender for item in self._open.values()):
            raise Refused(Code.BUSY, "attestation: a challenge of this provider is under way")
        if len(self._open) + len(self._asking) >= CHALLENGES_MAX:
            raise Unavailable(f"{CHALLENGES_MAX} challenges are under way", 5.0)
        offer = self._offer_of(sender, asked)
        self._asking.add(sender)
        try:
            await self._begin(sender, asked, offer, number)
        finally:
            self._asking.discard(sender)

    def _offer_of(self, sender: Address, asked: AttestationAsked) -> Offer:
        provider: Provider | None = self._core.state.providers.get(sender)
        if provider is None or provider.offer is None:
            raise Refused(Code.NO_OFFER, "attestation: send an offer first")
        if provider.offer.peer_key != asked.peer_key:
            raise Refused(Code.NOT_YOURS, "attestation: peerKey: the offer names another one")
        return provider.offer

    async def _begin(
        self, sender: Address, asked: AttestationAsked, offer: Offer, number: Round
    ) -> None:
        beacon = await self._beacon.round(number)
        if beacon is None:
            raise Unavailable(f"beacon round {number} has not appeared yet", 0.5)
        pool = offer.slots[0].pool.id()
        eligible = self._core.state.market.eligible(pool)
        seed = verifier_draw.seed(beacon.round, beacon.randomness, sender, asked.peer_key)
        coordinator = self._core.rules.coordinator
        own = [slot for slot in eligible if slot.owner == sender]
        candidates = verifier_draw.candidates(
            seed, eligible, eligible.length, sender, coordinator, own
        )
        served = await self._serving(candidates, VerificationAsked(sender, beacon.round))
        challenge = ChallengeOpened(
            sender,
            asked.peer_key,
            beacon,
            (coordinator, *(drawn.slot.owner for drawn in served)),
            _evidence(seed, eligible, served, sender),
            asked.gpus,
        )
        self._check(challenge)
        await self._start(ChallengeSent(challenge, offer.addresses))

    def _check(self, challenge: ChallengeOpened) -> None:
        challenge.validate()
        check_sizes(challenge, self._me.standard)
        now = UnixSeconds(int(self._clock.now()))
        check_start(challenge, self._beacon.info, now, self._me.limits)

    async def _serving(
        self, candidates: Iterable[Drawn], asked: VerificationAsked
    ) -> tuple[Drawn, ...]:
        served: list[Drawn] = []
        for drawn in candidates:
            try:
                await self._request(drawn.slot.owner, asked, ASK_SECONDS)
            except (Refused, Unavailable) as error:
                # Not re-raised: the challenge's evidence shows that this one was skipped.
                log.info("0x%s does not verify: %s", drawn.slot.owner.hex(), error)
                continue
            served.append(drawn)
            if len(served) == verifier_draw.DRAWN:
                break
        return tuple(served)

    async def _start(self, sent: ChallengeSent) -> None:
        """The provider first, so that it knows the challenge when nonces come."""
        challenge = sent.challenge
        digest = challenge.digest()
        until = self._clock.now() + CHALLENGE_SECONDS_MAX
        self._verifications.check_room()
        self._open[digest] = _Open(
            challenge.provider,
            challenge.verifiers,
            challenge.beacon.round,
            len(challenge.verifiers) * len(challenge.gpus),
            until,
        )
        try:
            await self._request(challenge.provider, sent)
            await self._to_all(challenge.verifiers[1:], sent)
            self._verifications.open(sent)
        except (Refused, Unavailable):
            del self._open[digest]
            raise
        log.info(
            "challenge %s of 0x%s: round %d, %d GPUs, %d verifiers",
            digest.hex()[:16],
            challenge.provider.hex(),
            challenge.beacon.round,
            len(challenge.gpus),
            len(challenge.verifiers),
        )

    def _forget_old(self, provider: Address, number: Round) -> None:
        now = self._clock.now()
        for digest, item in list(self._open.items()):
            is_earlier = item.provider == provider and item.beacon_round < number
            if is_earlier or item.until <= now:
                del self._open[digest]

    # -------------------------------------------------------------------------------------- sending

    async def _to_all(self, accounts: Iterable[Address], message: Message) -> None:
        """Raises the first failure after all have answered."""
        found = await asyncio.gather(
            *(self._request(account, message) for account in accounts), return_exceptions=True
        )
        for failure in found:
            if isinstance(failure, BaseException):
                raise failure

    async def _request(
        self, account: Address, message: Message, deadline: Seconds = SEND_SECONDS
    ) -> None:
        frame = frames.encode(frames.AttestationSent(session_messages.encode(message)))
        await self._peers.request(account, frame, deadline)


def _evidence(
    seed: Hash32, eligible: EligibleList, served: tuple[Drawn, ...], provider: Address
) -> VerifierDraw:
    return verifier_draw.evidence(seed, eligible, [drawn.attempt for drawn in served], provider)
