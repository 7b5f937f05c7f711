"""The coordinator on libp2p: providers connect to it, and their offers arrive by gossip.

Importing this module imports libp2p. Ask `quorate_runtime.p2p.available()` first.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from quorate_contracts.announced_coordinators import (
    ADDRESSES_MAX,
    AnnouncedCoordinator,
    announced_coordinators,
    newest_announcement,
)
from quorate_contracts.calls import transact
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import ADDRESSES_BYTES_MAX
from quorate_coordinator.base.config import Config
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.gossiped_offers import GossipedOffers
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.key_binding import SignedBinding, sign_binding
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Seconds, Sequence
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender
from quorate_runtime.p2p.binding_hello import Authorize, Greeter
from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress, offers_topic
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip, Neighbours
from quorate_runtime.p2p.libp2p_peers import Libp2pPeers
from quorate_runtime.p2p.multiaddrs import announced, dial_address, is_public
from quorate_runtime.p2p.p2p_node import P2pNode

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
        while True:
            try:
                await self.read()
            except (Refused, Unavailable) as error:
                # Not re-raised: the peers that were found before may still answer.
                log.debug("the list of coordinators waits for the chain: %s", error)
            await self.clock.sleep(self.every)

    async def read(self) -> None:
        """Raises Unavailable if the chain node does not answer."""
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


LOOK_SECONDS = 15.0  # between looks at the own addresses
RETRY_SECONDS = 60.0  # after a refusal, such as for missing gas


@dataclass(slots=True)
class Announcer:
    """A restart announces nothing again, and a restored backup needs no care."""

    client: ChainClient
    contracts: Contracts
    sender: Sender  # of the posting key
    clock: Clock
    coordinator: Address
    peer_key: Hash32
    addresses: Callable[[], tuple[str, ...]]  # that others dial now; none before the host listens

    async def run(self) -> None:
        announced: tuple[str, ...] = ()
        while True:
            wanted, pause = fitting(self.addresses()), LOOK_SECONDS
            if wanted and wanted != announced:
                try:
                    await self.announce(wanted)
                    announced = wanted
                except (Refused, Unavailable) as error:
                    # Not re-raised: peers that know the coordinator reach it all the same.
                    log.warning("the coordinator's addresses are not on chain yet: %s", error)
                    pause = error.retry_after if isinstance(error, Unavailable) else RETRY_SECONDS
            await self.clock.sleep(max(pause, 1.0))

    async def announce(self, addresses: tuple[str, ...]) -> bool:
        """Returns whether it sent a transaction. Refused or Unavailable as `Sender.send`."""
        newest = await newest_announcement(self.client, self.contracts, self.coordinator)
        if newest and (newest.peer_key, newest.addresses) == (self.peer_key, addresses):
            return False
        text = "\n".join(addresses).encode()
        call = self.contracts.stakes.announce(self.coordinator, self.peer_key, text)
        # A content that returns later, after another one, is another purpose.
        after = newest.block if newest else 0
        purpose = f"announce-{after}-{keccak256(call.data).hex()[:16]}"
        await transact(self.sender, purpose, call)
        log.info("announced %s on chain", ", ".join(addresses))
        return True


def fitting(addresses: tuple[str, ...]) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    for address in addresses[:ADDRESSES_MAX]:
        if len("\n".join((*found, address))) <= ADDRESSES_BYTES_MAX:
            found = (*found, address)
    return found


@dataclass(slots=True)
class P2pService:
    """The libp2p host with what it serves. `run` keeps it up."""

    config: Config
    node: P2pNode
    peers: Libp2pPeers
    offers: GossipedOffers
    bootstrap: BootstrapList
    sender: Sender  # of the posting key
    clock: Clock

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run(), name="libp2p")
            group.create_task(self.offers.run(), name="gossiped offers")
            group.create_task(self.offers.refresh(), name="stake for gossip")
            group.create_task(self.bootstrap.run(), name="bootstrap list")
            neighbours = Neighbours(self.node, lambda: self.bootstrap.peers, self.clock)
            group.create_task(neighbours.run(), name="neighbours")
            group.create_task(self._announce(), name="announcer")

    async def wait_until_up(self) -> None:
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

    async def _announce(self) -> None:
        await self.node.wait_until_up()  # a look before finds no address, and the next is late
        announcer = Announcer(
            client=self.bootstrap.client,
            contracts=self.bootstrap.contracts,
            sender=self.sender,
            clock=self.clock,
            coordinator=self.bootstrap.own,
            peer_key=self.node.peer_key,
            addresses=self.announced,
        )
        await announcer.run()

    def announced(self) -> tuple[str, ...]:
        """What goes on chain: addresses of private networks on devnets only."""
        found = self.addresses()
        return found if self.bootstrap.is_devnet else tuple(filter(is_public, found))

    def addresses(self) -> tuple[str, ...]:
        """That others dial. None before the host listens."""
        if not self.node.is_up:
            return ()
        if self.config.p2p_announce:
            return self.config.p2p_announce
        listened, public = self.node.address.addresses, self.config.public_url
        return tuple(found for one in listened if (found := announced(one, public)))


def make_p2p_service(
    config: Config,
    keys: CoordinatorKeys,
    handler: FrameHandler,
    authorize: Authorize,
    client: ChainClient,
    contracts: Contracts,
    sender: Sender,
) -> P2pService:
    """Makes the host. Nothing runs before `run`."""
    core, domain, limits, clock = handler.core, handler.domain, handler.limits, handler.clock
    # The time as the number of the binding: it grows with each start, and needs no storage.
    binding = KeyBinding(
        core.rules.coordinator, keys.peer.public, ZERO_HASH, Sequence(int(clock.now() * 1000))
    )

    def own() -> SignedBinding:
        signer = keys.statement
        return sign_binding(domain, binding, signer.address, signer.sign, keys.peer.sign)

    def is_staked(account: Address) -> bool:
        market, hosts = core.state.market, core.state.pool_slots
        return any(account in market.staked(pool) for pool in hosts)

    node = P2pNode(
        HostConfig(keys.peer.seed, (config.p2p_listen,), config.p2p_announce, offers_topic(domain)),
        clock,
    )
    return P2pService(
        config=config,
        node=node,
        peers=Libp2pPeers(node, handler, Greeter(domain, own, authorize), is_staked),
        offers=GossipedOffers(
            Libp2pGossip(node), core.state, domain, limits, clock, handler.take_offer
        ),
        bootstrap=BootstrapList(
            client,
            contracts,
            core.rules.coordinator,
            clock,
            limits.offer_refresh,
            limits.name == DEVNET.name,
        ),
        sender=sender,
        clock=clock,
    )
