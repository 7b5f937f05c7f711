"""Streams: the history of runs as server-sent events, and logs. And secrets on their way."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import handles
from quorate_coordinator.api.routes import answer, job_id_of
from quorate_coordinator.core.jobs import log_reads
from quorate_coordinator.core.jobs.log_reads import LogAccess
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_logs import RunLogs, Text
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec import canonical
from quorate_protocol.messages import frames
from quorate_protocol.messages.ports import Clock, Peers
from quorate_protocol.messages.rental_secrets import BOX_BYTES_MAX
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_runtime.http.coordinator_routes import Done, Routes
from quorate_runtime.http.error_responses import Busy

log = logging.getLogger(__name__)
POLL_SECONDS = 0.2
KEEPALIVE_POLLS = 50
RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Streams:
    """Handlers of streams, limited in number. They read events from state and archive."""

    history: RunReader
    access: RunAccess
    auth: Auth
    clock: Clock
    logs: RunLogs
    is_stopping: Callable[[], bool]
    submit: Callable[[ev.Event], Awaitable[object]]
    open_streams: Counter[Address] = field(default_factory=Counter)

    @handles(Routes.EVENTS)
    async def get_all(self, request: web.Request) -> web.StreamResponse:
        account = self.auth.required(request)
        return await self._stream(
            request, account, lambda after: self.history.lines(account, after)
        )

    @handles(Routes.RUN_EVENTS)
    async def get_run(self, request: web.Request) -> web.StreamResponse:
        job_id = job_id_of(request)
        client = self.access.must_read_all(job_id, self.auth.account(request))
        return await self._stream(
            request, client, lambda after: self.history.lines_of_run(job_id, after)
        )

    @handles(Routes.RUN_LOGS)
    async def get_logs(self, request: web.Request) -> web.StreamResponse:
        """Streams log text; with follow=1 until the run ends.

        Lines are output: an execution whose lines are sent is marked as read before. A run that
        ended without a charge shows none, and one that no voucher covers waits for it.
        """
        job_id = job_id_of(request)
        client = self.access.must_read_all(job_id, self.auth.account(request))
        is_shown = [self._access(job_id, text.assignment_hash) for text in self.logs.texts(job_id)]
        self._refuse_unpaid(job_id, is_shown)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        async with self._open(request, response, client):
            sent: dict[Hash32, int] = {}
            while True:
                is_over = self.history.is_over(job_id) or self.is_stopping()
                for text in self.logs.texts(job_id):
                    if self._access(job_id, text.assignment_hash) is LogAccess.UNPAID:
                        break
                    await self._send_text(response, job_id, text, sent)
                if is_over or request.query.get("follow") != "1":
                    break
                await self.clock.sleep(POLL_SECONDS)
        return response

    async def _send_text(
        self, response: web.StreamResponse, job_id: Hash32, text: Text, sent: dict[Hash32, int]
    ) -> None:
        """Sends what is new of an execution's text, and says how much is missing before it."""
        name = text.assignment_hash
        while True:
            at = sent.get(name, 0)
            missing, data = text.after(at)
            if not data:
                return
            sent[name] = at + missing + len(data)
            if not await self._may_send(job_id, name):
                return
            mark = b"\n[%d bytes were left out here]\n" % missing if missing else b""
            await self._write(response, mark + data)

    def _refuse_unpaid(self, job_id: Hash32, found: list[LogAccess]) -> None:
        if found and all(access is LogAccess.NONE for access in found):
            raise log_reads.not_charged()
        job = self.history.state.jobs.get(job_id)
        if job is not None and found and all(access is LogAccess.UNPAID for access in found):
            raise log_reads.unpaid(self.history.state, job)

    def _access(self, job_id: Hash32, assignment_hash: Hash32) -> LogAccess:
        return self.history.log_access(job_id, assignment_hash)

    async def _may_send(self, job_id: Hash32, assignment_hash: Hash32) -> bool:
        """The execution is marked as read first, durably: the client pays for what it reads."""
        access = self._access(job_id, assignment_hash)
        if access is not LogAccess.MARKED:
            return access is LogAccess.FREE
        try:
            await self.submit(ev.LogRead(job_id, assignment_hash))
        except (Refused, Unavailable) as error:
            log.info("log lines of run 0x%s are not sent: %s", job_id.hex(), error)
            return False
        return True

    @asynccontextmanager
    async def _open(
        self, request: web.Request, response: web.StreamResponse, account: Address
    ) -> AsyncIterator[None]:
        """A reader that disconnects or reads no bytes ends the stream silently."""
        bounds = self.auth.rates.bounds
        if (
            self.open_streams.total() >= bounds.streams_max
            or self.open_streams[account] >= bounds.account_streams_max
        ):
            raise Busy(
                f"too many streams are open (of one client at most {bounds.account_streams_max})",
                RETRY_SECONDS,
            )
        self.open_streams[account] += 1
        try:
            await response.prepare(request)
            yield
        except (ConnectionError, TimeoutError):
            # Not re-raised: the ordinary end of a stream. The connection is aborted, so that a
            # reader that takes no bytes does not hold buffers.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.open_streams[account] -= 1
            if not self.open_streams[account]:
                del self.open_streams[account]

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self.auth.rates.bounds.write_seconds):
            await response.write(data)

    async def _stream(
        self, request: web.Request, account: Address, events: Callable[[int], list[JobEvent]]
    ) -> web.StreamResponse:
        after_text = request.headers.get("Last-Event-ID") or request.query.get("after", "0")
        if not (after_text.isascii() and after_text.isdecimal() and len(after_text) <= 18):
            raise Refused(Code.MALFORMED, "after: a sequence number is needed")
        after, idle = int(after_text), 0
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        async with self._open(request, response, account):
            while not self.is_stopping():
                fresh = events(after)
                for event in fresh:
                    line = b"id: %d\nevent: %s\ndata: %s\n\n" % (
                        event.seq,
                        event.name.encode(),
                        canonical.encode(event),
                    )
                    await self._write(response, line)
                    after = event.seq
                idle = 0 if fresh else idle + 1
                if idle and idle % KEEPALIVE_POLLS == 0:
                    await self._write(response, b": alive\n\n")
                await self.clock.sleep(POLL_SECONDS)
        return response


