"""The settings of a libp2p host, and the address of another one. Imports no libp2p."""

from dataclasses import dataclass

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.units import Hash32

CONNECTIONS_MAX = 600  # of one host, in both directions
PEERS_PROTOCOL = "/quorate/peers/1"


def offers_topic(domain: Domain) -> str:
    return f"/quorate/{domain.chain_id}-0x{domain.verifying_contract.hex()}/offers/2"


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What a host is made of. All restarts of one node use the same."""

    seed: bytes  # 32 bytes, the Ed25519 secret of the peer key
    listen: tuple[str, ...]  # multiaddrs such as /ip4/0.0.0.0/tcp/8467; none listens nowhere
    announce: tuple[str, ...] = ()  # what other peers dial; none stands for the listened addresses
    topic: str = ""  # gossip topic; "" takes no part in gossip
    connections_max: int = CONNECTIONS_MAX


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer is reached, and the key that it must prove there."""

    peer_key: Hash32  # Ed25519 public key
    addresses: tuple[str, ...]  # multiaddrs without the part /p2p/...
