"""Lists the other coordinators of the deployment, whom the libp2p host dials for gossip."""

import logging
from dataclasses import dataclass

from quorate_contracts.announced_coordinators import AnnouncedCoordinator, announced_coordinators
from quorate_contracts.deploy import Contracts
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.p2p.host.host_config import PeerAddress
from quorate_runtime.p2p.multiaddrs import dial_address, is_public

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BootstrapList:
    """Reads the chain's bootstrap list from time to time. `peers` is what it found last."""

    client: ChainClient
    contracts: Contracts
    own: Address
    clock: Clock
    every: Seconds
    is_devnet: bool  # addresses of private networks count only there
    peers: tuple[PeerAddress, ...] = ()

    async def run(self) -> None:
        """Reads until cancelled."""
        while True:
            try:
                await self.read()
            except (Refused, Unavailable) as error:
                # Not re-raised: the peers that were found before may still answer.
                log.debug("the list of coordinators waits for the chain: %s", error)
            await self.clock.sleep(self.every)

    async def read(self) -> None:
        """Reads once. Unavailable if the chain node does not answer."""
        found = await announced_coordinators(self.client, self.contracts)
        peers = (self._peer(one) for one in found if one.account != self.own)
        self.peers = tuple(peer for peer in peers if peer.addresses)

    def _peer(self, one: AnnouncedCoordinator) -> PeerAddress:
        return PeerAddress(one.peer_key, tuple(filter(self._is_right, one.addresses)))

    def _is_right(self, address: str) -> bool:
        try:
            dial_address("announcement", address)
        except Refused:
            return False  # not re-raised: a stranger may announce any text
        return self.is_devnet or is_public(address)