SECRETS_WITHIN = Seconds(10)


@dataclass(slots=True)
class SecretRelay:
    """Passes a client's secrets on to the provider of its rental (PROTOCOL 12.34). They are in a
    box that only the provider opens. This coordinator keeps and logs nothing of it.
    """

    state: State
    auth: Auth
    peers: Peers

    @handles(Routes.SECRETS)
    async def post_secrets(self, request: web.Request) -> web.Response:
        """The provider's own refusal is the answer."""
        account = self.auth.required(request)
        job = self.state.jobs.get(job_id_of(request))
        if job is None or job.order.client != account:
            raise Refused(Code.UNKNOWN, "secrets: this client has no such run")
        if not job.submission.spec.is_sealed:
            raise Refused(Code.UNSUPPORTED, "secrets: its spec has no sealKey; order it with one")
        box = await request.read()
        if not 0 < len(box) <= BOX_BYTES_MAX:
            raise Refused(Code.OVERSIZE, f"secrets: a box of 1 to {BOX_BYTES_MAX} bytes")
        held = [self.state.leases[digest] for digest in job.leases]
        open_leases = [
            it
            for it in held
            if isinstance(it.phase, leases.Assigned | leases.Accepted | leases.Live)
        ]
        if not open_leases:
            raise Refused(Code.TOO_EARLY, "secrets: no provider has this rental now")
        lease = open_leases[-1]
        sent = frames.encode(frames.SecretsSent(lease.assignment_hash, box))
        await self.peers.request(lease.provider, sent, SECRETS_WITHIN)
        return answer(Done())
