"""Decides for which client a request counts.

Limits count a client by its network, not by its single address. Behind a trusted reverse proxy that
is the network of the address that the proxy names.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from quorate_protocol.units import Hash32

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

    from quorate_runtime.http.error_responses import Handler

IPV6_BITS = 48  # of one site; a "network" of PROTOCOL
HOPS_MAX = 16
X_FORWARDED_FOR, FORWARDED = "X-Forwarded-For", "Forwarded"
_FOR = re.compile(r'(?:^|[;,\s])for="?([^";,\s]*)"?', re.IGNORECASE)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@lru_cache(maxsize=4096)
def network_of(remote: str | None) -> str:
    """Returns the name under which an address counts. That is an IPv4 address itself, or the /48 of
    an IPv6 address, because one site owns the whole /48.
    """
    address = address_of(remote or "")
    if address is None:
        return "?"  # all Unix sockets count as one address
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, IPV6_BITS), strict=False))
    return str(address)


def address_of(text: str) -> IpAddress | None:
    """Returns the address in `1.2.3.4`, `1.2.3.4:5`, `[::1]:5` or `fe80::1%eth0`, else None. IPv4
    inside IPv6 becomes IPv4.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None  # a name or rubbish is not an address
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def registered_network(address: IpAddress) -> Hash32:
    """Returns the network of an address, as a provider's registration names it on chain. It is IPv4
    /24 or IPv6 /48, left-aligned after the version byte.
    """
    prefix = address.packed[:3] if address.version == 4 else address.packed[:6]
    return Hash32((bytes([address.version]) + prefix).ljust(32, b"\0"))


def is_public(address: IpAddress) -> bool:
    """Returns whether the whole internet can reach this address. False for this machine, for
    private networks, and for IPv6 addresses that only translate to those.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


@dataclass(frozen=True, slots=True)
class Proxies:
    """Reverse proxies that may name the client's address. Only the header that they set themselves
    counts, because a client could send the other one.
    """

    networks: tuple[Network, ...] = ()
    header: str = X_FORWARDED_FOR

    @classmethod
    def of(cls, networks: tuple[str, ...], header: str = X_FORWARDED_FOR) -> "Proxies":
        """Makes the value from the texts of the settings. Raises ValueError, which names a text
        that is no network, or an unknown header.
        """
        if header not in (X_FORWARDED_FOR, FORWARDED):
            raise ValueError(f"{header!r}: {X_FORWARDED_FOR} or {FORWARDED}")
        return cls(tuple(ipaddress.ip_network(text) for text in networks), header)

    def trusts(self, remote: str) -> bool:
        address = address_of(remote)
        return address is not None and any(address in network for network in self.networks)

    def origin(self, remote: str, headers: list[str]) -> str:
        """Returns the rightmost address in the headers that is not a proxy's.

        Clients can write anything further left. If an entry is not an address, the result is the
        proxy that passed it on. So a client cannot count as another one by sending nonsense.
        """
        if not self.trusts(remote):
            return remote
        for hop in reversed(self._hops(",".join(headers))[-HOPS_MAX:]):
            address = address_of(hop)
            if address is None:
                return remote
            remote = str(address)
            if not self.trusts(remote):
                return remote
        return remote

    def _hops(self, text: str) -> list[str]:
        if self.header == FORWARDED:
            return _FOR.findall(text[-4096:])
        return [hop for hop in text[-4096:].split(",") if hop.strip()]

    def middleware(self) -> "Middleware":
        from aiohttp import web

        @web.middleware
        async def place(request: web.Request, handler: "Handler") -> web.StreamResponse:
            remote = request.remote or ""
            if not self.networks or not self.trusts(remote):
                return await handler(request)
            return await handler(
                request.clone(remote=self.origin(remote, request.headers.getall(self.header, [])))
            )

        return place
