"""The egress proxy of one rental: CONNECT and plain HTTP, to public hosts of its list (12.30).

It listens in the container's own network namespace, so only that container reaches it. A container
that opens thousands of connections waits at its own socket: the proxy accepts only as many as it
serves.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from quorate_node.rentals.egress_requests import HEAD_BYTES_MAX, HEAD_END, NotTaken, Request, parse
from quorate_protocol.messages import egress

PORT = 3128  # on the container's loopback
_URL, _DIRECT = f"http://127.0.0.1:{PORT}", "localhost,127.0.0.1,::1"
_NAMES = {"http_proxy": _URL, "https_proxy": _URL, "no_proxy": _DIRECT}
VARIABLES = {**_NAMES, **{name.upper(): value for name, value in _NAMES.items()}}
_CHUNK_BYTES = 64 << 10
_LOGGED_MAX = 256  # hosts of one rental
_LINGER_BYTES, _LINGER_SECONDS = 1 << 20, 1.0
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TUNNEL_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"

log = logging.getLogger(__name__)


class Internet(Protocol):
    """What the proxy asks of the network."""

    async def resolve(self, host: str) -> tuple[str, ...]:
        """Its addresses. Raises OSError without any."""

    async def connect(self, address: str, port: int) -> socket.socket:
        """Raises OSError. The socket does not block."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one rental. Times in seconds."""

    connections: int = 128
    accepts_per_second: int = 50
    head_seconds: float = 10.0
    resolve_seconds: float = 10.0
    connect_seconds: float = 10.0
    idle_seconds: float = 300.0
    bytes_per_second: int = 32 << 20
    volume_bytes: int = 1 << 40
    ports: tuple[int, ...] = (22, 80, 443)
    addresses: int = 4  # of one name that are tried


@dataclass(slots=True)
class Traffic:
    """What went through since the daemon began to serve the rental."""

    bytes_in: int = 0  # from the internet
    bytes_out: int = 0
    connections: int = 0
    refused: int = 0

    @property
    def total_bytes(self) -> int:
        return self.bytes_in + self.bytes_out


