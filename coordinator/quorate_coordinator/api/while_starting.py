"""What a coordinator that still replays its journal answers: that it is not there yet.

It listens already, because its own address is part of its rules. But its state is that of some
moment in the past: asked for a run that it has acknowledged, it would say that there is none,
and whoever waits for that run would believe it.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_protocol.refusals import Unavailable

RETRY_SECONDS = 1.0
HEALTH = "/v1/health"  # says for itself how things are
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refuse_early(is_ready: Callable[[], bool]) -> Middleware:
    """The middleware. It stands inside the one that turns errors into answers."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != HEALTH and not is_ready():
            raise Unavailable(
                "the coordinator is starting; it answers once its journal is replayed",
                RETRY_SECONDS,
            )
        return await handler(request)

    return guard
