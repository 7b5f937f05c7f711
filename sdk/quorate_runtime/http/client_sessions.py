"""HTTP client sessions that decompress nothing, so that no answer exceeds the bytes that its reader
counts.

aiohttp decompresses by itself, up to a thousand bytes for one, before our code can check a limit.
"""

from typing import Any

import aiohttp

from quorate_protocol.refusals import Unavailable

NO_ENCODING = {"Accept-Encoding": "identity"}


def plain_session(**options: Any) -> aiohttp.ClientSession:
    """Makes an `aiohttp.ClientSession` that asks for uncompressed answers and never decompresses.
    Callers pass `allow_redirects=False` with each request.
    """
    return aiohttp.ClientSession(auto_decompress=False, headers=NO_ENCODING, **options)


async def read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Raises Unavailable if it is longer than `bytes_max`. `content.read(n)` would only return what
    has arrived so far.
    """
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > bytes_max:
            raise Unavailable(
                f"{response.url.origin()} sends more than {bytes_max} bytes", retry_after=30.0
            )
    return bytes(raw)
