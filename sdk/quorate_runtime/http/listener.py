"""The listening socket: how many connections there may be, how long one may dawdle, and typed
answers to what is no HTTP.

Subclasses of aiohttp's own protocol and site, because neither knows a bound on connections, nor
a reader that does not read.
"""

import asyncio
import errno
import fcntl
import logging
import os
import socket
import sys
import termios
import time
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from quorate_protocol.refusals import Code, Unavailable
from quorate_runtime.http.client_networks import Proxies, network_of
from quorate_runtime.http.error_responses import OF_STATUS, coded, internal
from quorate_runtime.process.file_descriptors import connections_max

log = logging.getLogger(__name__)
LINE_BYTES_MAX = 8 * 1024
HEAD_FIELDS_MAX = 64
LINGER_SECONDS = 2.0
BACKLOG = 512
WARN_SECONDS = 10.0
_ACKED_AT, _INFO_BYTES = 120, 128  # tcpi_bytes_acked of struct tcp_info, Linux 4.1 and later


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one address and everybody together may hold open, and how slow they may be."""

    connections_max: int = 8_192
    address_connections_max: int = 256
    head_and_idle_seconds: float = 30.0  # until a connection's next request head is whole
    # that a reader's pace is measured over, and until a stream's reader has taken what was written
    write_seconds: float = 30.0
    read_bytes_per_second: float = 4.0 * 1024  # of whoever has an answer waiting


@dataclass(slots=True)
class ListenerProtocol:
    """Counts open connections, in all and by address; those of trusted proxies only in all."""

    bounds: ListenerLimits
    proxies: Proxies = field(default_factory=Proxies)
    by_address: Counter[str] = field(default_factory=Counter)
    visitors: set["Visitor"] = field(default_factory=set)
    turned_away: int = 0
    hung_up: int = 0  # on readers that did not read
    warned_at: float = -WARN_SECONDS
    connections_max: int = field(
        init=False
    )  # as many as the bounds say, or fewer where so many could not be open

    def __post_init__(self) -> None:
        self.connections_max = self.bounds.connections_max

    def lets_in(self, address: str, is_proxy: bool = False) -> bool:
        """Whether one more connection fits; it counts from then on."""
        fits_here = is_proxy or self.by_address[address] < self.bounds.address_connections_max
        if fits_here and self.by_address.total() < self.connections_max:
            self.by_address[address] += 1
            return True
        self._turn_away(address)
        return False

    def lets_out(self, address: str) -> None:
        """A connection ended."""
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]

    def patrol(self, now: float) -> None:
        """Hangs up on readers that leave an answer lying: it holds a file, a slot or memory of
        ours.
        """
        for visitor in [item for item in self.visitors if item.leaves_lying(now)]:
            self.hung_up += 1
            visitor.hang_up()

    def _turn_away(self, address: str) -> None:
        self.turned_away += 1
        if not self.by_address[address]:
            del self.by_address[address]
        if time.monotonic() - self.warned_at >= WARN_SECONDS:  # a flood must not fill the log too
            self.warned_at = time.monotonic()
            log.warning(
                "%d connections turned away so far, the last from %s", self.turned_away, address
            )


class Visitor(RequestHandler):
    """One connection. Over the bound it is closed at once; its own errors are answered in our
    form.
    """

    __slots__ = ("_address", "_doorman", "_mark", "_socket")

    def __init__(
        self, doorman: ListenerProtocol, server: web.Server, loop: asyncio.AbstractEventLoop
    ) -> None:
        idle = doorman.bounds.head_and_idle_seconds
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=idle,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEAD_FIELDS_MAX,
            access_log=None,  # type: ignore[arg-type]
        )
        self._doorman, self._address = doorman, ""
        self._mark: tuple[float, int] | None = (
            None  # when, and how many bytes the reader's side had acknowledged
        )
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts it, or hangs up."""
        peer = transport.get_extra_info("peername")
        remote = peer[0] if isinstance(peer, tuple) else None
        address = network_of(remote)
        if not self._doorman.lets_in(address, is_proxy=self._doorman.proxies.trusts(remote or "")):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            self._manager = (
                None  # so that the end of a connection that never began is nobody's business
            )
            return
        self._address, self._socket = address, transport.get_extra_info("socket")
        self._doorman.visitors.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts it out."""
        if self._address:
            self._doorman.lets_out(self._address)
            self._doorman.visitors.discard(self)
            self._address, self._socket = "", None
        super().connection_lost(exc)

    def leaves_lying(self, now: float) -> bool:
        """Whether bytes wait for this reader and for a while it has taken too few of them. The
        kernel knows, whoever sends them.
        """
        if self._socket is None:
            return False
        try:
            waiting = int.from_bytes(
                fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder
            )
            if not waiting:
                self._mark = None
                return False
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except (OSError, ValueError):
            return False  # not re-raised: the connection is gone already, or is none of TCP's
        acked = int.from_bytes(info[_ACKED_AT:_INFO_BYTES], sys.byteorder)
        if len(info) < _INFO_BYTES or self._mark is None:
            self._mark = (now, acked)
            return False
        lasted = now - self._mark[0]
        if lasted < self._doorman.bounds.write_seconds:
            return False
        if acked - self._mark[1] < lasted * self._doorman.bounds.read_bytes_per_second:
            return True
        self._mark = (now, acked)
        return False

    def hang_up(self) -> None:
        """Shuts the socket itself: a file that is being sent by the kernel would not notice a
        closed transport.
        """
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # not re-raised: it is over already, which is what was wanted

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP gets a typed answer without a trace in the log; a bug that no handler
        caught gets one there.
        """
        is_gone = isinstance(exc, ConnectionError)
        if status >= 500 and status != 504 and not is_gone:
            log.error("a request from %s failed", request.remote, exc_info=exc)
        if is_gone or request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        answer = (
            internal()
            if status >= 500
            else coded(OF_STATUS.get(status, Code.MALFORMED), (message or "no HTTP")[:200], status)
        )
        answer.force_close()
        return answer


def closed(host: str, port: int, error: OSError) -> Unavailable:
    """Why nothing can listen there, and what to choose instead."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return Unavailable(
            (
                f"{host!r} is no address of this machine; choose another with `init --host` and "
                f"the "
                f"same --home"
            ),
            0,
        )
    why = os.strerror(error.errno) if error.errno else str(error)
    return Unavailable(
        f"port {port} on {host} cannot be used: {why}; choose another with --port", 0
    )


class Listener(web.BaseSite):
    """`web.TCPSite` whose connections are `Visitor`s."""

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, doorman: ListenerProtocol
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._host, self._port, self._doorman = host, port, doorman
        self._patrol: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listens. OSError when the port is taken."""
        self._doorman.connections_max = connections_max(self._doorman.bounds.connections_max)
        await super().start()
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None, "set up the runner first"
        self._server = await loop.create_server(
            lambda: Visitor(self._doorman, server, loop),
            self._host,
            self._port,
            backlog=self._backlog,
        )
        self._patrol = loop.create_task(self._walk(), name="door")

    async def stop(self) -> None:
        """Listens no more."""
        if self._patrol is not None:
            self._patrol.cancel()
            await asyncio.gather(self._patrol, return_exceptions=True)
        await super().stop()

    async def _walk(self) -> None:
        while True:
            await asyncio.sleep(self._doorman.bounds.write_seconds / 3)
            self._doorman.patrol(time.monotonic())
