"""Which addresses a rental may reach: public ones that are not its owner's (PROTOCOL 12.30).

A public address may still lead into the owner's network: that of this machine, of its router, or of
a neighbour in an IPv6 network. The kernel's routes name what is directly connected.
"""

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from quorate_runtime.http.client_networks import IpAddress, Network, address_of, is_public

_PROC = Path("/proc/net")
_GLOBAL_IPV6 = IPv6Network("2000::/3")  # all that is assigned for use between networks
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        "192.88.99.0/24",  # relays of 6to4
        "2001::/23",  # Teredo and others of the IETF
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_BITS_LEAST = 8  # a VPN's routes halve the internet: they lead to no neighbour
_DISCARD_PORT = 9


class OwnNetworks:
    """The networks of the owner: those of its addresses that others see, and of its routes."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._seen: set[Network] = set()

    def see(self, url: str, addresses: Iterable[str]) -> None:
        """Where others reach this machine, and how they see it: their /24 or /48 is refused."""
        for text in (urlsplit(url).hostname or "", *addresses):
            address = address_of(text)
            if address is not None and is_public(address):
                bits = 24 if address.version == 4 else 48
                self._seen.add(ip_network((address, bits), strict=False))

    def has(self, address: IpAddress) -> bool:
        networks = (*self._seen, *_connected(self._proc))
        return any(address in network for network in networks) or _is_of_this_machine(address)


def may_reach(text: str, own: OwnNetworks) -> bool:
    """Whether an address as a resolver gives it is public, and not the owner's."""
    try:
        address = ip_address(text)
    except ValueError:
        return False  # with a zone, such as fe80::1%eth0
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    is_special = address.is_reserved or any(address in network for network in _SPECIAL)
    return is_public(address) and not is_special and not own.has(address)


def _connected(proc: Path) -> list[Network]:
    """Networks that routes reach without a gateway."""
    found: list[Network] = []
    for line in _lines(proc / "route")[1:]:
        _, target, gateway, _, _, _, _, mask, *_ = line.split()
        if not int(gateway, 16):
            address = IPv4Address(bytes.fromhex(target)[::-1])
            found.append(IPv4Network((address, str(IPv4Address(bytes.fromhex(mask)[::-1])))))
    for line in _lines(proc / "ipv6_route"):
        target, bits, _, _, gateway, *_ = line.split()
        if not int(gateway, 16):
            found.append(IPv6Network((bytes.fromhex(target), int(bits, 16))))
    return [network for network in found if network.prefixlen >= _BITS_LEAST]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # a kernel without IPv6


def _is_of_this_machine(address: IpAddress) -> bool:
    """The kernel sends from an address of this machine to itself. This sends no packet."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            return str(ip_address(probe.getsockname()[0])) == str(address)
    except OSError:
        return False  # there is no route to it, and so no connection either
