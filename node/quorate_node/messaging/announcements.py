"""What the provider announces: its signed offer and its heartbeats, to every coordinator it
serves.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quorate_node.core.terms import Terms
from quorate_node.keys.operator_keys import OperatorKeys, under_any
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import WITHDRAWN, Hardware, Offer, OfferEnvelope
from quorate_protocol.messages.signed import FreeSlots, Heartbeat
from quorate_protocol.ports import Clock, Peers, Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds, Sequence, Small, UnixSeconds

SEND_SECONDS = Seconds(10)
NOT_SEEN_YET_SECONDS = 2.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Advert:
    """The parts of the offer that the daemon knows and the rules do not need."""

    hardware: Hardware
    region: str
    peer_key: Hash32
    box_key: Hash32
    addresses: tuple[str, ...]


class Announcements:
    """Signs and sends offers and heartbeats."""

    def __init__(
        self,
        terms: Terms,
        advert: Callable[[], Advert],
        peers: Mapping[Address, Peers],
        ring: OperatorKeys,
        clock: Clock,
    ) -> None:
        self._terms, self._advert, self._peers, self._ring, self._clock = (
            terms,
            advert,
            peers,
            ring,
            clock,
        )
        self._beat = 0

    def offer(self, seq: Sequence, expires: UnixSeconds, signer: Signer) -> OfferEnvelope:
        """The offer with a sequence number, under one of the operator keys."""
        terms, advert = self._terms, self._advert()
        offer = Offer(
            provider=terms.provider,
            seq=seq,
            expires=expires,
            slots=terms.slots,
            hardware=advert.hardware,
            sandbox=terms.sandbox.value,
            attestation_level=Small(0),
            kinds=terms.policy.kinds,
            region=advert.region,
            peer_key=advert.peer_key,
            box_key=advert.box_key,
            addresses=advert.addresses,
        )
        return OfferEnvelope(offer, seal(terms.domain, offer.signed(), signer.sign))

    async def send_offer(self, seq: Sequence, expires: UnixSeconds, newest: int) -> None:
        """To every coordinator; dropped when a newer one is out or it has expired. Unavailable
        when one did not take it.
        """
        if seq < newest or (expires != WITHDRAWN and self._clock.now() >= expires):
            return
        failed = ""
        for address in self._peers:
            try:
                await self._send(
                    address, lambda signer: frames.OfferSent(self.offer(seq, expires, signer))
                )
            except Unavailable as error:
                failed = str(error)
            except Refused as refused:
                # A registration takes some blocks until a coordinator knows it; anything else no
                # repetition helps.
                if refused.code is Code.NOT_REGISTERED:
                    failed = str(refused)
                else:
                    _logger.warning("0x%s refused the offer: %s", address.hex(), refused)
        if failed:
            raise Unavailable(failed, NOT_SEEN_YET_SECONDS)

    async def send_heartbeat(self, free: tuple[FreeSlots, ...]) -> int:
        """To every coordinator that is connected; how many took it. One that did not will get
        the next.
        """
        # Milliseconds grow over restarts without being stored, which is all that a heartbeat's
        # number is for.
        self._beat = max(self._beat + 1, int(self._clock.now() * 1000))
        message = Heartbeat(
            self._terms.provider, Sequence(self._beat), free, UnixSeconds(int(self._clock.now()))
        )
        taken = 0
        for address in self._peers:
            try:
                await self._send(
                    address,
                    lambda signer: frames.HeartbeatSent(
                        seal(self._terms.domain, message, signer.sign)
                    ),
                )
                taken += 1
            except (Unavailable, Refused) as error:
                # Not re-raised: the next one is due in a few seconds anyway.
                _logger.debug("heartbeat to 0x%s: %s", address.hex(), error)
        return taken

    async def _send(self, coordinator: Address, frame: Callable[[Signer], frames.Frame]) -> None:
        """Under the key of today; under the one before it for a coordinator that has not heard
        of that yet.
        """

        async def send(signer: Signer) -> None:
            await self._peers[coordinator].request(
                coordinator, frames.encode(frame(signer)), SEND_SECONDS
            )
            self._ring.heard(coordinator, signer.address)

        await under_any(self._ring.to_announce(coordinator), send)
