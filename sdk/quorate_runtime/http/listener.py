"""The listening socket: limits the number of connections, closes slow ones, and answers requests
that are not HTTP.

It subclasses aiohttp's protocol and site, because neither limits connections nor notices a reader
that takes no bytes.
"""

import asyncio
import errno
import fcntl
import logging
import os
import resource
import socket
import ssl
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
from quorate_runtime.http.listener_limits import ListenerLimits

log = logging.getLogger(__name__)
LINE_BYTES_MAX = 8 * 1024
HEAD_FIELDS_MAX = 64
LINGER_SECONDS = 2.0
BACKLOG = 512
WARN_SECONDS = 10.0
_ACKED_AT, _INFO_BYTES = 120, 128  # tcpi_bytes_acked of struct tcp_info, Linux 4.1 and later


@dataclass(slots=True)
class OpenConnections:
    """Counts open connections, in total and by address. It counts trusted proxies only in total."""

    bounds: ListenerLimits
    proxies: Proxies = field(default_factory=Proxies)
    by_address: Counter[str] = field(default_factory=Counter)
    connections: set["BoundedConnection"] = field(default_factory=set)
    refused: int = 0
    closed_slow: int = 0  # connections of slow readers
    warned_at: float = -WARN_SECONDS
    connections_max: int = field(
        init=False
    )  # the bound, or less where the process may open fewer files

    def __post_init__(self) -> None:
        self.connections_max = self.bounds.connections_max

    def admit(self, address: str, is_proxy: bool = False) -> bool:
        fits_here = is_proxy or self.by_address[address] < self.bounds.address_connections_max
        if fits_here and self.by_address.total() < self.connections_max:
            self.by_address[address] += 1
            return True
        self._refuse(address)
        return False

    def release(self, address: str) -> None:
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]

    def close_slow_readers(self, now: float) -> None:
        """Closes connections whose reader does not take its answer. Such an answer keeps a file, a
        slot or memory in use.
        """
        for connection in [item for item in self.connections if item.reads_too_slowly(now)]:
            self.closed_slow += 1
            connection.shut_down()

    def _refuse(self, address: str) -> None:
        self.refused += 1
        if not self.by_address[address]:
            del self.by_address[address]
        if (
            time.monotonic() - self.warned_at >= WARN_SECONDS
        ):  # so that a flood does not fill the log
            self.warned_at = time.monotonic()
            log.warning(
                "%d connections refused so far because there are too many, the last from %s",
                self.refused,
                address,
            )


class BoundedConnection(RequestHandler):
    """One connection. It closes itself at once if there are too many, and answers protocol errors
    in our form.
    """

    __slots__ = ("_address", "_mark", "_open_connections", "_socket")

    def __init__(
        self, open_connections: OpenConnections, server: web.Server, loop: asyncio.AbstractEventLoop
    ) -> None:
        idle = open_connections.bounds.head_and_idle_seconds
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
        self._open_connections, self._address = open_connections, ""
        self._mark: tuple[float, int] | None = (
            None  # (when, bytes acknowledged by the reader until then)
        )
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        remote = peer[0] if isinstance(peer, tuple) else None
        address = network_of(remote)
        if not self._open_connections.admit(
            address, is_proxy=self._open_connections.proxies.trusts(remote or "")
        ):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            self._manager = None  # aiohttp must not handle the end of a connection that never began
            return
        self._address, self._socket = address, transport.get_extra_info("socket")
        self._open_connections.connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._address:
            self._open_connections.release(self._address)
            self._open_connections.connections.discard(self)
            self._address, self._socket = "", None
        super().connection_lost(exc)

    def reads_too_slowly(self, now: float) -> bool:
        """Returns whether bytes wait for this reader and it has taken too few of them for a while.
        The kernel's counters say so, also for bytes that the kernel itself sends.
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
            return False  # it is closed already, or not TCP
        acked = int.from_bytes(info[_ACKED_AT:_INFO_BYTES], sys.byteorder)
        if len(info) < _INFO_BYTES or self._mark is None:
            self._mark = (now, acked)
            return False
        lasted = now - self._mark[0]
        if lasted < self._open_connections.bounds.write_seconds:
            return False
        if acked - self._mark[1] < lasted * self._open_connections.bounds.read_bytes_per_second:
            return True
        self._mark = (now, acked)
        return False

    def shut_down(self) -> None:
        """Shuts the socket down. Closing the transport would not stop a file that the kernel is
        sending.
        """
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers a request that is not HTTP, and logs nothing. It logs a bug that no handler
        caught.
        """
        is_gone = isinstance(exc, ConnectionError)
        if status >= 500 and status != 504 and not is_gone:
            log.error("a request from %s failed", request.remote, exc_info=exc)
        if is_gone or request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        answer = (
            internal()
            if status >= 500
            else coded(OF_STATUS.get(status, Code.MALFORMED), (message or "not HTTP")[:200], status)
        )
        answer.force_close()
        return answer


def cannot_listen(host: str, port: int, error: OSError) -> Unavailable:
    """Makes the error for an address or port that cannot be used. It says what to choose
    instead.
    """
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
    """`web.TCPSite` with `BoundedConnection`s."""

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        open_connections: OpenConnections,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host, self._port, self._open_connections = host, port, open_connections
        self._slow_reader_task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        self._open_connections.connections_max = connections_max(
            self._open_connections.bounds.connections_max
        )
        await super().start()
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None, "set up the runner first"
        self._server = await loop.create_server(
            lambda: BoundedConnection(self._open_connections, server, loop),
            self._host,
            self._port,
            backlog=self._backlog,
            ssl=self._ssl_context,
        )
        self._slow_reader_task = loop.create_task(self._close_slow_readers(), name="slow readers")

    async def stop(self) -> None:
        if self._slow_reader_task is not None:
            self._slow_reader_task.cancel()
            await asyncio.gather(self._slow_reader_task, return_exceptions=True)
        await super().stop()

    async def _close_slow_readers(self) -> None:
        while True:
            await asyncio.sleep(self._open_connections.bounds.write_seconds / 3)
            self._open_connections.close_slow_readers(time.monotonic())


# A shell gives 1,024 open files, and strangers may open 8,192 connections. Without a reserve the
# process could not open files, ask the chain node, or accept other connections.
WANTED = 16_384
KEPT = 1_024  # for files, uploads, chain and beacon


def connections_max(wanted: int) -> int:
    """Returns how many connections there may be. That is `wanted`, or half the limit of open files
    if that is less.
    """
    most = _raised()
    fitting = min(wanted, max(most - KEPT, most // 2))
    if fitting < wanted:
        log.warning(
            "%d files may be open, so %d connections and not %d: raise it by ulimit -n or "
            "LimitNOFILE",
            most,
            fitting,
            wanted,
        )
    return fitting


def _raised() -> int:
    """Raises the soft limit as far as wanted and allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning(
            "the limit of open files stays at %d: %s", soft, error
        )  # then fewer connections are allowed.
        return soft
    return most
