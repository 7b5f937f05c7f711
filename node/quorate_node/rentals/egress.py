"""Runs the egress proxy of each rental that may reach hosts, while its container runs."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

from quorate_node.rentals.egress_proxy import PORT, EgressProxy, Traffic
from quorate_node.rentals.public_addresses import OwnNetworks, may_reach
from quorate_protocol.messages import egress
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable

RETRY_SECONDS = 5.0
_STAND_IN = "93.184.216.34"  # the public address that a devnet's host has for the proxy
_LOOKUPS_MAX = 4  # at once, of one rental
_TRAFFIC_KEPT = 256  # rentals

log = logging.getLogger(__name__)


class PublicInternet:
    """The machine's resolver and network, for one rental. A slow name server delays no other."""

    def __init__(self) -> None:
        self._lookups = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="egress-name")

    async def resolve(self, host: str) -> tuple[str, ...]:
        return await asyncio.get_running_loop().run_in_executor(self._lookups, _addresses, host)

    async def connect(self, address: str, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        self._lookups.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class DevnetHost:
    """A host that a server of this machine stands for, so that devnets need no internet."""

    name: str
    address: str
    port: int


def devnet_host(text: str, is_devnet: bool) -> DevnetHost | None:
    """`text`: NAME=ADDRESS:PORT, or "". Raises Refused, and always outside of devnets."""
    if not text:
        return None
    name, _, place = text.partition("=")
    address, _, port = place.rpartition(":")
    if not is_devnet or not egress.is_host(name) or not address or not port.isdecimal():
        raise Refused(
            Code.MALFORMED,
            "devnet_host: write NAME=ADDRESS:PORT, on devnets only; elsewhere remove it",
        )
    return DevnetHost(name, address, int(port))


class DevnetInternet(PublicInternet):
    """One name leads to a server of this machine, by an address that is checked as all are."""

    def __init__(self, host: DevnetHost) -> None:
        super().__init__()
        self._host = host

    async def resolve(self, host: str) -> tuple[str, ...]:
        return (_STAND_IN,) if host == self._host.name else await super().resolve(host)

    async def connect(self, address: str, port: int) -> socket.socket:
        if address == _STAND_IN:
            address, port = self._host.address, self._host.port
        return await super().connect(address, port)


def _addresses(host: str) -> tuple[str, ...]:
    """The dot at the end keeps the owner's search domains out."""
    found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


@dataclass(slots=True)
class RentalEgress:
    """The proxies of all rentals of one executor."""

    listen: Callable[[str, int], Awaitable[socket.socket]]  # as `Inside.listen`
    clock: Clock
    own: OwnNetworks = field(default_factory=OwnNetworks)
    host: DevnetHost | None = None
    traffic: dict[str, Traffic] = field(default_factory=dict)  # by lease id; the newest few

    async def serve(self, lease_id: str, allowed: tuple[str, ...]) -> None:
        """Until cancelled, as long as the container runs."""
        listener = await self._listening(lease_id)
        made = PublicInternet() if self.host is None else DevnetInternet(self.host)
        with closing(made) as internet:
            proxy = EgressProxy(
                listener,
                allowed,
                internet,
                lambda address: may_reach(address, self.own),
                lease_id=lease_id,
            )
            self._keep(lease_id, proxy.traffic)
            try:
                await proxy.run()
            finally:
                log.info("rental 0x%s: egress %s", lease_id, told(proxy.traffic))

    async def _listening(self, lease_id: str) -> socket.socket:
        while True:
            try:
                return await self.listen(lease_id, PORT)
            except (OSError, Unavailable) as error:
                # Not re-raised: it starts or ends just now, or its program listens there itself.
                log.warning("rental 0x%s has no egress yet: %s", lease_id, error)
                await self.clock.sleep(RETRY_SECONDS)

    def _keep(self, lease_id: str, traffic: Traffic) -> None:
        self.traffic.pop(lease_id, None)
        self.traffic[lease_id] = traffic
        while len(self.traffic) > _TRAFFIC_KEPT:
            del self.traffic[next(iter(self.traffic))]


def told(traffic: Traffic) -> str:
    return (
        f"{traffic.bytes_in} bytes in, {traffic.bytes_out} bytes out, "
        f"{traffic.connections} connections, {traffic.refused} refused"
    )
