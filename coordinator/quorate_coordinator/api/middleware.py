"""Middleware before every handler: counts requests by address, and accepts only small, complete,
uncompressed bodies.
"""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_coordinator.rate_limits import RequestRates
from quorate_protocol.refusals import Code
from quorate_runtime.http.error_responses import Handler, coded


def before_handlers(rates: RequestRates) -> Middleware:
    """Returns the middleware that counts requests by address, refuses compressed bodies, and reads
    small bodies within a time limit.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        rates.count_address(request.remote)
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
