"""Compares the network that a provider registered with the one from which it connects.

Draws take no two executions from one network (PROTOCOL §5). A provider chooses by itself what it
registers, so without this check one machine could stand for many networks.
"""

from ipaddress import IPv4Network, IPv6Network

from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.http.client_networks import address_of, is_public, registered_network


def check_network(owner: Address, registered: Hash32, remote: str) -> None:
    """Raises Refused if a connection comes from another network than its provider registered.

    `remote` is the IP address of the connection. An address of this machine or of a private network
    says nothing, nor does an empty one.
    """
    address = address_of(remote)
    if address is None or not is_public(address) or registered_network(address) == registered:
        return
    raise Refused(
        Code.NOT_REGISTERED,
        f"provider 0x{owner.hex()} registered the network {network_text(registered)} and connects "
        f"from {address}; run it there, or register another account with "
        f"--public-url of this address",
    )


def network_text(registered: Hash32) -> str:
    """Returns a registered network as people write it, such as 203.0.113.0/24."""
    match registered[0]:
        case 4 if not any(registered[4:]):
            return str(IPv4Network((registered[1:4] + bytes(1), 24)))
        case 6 if not any(registered[7:]):
            return str(IPv6Network((registered[1:7] + bytes(10), 48)))
        case _:
            return f"0x{registered.hex()}"
