"""Refuses new work while the coordinator stops, and new orders once it has retired or while its
journal may be old. Read requests and connected providers still get answers.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http.coordinator_routes import Routes

RETRY_SECONDS = 5.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refuse_new(is_leaving: Callable[[], bool]) -> Middleware:
    """Returns the middleware. It goes inside the one that turns errors into answers."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD") and is_leaving():
            raise Unavailable(
                "the coordinator is stopping; it takes this when it is back", RETRY_SECONDS
            )
        return await handler(request)

    return guard


def refuse_orders(
    is_retired: Callable[[], bool], may_be_older: Callable[[], bool] = lambda: False
) -> Middleware:
    """Returns the middleware. Vouchers and stops of earlier orders are still taken.

    With an old journal a second Ack of an order would cost bond.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_order = request.method == "POST" and request.path == Routes.ORDER.path
        if is_order and may_be_older():
            raise Unavailable(
                "the coordinator compares its journal with what providers have; it takes orders "
                "after that",
                RETRY_SECONDS,
            )
        if is_order and is_retired():
            raise Refused(
                Code.UNSUPPORTED,
                "this coordinator has retired and takes no new orders: use another one",
            )
        return await handler(request)

    return guard
