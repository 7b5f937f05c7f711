"""HTTP sessions towards others: nothing is unpacked, so no answer is larger than what its reader
counts.

aiohttp unpacks whole pieces of an answer by itself, a thousand bytes for one, before any bound
of ours is asked.
"""

from typing import Any

import aiohttp

from quorate_protocol.refusals import Unavailable

NO_ENCODING = {"Accept-Encoding": "identity"}


def plain_session(**options: Any) -> aiohttp.ClientSession:
    """A session as `aiohttp.ClientSession` makes it, that asks for and takes answers as they
    are. Requests say `allow_redirects=False`.
    """
    return aiohttp.ClientSession(auto_decompress=False, headers=NO_ENCODING, **options)


async def read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The whole body. Unavailable when it is longer than allowed: `content.read(n)` would give
    what has come so far.
    """
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > bytes_max:
            raise Unavailable(
                f"{response.url.origin()} sends more than {bytes_max} bytes", retry_after=30.0
            )
    return bytes(raw)
