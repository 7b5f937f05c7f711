"""The provider on libp2p: dials coordinators, and publishes its offer by gossip.

Importing this module imports libp2p. Ask `quorate_runtime.p2p.available()` first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.peer_ids import peer_key
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.key_binding import SignedBinding, sign_binding
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import Clock, Gossip, Handler
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Seconds, Sequence
from quorate_runtime.p2p.binding_hello import Greeter
from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress, offers_topic
from quorate_runtime.p2p.libp2p_dialer import Libp2pDialer
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
from quorate_runtime.p2p.multiaddrs import dial_address
from quorate_runtime.p2p.p2p_node import P2pNode

RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class OfferPublisher:
    """Holds the newest offer until a neighbour has taken it."""

    def __init__(self, gossip: Gossip, clock: Clock) -> None:
        self._gossip, self._clock = gossip, clock
        self._newest: OfferEnvelope | None = None
        self._news = asyncio.Event()
        self._document: Callable[[Hash32], Awaitable[bytes | None]] | None = None

    def bind(self, document: Callable[[Hash32], Awaitable[bytes | None]]) -> None:
        """Sets what returns an attestation document by its digest, or None if it is not here."""
        self._document = document

    def put(self, offer: OfferEnvelope) -> None:
        self._newest = offer
        self._news.set()

    async def run(self) -> None:
        """Gossip may lose a message; the next offer follows within minutes."""
        while True:
            await self._news.wait()
            offer = self._newest
            assert offer is not None, "put sets both"
            try:
                await self._gossip.publish(await self._message(offer))
            except Unavailable as error:
                # Not re-raised: a neighbour may come soon.
                log.debug("the offer is not published yet: %s", error)
                await self._clock.sleep(RETRY_SECONDS)
                continue
            except Refused as refused:
                # Not re-raised: an offer that is too large still goes over the connections.
                log.warning("the offer cannot be published by gossip: %s", refused)
            if self._newest is offer:
                self._news.clear()

    async def _message(self, offer: OfferEnvelope) -> bytes:
        """With the attestation documents that slots name, as far as they fit."""
        named = {slot.record for slot in offer.offer.slots} - {ZERO_HASH}
        found = [await self._document(record) for record in sorted(named)] if self._document else []
        return offer_gossip.encode_with(offer, [data for data in found if data is not None])


ADDRESSES_MAX = 8  # of one coordinator


class P2pTransport:
    """One libp2p host. It listens nowhere, so a router that translates addresses is no obstacle."""

    def __init__(
        self, domain: Domain, keys: ProviderKeys, operator_keys: OperatorKeys, clock: Clock
    ) -> None:
        self._domain, self._keys, self._clock = domain, keys, clock
        self._operator_keys = operator_keys
        self._node = P2pNode(HostConfig(keys.peer.seed, (), topic=offers_topic(domain)), clock)
        self.publisher = OfferPublisher(Libp2pGossip(self._node), clock)
        # The time as the number of the binding: it grows with each start, and needs no storage.
        self._binding = KeyBinding(
            keys.account, keys.peer.public, keys.box_public, Sequence(int(clock.now() * 1000))
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._node.run(), name="libp2p")
            group.create_task(self.publisher.run(), name="gossip")

    def link(self, info: InfoView, handler: Handler, retry_max: Seconds) -> "P2pLink | None":
        """None if it names no libp2p address."""
        server = server_of(info)
        if server is None:
            return None
        dialer = Libp2pDialer(
            self._node,
            server,
            info.coordinator,
            self._greeter(info),
            handler,
            self._clock,
            retry_max=retry_max,
        )
        return P2pLink(dialer)

    def _greeter(self, info: InfoView) -> Greeter:
        def own() -> SignedBinding:
            signer = self._operator_keys.for_hello(info.coordinator)
            return sign_binding(
                self._domain, self._binding, signer.address, signer.sign, self._keys.peer.sign
            )

        async def authorize(account: Address, key: Address) -> bool:
            return (account, key) == (info.coordinator, info.statement_key)

        return Greeter(self._domain, own, authorize)


@dataclass(frozen=True, slots=True)
class P2pLink:
    """The connection to one coordinator, whose address may change."""

    dialer: Libp2pDialer

    def learn(self, info: InfoView) -> None:
        server = server_of(info)
        if server is not None:
            self.dialer.server = server


def server_of(info: InfoView) -> PeerAddress | None:
    """None if it shows none that works."""
    if not info.peer_id or not info.addresses:
        return None
    try:
        addresses = tuple(
            dial_address("addresses", text) for text in info.addresses[:ADDRESSES_MAX]
        )
        return PeerAddress(peer_key(info.peer_id), addresses)
    except Refused as refused:
        # Not re-raised: WebSocket still works.
        log.warning("0x%s: its libp2p address is no use: %s", info.coordinator.hex(), refused)
        return None
