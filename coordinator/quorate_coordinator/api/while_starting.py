"""Refuses requests while the coordinator still replays its journal.

It listens already, because its own address is part of its rules. But its state is an earlier one,
in which runs may be missing that it has acknowledged. A client that waits for such a run would
believe that there is none.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_protocol.refusals import Unavailable
from quorate_runtime.http.coordinator_routes import Routes

RETRY_SECONDS = 1.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refuse_early(is_ready: Callable[[], bool]) -> Middleware:
    """Returns the middleware. It goes inside the one that turns errors into answers."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != Routes.HEALTH.path and not is_ready():
            raise Unavailable(
                "the coordinator is starting; it answers once its journal is replayed",
                RETRY_SECONDS,
            )
        return await handler(request)

    return guard
