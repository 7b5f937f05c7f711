"""Chooses the transports to each coordinator, and makes the connections."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import aiohttp

from quorate_node.base.config import Config, TransportChoice
from quorate_node.base.operator_keys import HelloSigner, OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.market.coordinator_client import Coordinator, fetch_info, saved_info_path
from quorate_node.market.coordinator_dialer import CoordinatorDialer
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import Clock, Handler
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32, Seconds
from quorate_runtime import p2p
from quorate_runtime.peers.websocket_peers import WebSocketDialer

if TYPE_CHECKING:
    from quorate_node.market.p2p_transport import P2pLink, P2pTransport

log = logging.getLogger(__name__)


def make_p2p_transport(
    choice: TransportChoice,
    infos: Iterable[InfoView],
    domain: Domain,
    keys: ProviderKeys,
    operator_keys: OperatorKeys,
    clock: Clock,
) -> "P2pTransport | None":
    """None unless wanted, installed, and a coordinator has one too. Raises Refused or Unavailable
    if the owner insists.
    """
    if choice is TransportChoice.WEBSOCKET:
        return None
    if not any(info.addresses for info in infos):
        if choice is TransportChoice.LIBP2P:
            raise Unavailable("transport: no coordinator shows a libp2p address; use auto", 0)
        log.info("connections use WebSocket: no coordinator shows a libp2p address")
        return None
    problem = p2p.available()
    if problem and choice is TransportChoice.LIBP2P:
        raise Refused(Code.UNSUPPORTED, f"transport: {problem}; or use auto")
    if problem:
        log.warning("connections use WebSocket: %s", problem)
        return None
    # Imported here: libp2p cannot be installed everywhere.
    from quorate_node.market.p2p_transport import P2pTransport

    return P2pTransport(domain, keys, operator_keys, clock)


@dataclass(frozen=True, slots=True)
class Connections:
    """Makes the connection to each coordinator. `retry_max` bounds the pauses between tries."""

    config: Config
    keys: ProviderKeys
    operator_keys: OperatorKeys
    session: aiohttp.ClientSession
    clock: Clock
    retry_max: Seconds
    p2p_transport: "P2pTransport | None"

    @property
    def publish(self) -> Callable[[OfferEnvelope], None] | None:
        return self.p2p_transport.publisher.put if self.p2p_transport is not None else None

    def name_documents(self, document: Callable[[Hash32], Awaitable[bytes | None]]) -> None:
        """Sets what returns the attestation documents that gossip carries beside the offer."""
        if self.p2p_transport is not None:
            self.p2p_transport.publisher.bind(document)

    def dialer(self, coordinator: Coordinator, handler: Handler) -> CoordinatorDialer:
        """Makes the connection to one coordinator, whose frames go to `handler`."""
        address = coordinator.address
        websocket = partial(
            WebSocketDialer,
            coordinator.url.replace("http", "ws", 1) + "/v1/peers",
            address,
            self.keys.account,
            HelloSigner(self.operator_keys, address),
            handler,
            self.clock,
            retry_max=self.retry_max,
        )
        link = (
            self.p2p_transport.link(coordinator.info, handler, self.retry_max)
            if self.p2p_transport is not None
            else None
        )
        if link is None:
            return CoordinatorDialer(address, websocket, None, self.clock, self.retry_max)
        return CoordinatorDialer(
            address,
            None if self.config.transport is TransportChoice.LIBP2P else websocket,
            link.dialer,
            self.clock,
            self.retry_max,
            partial(self._refresh, coordinator.url, link),
        )

    async def _refresh(self, url: str, link: "P2pLink") -> None:
        """Asks a coordinator for its libp2p address again."""
        saved = saved_info_path(self.config.path("coordinators"), url)
        try:
            link.learn(await fetch_info(self.session, url, saved))
        except (Unavailable, Refused) as error:
            # Not re-raised: the address that is known may work again.
            log.debug("%s does not tell its libp2p address: %s", url, error)
