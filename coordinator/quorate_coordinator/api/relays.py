"""Relays: streams between clients and their rentals, through this coordinator (PROTOCOL 12.25).

What flows is SSH between the two, so this coordinator sees ciphertext. The provider dials out, so
it needs no address of its own.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import handles
from quorate_coordinator.api.routes import job_id_of, ticket_of
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.core.model.entities import Ended, Job, Rented
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.run_access import unknown_run
from quorate_protocol.messages import frames
from quorate_protocol.messages.ports import Peers
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_runtime.http import byte_streams
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.error_responses import Busy

ASK_WITHIN = Seconds(5)
RETRY_SECONDS = 5.0
LOOK_SECONDS = 1.0
DIAL_LOOKS = 30  # a ticket is good for so many seconds


@dataclass(eq=False, slots=True)
class _Dialed:
    """The provider's end of a stream. `is_over` ends its request."""

    ws: "asyncio.Future[web.WebSocketResponse]"
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Relays:
    """Handlers of both ends of streams, bounded in number."""

    state: State
    auth: Auth
    peers: Peers
    is_stopping: Callable[[], bool]
    archived: Callable[[Hash32], ArchivedRun | None]  # of runs that have left the state
    _tickets: dict[Hash32, _Dialed] = field(default_factory=dict)
    _open: Counter[Address] = field(default_factory=Counter)

    @handles(Routes.STREAM)
    async def get_stream(self, request: web.Request) -> web.WebSocketResponse:
        """Refusals are answered before the upgrade, so a client can read them."""
        account = self.auth.required(request)
        job = self._job(job_id_of(request), account)
        ws = _socket()
        with self._place(account):
            if not ws.can_prepare(request):
                told = "stream: open it as a WebSocket, as `quorate shell` does"
                raise Refused(Code.MALFORMED, told)
            async with self._dialed(job, request) as provider:
                await ws.prepare(request)
                await self._relay(job.id, request, ws, provider)
        return ws

    @handles(Routes.DIALED_STREAM)
    async def get_dialed(self, request: web.Request) -> web.WebSocketResponse:
        """The ticket is the proof: only the provider got it."""
        dialed = self._tickets.pop(ticket_of(request), None)
        ws = _socket()
        if dialed is None or not ws.can_prepare(request):
            raise Refused(Code.UNKNOWN, "stream: this ticket was used, or is too old")
        await ws.prepare(request)
        if not dialed.ws.done():
            dialed.ws.set_result(ws)
            await dialed.is_over.wait()
        _abort(request)
        return ws

    def _job(self, job_id: Hash32, account: Address) -> Job:
        """Raises Refused unless it is this client's rental, and runs."""
        job = self.state.jobs.get(job_id)
        over = self.archived(job_id) if job is None else None
        if over is not None and over.run.client == account:
            why = "".join(f": {line.text}" for line in over.lines if line.name == "ended")
            raise Refused(Code.TOO_LATE, f"stream: the rental is over{why}")
        if job is None or job.order.client != account:
            raise unknown_run(job_id)
        if not job.is_rental:
            raise Refused(Code.UNSUPPORTED, "stream: this run is no rental; see `quorate logs`")
        if isinstance(job.phase, Ended):
            raise Refused(Code.TOO_LATE, f"stream: the rental is over: {job.phase.reason}")
        if not isinstance(job.phase, Rented):
            raise Refused(Code.TOO_EARLY, "stream: the rental does not run yet; try again soon")
        return job

    def _runs(self, job_id: Hash32) -> bool:
        job = self.state.jobs.get(job_id)
        return job is not None and isinstance(job.phase, Rented) and not self.is_stopping()

    @asynccontextmanager
    async def _dialed(self, job: Job, request: web.Request) -> AsyncIterator[web.WebSocketResponse]:
        """Asks the provider to dial, and waits for it. Raises Unavailable if it does not."""
        assert isinstance(job.phase, Rented)
        lease = self.state.leases[job.phase.assignment_hash]
        ticket = Hash32(os.urandom(32))
        dialed = _Dialed(asyncio.get_running_loop().create_future())
        self._tickets[ticket] = dialed
        wanted = frames.encode(frames.StreamWanted(lease.assignment_hash, ticket))
        try:
            await self.peers.request(lease.provider, wanted, ASK_WITHIN)
            yield await self._arrived(dialed.ws, request)
        finally:
            self._tickets.pop(ticket, None)
            dialed.ws.cancel()
            dialed.is_over.set()

    async def _arrived(
        self, dialed: "asyncio.Future[web.WebSocketResponse]", request: web.Request
    ) -> web.WebSocketResponse:
        """Raises Unavailable if the provider does not dial while the client waits."""
        for _ in range(DIAL_LOOKS):
            await asyncio.wait([dialed], timeout=LOOK_SECONDS)
            if request.transport is None:
                raise ConnectionResetError("the client has left")
            if dialed.done():
                return dialed.result()
        raise Unavailable("stream: its provider did not dial in time", RETRY_SECONDS)

    async def _relay(
        self,
        job_id: Hash32,
        request: web.Request,
        client: web.WebSocketResponse,
        provider: web.WebSocketResponse,
    ) -> None:
        joined = asyncio.create_task(byte_streams.join(client, provider))
        try:
            while not joined.done() and self._runs(job_id):
                await asyncio.wait([joined], timeout=LOOK_SECONDS)
        finally:
            joined.cancel()
            await asyncio.gather(joined, return_exceptions=True)
            _abort(request)

    @contextmanager
    def _place(self, account: Address) -> Iterator[None]:
        bounds = self.auth.rates.bounds
        is_full = self._open.total() >= bounds.relays_max
        if is_full or self._open[account] >= bounds.account_relays_max:
            most = bounds.account_relays_max
            raise Busy(f"too many streams to rentals (of one client {most})", RETRY_SECONDS)
        self._open[account] += 1
        try:
            yield
        finally:
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]


def _socket() -> web.WebSocketResponse:
    return web.WebSocketResponse(
        timeout=byte_streams.CLOSE_SECONDS,
        heartbeat=byte_streams.PING_SECONDS,
        max_msg_size=byte_streams.MESSAGE_BYTES_MAX + 1,
        compress=False,
    )


def _abort(request: web.Request) -> None:
    """A side that reads nothing must not hold buffers."""
    if request.transport is not None:
        request.transport.abort()
