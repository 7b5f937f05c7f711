"""Whose address it is that counts: subscribers rather than addresses, and behind a reverse proxy
whoever the proxy speaks for.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_runtime.http.error_responses import Handler

IPV6_BITS = 48  # one site's; PROTOCOL's "network"
HOPS_MAX = 16
X_FORWARDED_FOR, FORWARDED = "X-Forwarded-For", "Forwarded"
_FOR = re.compile(r'(?:^|[;,\s])for="?([^";,\s]*)"?', re.IGNORECASE)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@lru_cache(maxsize=4096)
def network_of(remote: str | None) -> str:
    """What counts as one address: IPv4 as it is, IPv6 by its /48, which one site has whole."""
    address = address_of(remote or "")
    if address is None:
        return "?"  # a Unix socket, or nothing: all of those together are one
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, IPV6_BITS), strict=False))
    return str(address)


def address_of(text: str) -> IpAddress | None:
    """The address in `1.2.3.4`, `1.2.3.4:5`, `[::1]:5`, `fe80::1%eth0`; None for anything else.
    IPv4 in IPv6 is IPv4.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None  # not re-raised: names and rubbish are no address
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def is_public(address: IpAddress) -> bool:
    """Whether anybody could reach it: neither this machine, nor a network of its owner's, nor
    one that only translates to those.
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
    """Reverse proxies whose word on who is asking is taken. Only the one header that they set
    themselves is read: the other would come from the asker.
    """

    networks: tuple[Network, ...] = ()
    header: str = X_FORWARDED_FOR

    @classmethod
    def of(cls, networks: tuple[str, ...], header: str = X_FORWARDED_FOR) -> "Proxies":
        """From the settings' texts; ValueError names what is no network."""
        if header not in (X_FORWARDED_FOR, FORWARDED):
            raise ValueError(f"{header!r}: {X_FORWARDED_FOR} or {FORWARDED}")
        return cls(tuple(ipaddress.ip_network(text) for text in networks), header)

    def trusts(self, remote: str) -> bool:
        """Whether this address is a proxy's."""
        address = address_of(remote)
        return address is not None and any(address in network for network in self.networks)

    def origin(self, remote: str, headers: list[str]) -> str:
        """The rightmost address that is no proxy's: what stands further left was written by
        whoever asked.

        A hop that is no address ends the walk at the proxy that passed it on, so that rubbish
        buys no address of its own.
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

    def middleware(self) -> Middleware:
        """Gives every handler a request whose `remote` is the origin."""

        @web.middleware
        async def place(request: web.Request, handler: Handler) -> web.StreamResponse:
            remote = request.remote or ""
            if not self.networks or not self.trusts(remote):
                return await handler(request)
            return await handler(
                request.clone(remote=self.origin(remote, request.headers.getall(self.header, [])))
            )

        return place
