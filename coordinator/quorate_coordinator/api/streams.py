"""Streams: a run's history as server-sent events, and its logs."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from quorate_coordinator.adapters.gate import LogBook
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.routes import job_id_of
from quorate_coordinator.core import queries
from quorate_coordinator.core.state import Decided, Ended, State
from quorate_protocol import codec
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_protocol.views import JobEvent

POLL_SECONDS = 0.2
KEEPALIVE_POLLS = 50
STREAMS_MAX = 2_000


@dataclass(slots=True)
class Streams:
    """Handlers; bounded in number. Events are read from the state, which the journal makes durable."""

    state: State
    auth: Auth
    clock: Clock
    logs: LogBook
    is_stopping: Callable[[], bool]
    open_streams: int = 0

    def add_routes(self, app: web.Application) -> None:
        """Mounts the three streams."""
        app.router.add_get("/v1/events", self.get_all)
        app.router.add_get("/v1/runs/{job}/events", self.get_run)
        app.router.add_get("/v1/runs/{job}/logs", self.get_logs)

    async def get_all(self, request: web.Request) -> web.StreamResponse:
        """All runs of the client whose token is shown."""
        account = self.auth.required(request)
        return await self._stream(request, lambda: self.state.client_events.get(account) or ())

    async def get_run(self, request: web.Request) -> web.StreamResponse:
        """One run; open to its client alone."""
        job = queries.job_of(self.state, job_id_of(request))
        self._check(request, job.submission.order.message.client)
        return await self._stream(request, lambda: self.state.events.get(job.id) or ())

    async def get_logs(self, request: web.Request) -> web.StreamResponse:
        """Log text; with follow=1 until the run ends."""
        job = queries.job_of(self.state, job_id_of(request))
        self._check(request, job.submission.order.message.client)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await self._begin(request, response)
        try:
            sent = 0
            while True:
                is_over = isinstance(self.state.jobs[job.id].phase, Decided | Ended) or self.is_stopping()
                text = bytes(self.logs.texts.get(job.id, b""))[sent:]
                if text:
                    await response.write(text)
                    sent += len(text)
                if is_over or request.query.get("follow") != "1":
                    break
                await self.clock.sleep(POLL_SECONDS)
        except ConnectionResetError:
            pass  # the client went away: the ordinary end of a stream
        finally:
            self.open_streams -= 1
        return response

    def _check(self, request: web.Request, client: Address) -> None:
        if self.auth.required(request) != client:
            raise Refused(Code.NOT_YOURS, "the run belongs to another client")

    async def _begin(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.open_streams >= STREAMS_MAX:
            raise Refused(Code.BUSY, "too many streams are open")
        self.open_streams += 1
        await response.prepare(request)

    async def _stream(self, request: web.Request, events: Callable[[], tuple[JobEvent, ...]]) -> web.StreamResponse:
        after_text = request.headers.get("Last-Event-ID") or request.query.get("after", "0")
        if not after_text.isdecimal() or len(after_text) > 18:
            raise Refused(Code.MALFORMED, "after: a sequence number is needed")
        after = int(after_text)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await self._begin(request, response)
        idle = 0
        try:
            while not self.is_stopping():
                fresh = [event for event in events() if event.seq > after]
                for event in fresh:
                    await response.write(b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.name.encode(), codec.encode(event)))
                    after = event.seq
                idle = 0 if fresh else idle + 1
                if idle and idle % KEEPALIVE_POLLS == 0:
                    await response.write(b": alive\n\n")
                await self.clock.sleep(POLL_SECONDS)
        except ConnectionResetError:
            pass  # the client went away: the ordinary end of a stream
        finally:
            self.open_streams -= 1
        return response
