"""Fetches a small file by its CID from other programs' gateways, as bytes."""

import asyncio
from collections.abc import Awaitable, Callable

from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source, host_name

FETCH_SECONDS = 30.0

DocumentFetch = Callable[[str, tuple[str, ...], int], Awaitable[bytes]]
"""CID, base URLs of gateways, and the most bytes -> the file's bytes, verified by the CID."""


def document_fetch(store: ContentStore, owner: str, may_be_private: bool) -> DocumentFetch:
    """Returns a function that reads files through a store, for `owner`'s quota.

    The store keeps a file until it needs the space. The function raises Refused for a file that is
    too large, and Unavailable if no gateway sends it within 30 s.
    """

    async def fetch(cid: str, gateways: tuple[str, ...], bytes_max: int) -> bytes:
        sources = tuple(
            Source(
                f"{url.rstrip('/')}/ipfs",
                may_be_private=may_be_private,
                name=host_name("provider", url),
            )
            for url in gateways
        )
        async with await store.get(cid, sources, bytes_max, FETCH_SECONDS, owner) as lease:
            return await asyncio.to_thread(lease.path.read_bytes)

    return fetch
