"""The coordinator on libp2p: providers connect to it, and their offers arrive by gossip.

Importing this module imports libp2p. Ask `quorate_runtime.p2p.available()` first.
"""

import asyncio
import logging
from dataclasses import dataclass

from quorate_contracts.deploy import Contracts
from quorate_coordinator.base.config import Config
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.chain.announcer import Announcer
from quorate_coordinator.chain.bootstrap_list import BootstrapList
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.gossiped_offers import GossipedOffers
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.key_binding import SignedBinding, sign_binding
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.units import ZERO_HASH, Address, Sequence
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender
from quorate_runtime.p2p.binding_hello import Authorize, Greeter
from quorate_runtime.p2p.host.host_config import HostConfig, offers_topic
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip, Neighbours
from quorate_runtime.p2p.libp2p_peers import Libp2pPeers
from quorate_runtime.p2p.multiaddrs import announced, is_public
from quorate_runtime.p2p.p2p_node import P2pNode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChainAccess:
    """What the host needs to announce itself and to find others. The posting key is the sender."""

    client: ChainClient
    contracts: Contracts
    sender: Sender


@dataclass(slots=True)
class P2pService:
    """The libp2p host with what it serves. `run` keeps it up."""

    config: Config
    node: P2pNode
    peers: Libp2pPeers
    offers: GossipedOffers
    chain: ChainAccess
    bootstrap: BootstrapList
    clock: Clock

    async def run(self) -> None:
        """Serves until cancelled. Unavailable, with the remedy, if the host cannot start."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run(), name="libp2p")
            group.create_task(self.offers.run(), name="gossiped offers")
            group.create_task(self.offers.refresh(), name="stake for gossip")
            group.create_task(self.bootstrap.run(), name="bootstrap list")
            neighbours = Neighbours(self.node, lambda: self.bootstrap.peers, self.clock)
            group.create_task(neighbours.run(), name="neighbours")
            group.create_task(self._announcer().run(), name="announcer")

    async def wait_until_up(self) -> None:
        """Waits until the host listens, and logs where."""
        await self.node.wait_until_up()
        shown = self.addresses()
        if shown:
            log.info("libp2p: serves at %s", ", ".join(shown))
        else:
            log.warning(
                "libp2p: nobody can dial %s; say what others dial: quorate coordinator init "
                "--p2p-announce /ip4/ADDRESS/tcp/PORT",
                ", ".join(self.node.address.addresses),
            )

    def _announcer(self) -> Announcer:
        chain = self.chain
        return Announcer(
            chain.client,
            chain.contracts,
            chain.sender,
            self.clock,
            self.bootstrap.own,
            self.node.peer_key,
            self.announced,
        )

    def announced(self) -> tuple[str, ...]:
        """Returns the addresses that go on chain: those of private networks on devnets only."""
        found = self.addresses()
        return found if self.bootstrap.is_devnet else tuple(filter(is_public, found))

    def addresses(self) -> tuple[str, ...]:
        """Returns the multiaddrs that others dial. None before the host listens."""
        if not self.node.is_up:
            return ()
        if self.config.p2p_announce:
            return self.config.p2p_announce
        listened, public = self.node.address.addresses, self.config.public_url
        return tuple(found for one in listened if (found := announced(one, public)))


def make_p2p_service(
    config: Config,
    keys: CoordinatorKeys,
    core: CoordinatorCore,
    handler: FrameHandler,
    authorize: Authorize,
    clock: Clock,
    chain: ChainAccess,
) -> P2pService:
    """Makes the host. Nothing runs before `run`."""
    domain = core.rules.domain
    # The time as the number of the binding: it grows with each start, and needs no storage.
    binding = KeyBinding(
        core.rules.coordinator, keys.peer.public, ZERO_HASH, Sequence(int(clock.now() * 1000))
    )

    def own() -> SignedBinding:
        signer = keys.statement
        return sign_binding(domain, binding, signer.address, signer.sign, keys.peer.sign)

    node = P2pNode(
        HostConfig(keys.peer.seed, (config.p2p_listen,), config.p2p_announce, offers_topic(domain)),
        clock,
    )
    offers = GossipedOffers(
        Libp2pGossip(node), core.state, domain, core.rules.limits, clock, handler.take_offer
    )
    limits = core.rules.limits
    bootstrap = BootstrapList(
        chain.client,
        chain.contracts,
        core.rules.coordinator,
        clock,
        limits.offer_refresh,
        limits.name == DEVNET.name,
    )

    def is_staked(account: Address) -> bool:
        market, hosts = core.state.market, core.state.hosts
        return any(account in market.staked(host_class) for host_class in hosts)

    peers = Libp2pPeers(node, handler, Greeter(domain, own, authorize), is_staked)
    return P2pService(config, node, peers, offers, chain, bootstrap, clock)
