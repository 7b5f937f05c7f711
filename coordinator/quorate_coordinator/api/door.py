"""The listening socket: how many connections there may be, how long one may dawdle, and typed answers to what is no HTTP.

Subclasses of aiohttp's own protocol and site, because neither knows a bound on connections.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from quorate_coordinator.api.failures import OF_STATUS, coded, internal
from quorate_coordinator.bounds import Bounds
from quorate_coordinator.rates import network_of
from quorate_protocol.refusals import Code

log = logging.getLogger(__name__)
LINE_BYTES_MAX = 8 * 1024
HEAD_FIELDS_MAX = 64
LINGER_SECONDS = 2.0
BACKLOG = 512
WARN_SECONDS = 10.0


@dataclass(slots=True)
class Doorman:
    """Counts open connections, in all and by address."""

    bounds: Bounds
    by_address: Counter[str] = field(default_factory=Counter)
    turned_away: int = 0
    warned_at: float = -WARN_SECONDS

    def lets_in(self, address: str) -> bool:
        """Whether one more connection fits; it counts from then on."""
        fits = self.by_address[address] < self.bounds.address_connections_max and self.by_address.total() < self.bounds.connections_max
        if fits:
            self.by_address[address] += 1
        else:
            self._turn_away(address)
        return fits

    def lets_out(self, address: str) -> None:
        """A connection ended."""
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]

    def _turn_away(self, address: str) -> None:
        self.turned_away += 1
        if not self.by_address[address]:
            del self.by_address[address]
        if time.monotonic() - self.warned_at >= WARN_SECONDS:  # a flood must not fill the log too
            self.warned_at = time.monotonic()
            log.warning("%d connections turned away so far, the last from %s", self.turned_away, address)


class Visitor(RequestHandler):
    """One connection. Over the bound it is closed at once; its own errors are answered in our form."""

    __slots__ = ("_address", "_doorman")

    def __init__(self, doorman: Doorman, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        idle = doorman.bounds.head_and_idle_seconds
        super().__init__(
            server, loop=loop, keepalive_timeout=idle, lingering_time=LINGER_SECONDS, auto_decompress=False,
            max_line_size=LINE_BYTES_MAX, max_field_size=LINE_BYTES_MAX, max_headers=HEAD_FIELDS_MAX, access_log=None,  # type: ignore[arg-type]
        )  # fmt: skip
        self._doorman, self._address = doorman, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts it, or hangs up."""
        peer = transport.get_extra_info("peername")
        address = network_of(peer[0] if isinstance(peer, tuple) else None)
        if not self._doorman.lets_in(address):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            self._manager = None  # so that the end of a connection that never began is nobody's business
            return
        self._address = address
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts it out."""
        if self._address:
            self._doorman.lets_out(self._address)
            self._address = ""
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP gets a typed answer without a trace in the log; a bug that no handler caught gets one there."""
        if status >= 500 and status != 504:
            log.error("a request from %s failed", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        answer = internal() if status >= 500 else coded(OF_STATUS.get(status, Code.MALFORMED), (message or "no HTTP")[:200], status)
        answer.force_close()
        return answer


class Door(web.BaseSite):
    """`web.TCPSite` whose connections are `Visitor`s."""

    def __init__(self, runner: web.BaseRunner, host: str, port: int, doorman: Doorman) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._host, self._port, self._doorman = host, port, doorman

    @property
    def name(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listens. OSError when the port is taken."""
        await super().start()
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None, "set up the runner first"
        self._server = await loop.create_server(
            lambda: Visitor(self._doorman, server, loop), self._host, self._port, backlog=self._backlog
        )  # fmt: skip
