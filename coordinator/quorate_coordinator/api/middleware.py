"""Middleware before every handler: accepts only small, complete, uncompressed bodies."""

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX, KIB
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.error_responses import Handler, coded

STARTING_RETRY_SECONDS = 1.0
STOPPING_RETRY_SECONDS = 5.0


def before_handlers(rates: RequestRates) -> Middleware:
    """Counts requests, refuses compressed bodies, and reads small ones within a time limit."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        rates.count_address(request.remote, tokens_of(request))
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            # A small compressed body can decompress to a huge one, and no client needs it here.
            return coded(Code.UNSUPPORTED, "content-encoding: send the body uncompressed", 415)
        if request.can_read_body and request.method != "PUT":
            try:
                async with asyncio.timeout(rates.bounds.body_seconds):
                    await request.read()  # aiohttp keeps it for the handler
            except TimeoutError:  # becomes the answer
                return coded(
                    Code.TOO_LATE,
                    f"the body did not arrive within {rates.bounds.body_seconds:g} s",
                    408,
                )
        return await handler(request)

    return guard


def tokens_of(request: web.Request) -> float:
    """One for each KiB of a body, which the loop must parse. Uploads have limits of their own."""
    if not request.can_read_body or request.method == "PUT":
        return 1.0
    size = request.content_length
    return max(1.0, (BODY_BYTES_MAX if size is None else min(size, BODY_BYTES_MAX)) / KIB)


def _no() -> bool:
    return False


def refuse_untimely(
    is_ready: Callable[[], bool],
    is_leaving: Callable[[], bool] = _no,
    may_be_older: Callable[[], bool] = _no,
    is_retired: Callable[[], bool] = _no,
) -> Middleware:
    """Refuses what the coordinator cannot take at its start and at its end. It goes inside the
    middleware that turns errors into answers.

    While its journal is replayed it listens already, because its own address is part of its rules.
    But runs may be missing in its state that it has acknowledged, and a client that waits for one
    would believe that there is none. While its journal may be old, a second Ack of an order would
    cost bond. Once retired, it still takes vouchers and stops.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != Routes.HEALTH.path and not is_ready():
            raise Unavailable(
                "the coordinator is starting; it answers once its journal is replayed",
                STARTING_RETRY_SECONDS,
            )
        if request.method not in ("GET", "HEAD") and is_leaving():
            raise Unavailable(
                "the coordinator is stopping; it takes this when it is back", STOPPING_RETRY_SECONDS
            )
        is_order = request.method == "POST" and request.path == Routes.ORDER.path
        if is_order and may_be_older():
            raise Unavailable(
                "the coordinator compares its journal with what providers have; it takes orders "
                "after that",
                STOPPING_RETRY_SECONDS,
            )
        if is_order and is_retired():
            raise Refused(
                Code.UNSUPPORTED,
                "this coordinator has retired and takes no new orders: use another one",
            )
        return await handler(request)

    return guard
