"""What is put before every handler of the coordinator: who is asking, how often, and bodies that
are small and whole.
"""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Middleware

from quorate_coordinator.rate_limits import Rates
from quorate_protocol.refusals import Code
from quorate_runtime.http.error_responses import Handler, coded


def before_handlers(rates: Rates) -> Middleware:
    """The middleware that counts requests by address, refuses encoded bodies, and takes small
    bodies in within their time.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        rates.address(request.remote)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            # Decompressing is the costly side of a bomb, and nobody needs it here.
            return coded(Code.UNSUPPORTED, "content-encoding: send the body as it is", 415)
        if request.can_read_body and request.method != "PUT":
            try:
                async with asyncio.timeout(rates.bounds.body_seconds):
                    await request.read()  # kept, so that the handler reads it at once
            except TimeoutError:  # the answer itself
                return coded(
                    Code.TOO_LATE,
                    f"the body did not arrive within {rates.bounds.body_seconds:g} s",
                    408,
                )
        return await handler(request)

    return guard