class EgressProxy:
    """Owns the listening socket. `may_reach` judges an address; the proxy connects to that one."""

    def __init__(
        self,
        listener: socket.socket,
        allowed: tuple[str, ...],
        internet: Internet,
        may_reach: Callable[[str], bool],
        bounds: Bounds = Bounds(),
        lease_id: str = "",
    ) -> None:
        listener.setblocking(False)
        self._listener, self._allowed, self._bounds = listener, allowed, bounds
        self._internet, self._may_reach = internet, may_reach
        self.traffic = Traffic()
        self._lease_id, self._logged = lease_id, set[tuple[str, int]]()
        self._places = asyncio.Semaphore(bounds.connections)
        self._free_at = 0.0  # of the loop's clock: when what was sent is paid off, by the rate

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._places.acquire()
                    link = await self._accepted(loop)
                    self.traffic.connections += 1
                    group.create_task(self._serve(link))
                    await asyncio.sleep(1 / self._bounds.accepts_per_second)
        finally:
            self._listener.close()

    async def _accepted(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        while True:
            try:
                link, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                await asyncio.sleep(1.0)
            else:
                return link

    async def _serve(self, link: socket.socket) -> None:
        try:
            with link:
                await self._answer(link)
        except* (OSError, TimeoutError) as errors:
            # Not re-raised: a program inside, or a server outside, ended or was silent too long.
            log.debug("an egress connection ended: %s", errors.exceptions[0])
        finally:
            self._places.release()

    async def _answer(self, link: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            head, rest = await self._head(link)
            request = parse(head)
            remote = await self._reached(request)
        except NotTaken as no:
            self.traffic.refused += 1
            async with asyncio.timeout(self._bounds.head_seconds):
                await loop.sock_sendall(link, no.answer())
            await _end(link)
            return
        with remote:
            if request.is_tunnel:
                await loop.sock_sendall(link, _TUNNEL_OPEN)
                await self._tunnel(link, remote, rest)
            else:
                await self._forward(link, remote, request, rest)
                await _end(link)

    async def _head(self, link: socket.socket) -> tuple[bytes, bytes]:
        loop, data = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(self._bounds.head_seconds):
                while HEAD_END not in data:
                    if len(data) > HEAD_BYTES_MAX:
                        raise NotTaken(431, f"the header has more than {HEAD_BYTES_MAX} bytes")
                    piece = await loop.sock_recv(link, HEAD_BYTES_MAX)
                    if not piece:
                        raise OSError("the program inside closed it")
                    data += piece
        except TimeoutError as error:
            raise NotTaken(408, "the header did not come in time") from error
        head, _, rest = data.partition(HEAD_END)
        return head + HEAD_END, rest

    async def _reached(self, request: Request) -> socket.socket:
        bounds, host = self._bounds, request.host
        if request.port not in bounds.ports:
            raise NotTaken(403, f"port {request.port} is not one of {bounds.ports}")
        if not egress.covers(self._allowed, host):
            raise NotTaken(403, f"{host} is not in the rental's egress list")
        self._check_volume()
        found = await _in_time(self._internet.resolve(host), bounds.resolve_seconds, "name")
        # Nobody else asks for the name again, so its server cannot give another address later.
        good = [address for address in found[:64] if self._may_reach(address)]
        if not good:
            raise NotTaken(403, f"{host} leads to no public address")
        for address in good[: bounds.addresses]:
            try:
                async with asyncio.timeout(bounds.connect_seconds):
                    remote = await self._internet.connect(address, request.port)
            except (OSError, TimeoutError) as error:
                log.debug("%s (%s) cannot be reached: %s", host, address, error)
            else:
                self._log_first(host, request.port, address)
                return remote
        raise NotTaken(502, f"{host} cannot be reached")

    def _log_first(self, host: str, port: int, address: str) -> None:
        """For the answer to an abuse report, which names an address and a time."""
        if len(self._logged) < _LOGGED_MAX and (host, port) not in self._logged:
            self._logged.add((host, port))
            log.info("rental 0x%s: egress to %s:%d (%s)", self._lease_id, host, port, address)
            if len(self._logged) == _LOGGED_MAX:
                log.info("rental 0x%s: egress to further hosts is not logged", self._lease_id)

    def _check_volume(self) -> None:
        if self.traffic.total_bytes >= self._bounds.volume_bytes:
            raise NotTaken(403, f"the rental has used its {self._bounds.volume_bytes} bytes")

    async def _tunnel(self, link: socket.socket, remote: socket.socket, rest: bytes) -> None:
        pipe = _Pipe(asyncio.get_running_loop(), self._bounds.idle_seconds)
        async with asyncio.TaskGroup() as group:
            group.create_task(pipe.copy(link, remote, self._count_out, rest))
            group.create_task(pipe.copy(remote, link, self._count_in))

    async def _forward(
        self, link: socket.socket, remote: socket.socket, request: Request, rest: bytes
    ) -> None:
        """What follows the body goes nowhere: it could be a request to another host."""
        pipe = _Pipe(asyncio.get_running_loop(), self._bounds.idle_seconds)
        await pipe.send(remote, request.head, self._count_out)
        body = rest[: request.body_bytes]
        await pipe.send(remote, body, self._count_out)
        left = request.body_bytes - len(body)
        while left:
            piece = await pipe.receive(link, min(left, _CHUNK_BYTES))
            if not piece:
                return
            await pipe.send(remote, piece, self._count_out)
            left -= len(piece)
        await pipe.copy(remote, link, self._count_in)

    async def _count_in(self, size: int) -> None:
        self.traffic.bytes_in += size
        await self._keep_rate(size)

    async def _count_out(self, size: int) -> None:
        self.traffic.bytes_out += size
        await self._keep_rate(size)

    async def _keep_rate(self, size: int) -> None:
        """Waits until the rental may send so many bytes more. Raises OSError beyond its volume."""
        if self.traffic.total_bytes > self._bounds.volume_bytes:
            raise OSError("the rental has used its volume")
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + size / self._bounds.bytes_per_second
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


Count = Callable[[int], Awaitable[None]]


class _Pipe:
    """One connection through the proxy. It ends after silence in both directions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle_seconds: float) -> None:
        self._loop, self._idle = loop, idle_seconds
        self._active_at = loop.time()

    async def copy(
        self, source: socket.socket, target: socket.socket, count: Count, first: bytes = b""
    ) -> None:
        """Until the source ends, which the target hears."""
        piece = first or await self.receive(source, _CHUNK_BYTES)
        while piece:
            await self.send(target, piece, count)
            piece = await self.receive(source, _CHUNK_BYTES)
        target.shutdown(socket.SHUT_WR)

    async def receive(self, source: socket.socket, size: int) -> bytes:
        while True:
            try:
                async with asyncio.timeout_at(self._active_at + self._idle):
                    piece = await self._loop.sock_recv(source, size)
            except TimeoutError:
                if self._loop.time() >= self._active_at + self._idle:
                    raise
                continue  # the other direction was active meanwhile
            self._active_at = self._loop.time()
            return piece

    async def send(self, target: socket.socket, data: bytes, count: Count) -> None:
        await count(len(data))
        async with asyncio.timeout(self._idle):
            await self._loop.sock_sendall(target, data)
        self._active_at = self._loop.time()


async def _end(link: socket.socket) -> None:
    """Reads some of what still comes: closed with unread bytes, the answer could be lost."""
    link.shutdown(socket.SHUT_WR)
    loop, left = asyncio.get_running_loop(), _LINGER_BYTES
    async with asyncio.timeout(_LINGER_SECONDS):
        while left > 0 and (piece := await loop.sock_recv(link, _CHUNK_BYTES)):
            left -= len(piece)


async def _in_time(work: Awaitable[tuple[str, ...]], seconds: float, what: str) -> tuple[str, ...]:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except (OSError, TimeoutError) as error:
        raise NotTaken(502, f"the {what} cannot be resolved") from error
