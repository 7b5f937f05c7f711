"""Real libp2p hosts on loopback, with peers that have accounts.

Import it after `require("libp2p")`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.key_binding import SignedBinding, sign_binding
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.units import Address, Hash32, Sequence
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner, PeerKey
from quorate_runtime.p2p.binding_hello import Authorize, Greeter
from quorate_runtime.p2p.host.host_config import HostConfig
from quorate_runtime.p2p.libp2p_dialer import Libp2pDialer
from quorate_runtime.p2p.libp2p_peers import Libp2pPeers
from quorate_runtime.p2p.p2p_node import P2pNode
from support.peer_sites import ADA, BOB, SERVER, SIGNERS, EchoHandler

DOMAIN = Domain(31337, Address(b"\x5a" * 20))
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
TOPIC = "/quorate/test/offers/2"
SERVER_SIGNER = KeySigner(b"\xcc" * 32)
KEYS = {**{account: signer.address for account, signer in SIGNERS.items()}}
KEYS[SERVER] = SERVER_SIGNER.address


def seed_of(name: bytes) -> bytes:
    return name.ljust(32, b"\0")


async def authorize(account: Address, key: Address) -> bool:
    return account in (ADA, BOB, SERVER) and KEYS[account] == key


def binding_of(
    account: Address,
    seed: bytes,
    signer: KeySigner,
    seq: int = 1,
    peer_signer: PeerKey | None = None,
    domain: Domain = DOMAIN,
) -> SignedBinding:
    key = PeerKey(seed)
    binding = KeyBinding(account, key.public, Hash32(b"\xb0" * 32), Sequence(seq))
    return sign_binding(domain, binding, signer.address, signer.sign, (peer_signer or key).sign)


def greeter_of(
    account: Address, seed: bytes, signer: KeySigner, seq: int = 1, allow: Authorize = authorize
) -> Greeter:
    return Greeter(DOMAIN, lambda: binding_of(account, seed, signer, seq), allow)


def node_of(name: bytes, topic: str = "", listen: tuple[str, ...] = LOOPBACK) -> P2pNode:
    return P2pNode(HostConfig(seed_of(name), listen, topic=topic), SystemClock())


@asynccontextmanager
async def nodes_up(*nodes: P2pNode) -> AsyncIterator[None]:
    """Runs nodes, and fails for a bug in one of them."""
    tasks = [asyncio.create_task(node.run()) for node in nodes]
    try:
        async with asyncio.timeout(30):
            waits = asyncio.gather(*(node.wait_until_up() for node in nodes))
            await asyncio.wait([waits, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not waits.done():
                waits.cancel()
                await asyncio.gather(*(task for task in tasks if task.done()))
        yield
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
        await asyncio.gather(*tasks)


class P2pSite:
    """A libp2p server of peers, as `peer_sites.Site` is one over HTTP."""

    def __init__(self, handler: EchoHandler, listen: tuple[str, ...] = LOOPBACK) -> None:
        self.handler = handler
        seed = seed_of(b"server")
        self.node = node_of(b"server", listen=listen)
        greeter = greeter_of(SERVER, seed, SERVER_SIGNER)
        self.peers = Libp2pPeers(self.node, handler.handle, greeter)

    def dialer(
        self,
        node: P2pNode,
        account: Address,
        handler: EchoHandler,
        greeter: Greeter,
        peer: Address = SERVER,
    ) -> Libp2pDialer:
        return Libp2pDialer(
            node, self.node.address, peer, greeter, handler.handle, SystemClock(), lambda: 0.0
        )
