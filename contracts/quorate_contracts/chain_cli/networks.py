"""The chains that `quorate chain deploy --network` knows by name."""

from dataclasses import dataclass

from quorate_protocol.limits import DEVNET, TESTNET
from quorate_protocol.refusals import Code, Refused


@dataclass(frozen=True, slots=True)
class Network:
    """A chain: its id, a public node of it, and the limits that suit it."""

    name: str
    chain_id: int
    chain_url: str
    limits: str


NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network("sepolia", 11_155_111, "https://ethereum-sepolia-rpc.publicnode.com", TESTNET.name),
        Network("hoodi", 560_048, "https://ethereum-hoodi-rpc.publicnode.com", TESTNET.name),
        Network("base-sepolia", 84_532, "https://sepolia.base.org", TESTNET.name),
        Network("anvil", 31_337, "http://127.0.0.1:8545", DEVNET.name),
    )
}
"""Every chain needs EIP-2537. The deployment checks that, so a name here promises nothing."""


def network_of(name: str) -> Network:
    """Returns a network by its name. Raises Refused, which lists the names."""
    if name not in NETWORKS:
        told = f"--network {name[:40]!r} is unknown; choose one of {', '.join(NETWORKS)}, or give"
        raise Refused(Code.MALFORMED, f"{told} --chain-url and --chain-id")
    return NETWORKS[name]
