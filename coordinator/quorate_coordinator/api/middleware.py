"""Middleware before every handler: counts requests by address and size, and accepts only small,
complete, uncompressed bodies.
"""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX, KIB
from quorate_protocol.refusals import Code
from quorate_runtime.http.error_responses import Handler, coded


def before_handlers(rates: RequestRates) -> Middleware:
    """Returns the middleware that counts requests by address, refuses compressed bodies, and reads
    small bodies within a time limit.
    """

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
    """Returns the tokens that a request costs: one, or one for each KiB of its body.

    A body takes time of the loop to be parsed. An upload goes to disk, and has limits of its own.
    """
    if not request.can_read_body or request.method == "PUT":
        return 1.0
    size = request.content_length
    return max(1.0, (BODY_BYTES_MAX if size is None else min(size, BODY_BYTES_MAX)) / KIB)
