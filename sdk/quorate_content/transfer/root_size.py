"""Reads root blocks from gateways: how large content is, and whether a gateway has it."""

import http.client
from collections.abc import Sequence

import aiohttp

from quorate_content.dag.cid import Cid, Codec, raw_cid
from quorate_content.dag.content_limits import MIB, BadSource, Bounds
from quorate_content.dag.dagpb import Kind, decode_node
from quorate_content.store.fetch_order import Source
from quorate_content.store.http_answer import RAW_TYPE, Body, raw_answer
from quorate_content.store.threads import StopSignal
from quorate_protocol.refusals import Unavailable
from quorate_runtime.http.client_sessions import read_bounded

BLOCK_BYTES_MAX = 2 * MIB
ANSWER_SECONDS = 15.0


def size_of_root(cid: Cid, block: bytes) -> int:
    """Returns the bytes of the content below a root block.

    A file says its size. For a directory it is what the writer claims for all blocks below it,
    which is a little more than its files have. Raises `Refused` if the block is no UnixFS.
    """
    if cid.codec == Codec.RAW:
        return len(block)
    node = decode_node(block, Bounds())
    if node.kind in (Kind.FILE, Kind.RAW):
        return len(node.data) + sum(node.sizes)
    return len(block) + sum(link.tsize for link in node.links)


async def root_size(session: aiohttp.ClientSession, gateway: str, cid: Cid) -> int:
    """Returns the content's size by its root block, read from a trustless gateway and verified.
    `gateway` is its URL, with /ipfs at its end.

    Raises `Unavailable` if the gateway does not answer or lacks it, `BadSource` for wrong bytes.
    """
    if cid.inline is not None:
        return size_of_root(cid, cid.inline)
    try:
        async with session.get(
            f"{gateway}/{cid}?format=raw",
            headers={"Accept": RAW_TYPE},
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise Unavailable(f"{gateway} answered status {answer.status} for {cid}", 5.0)
            block = await read_bounded(answer, BLOCK_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(
            f"{gateway} does not answer ({str(error) or type(error).__name__})", 5.0
        ) from error
    if raw_cid(block).digest != cid.digest:
        raise BadSource(f"{gateway} sent another block than {cid}")
    return size_of_root(cid, block)


def root_from(sources: Sequence[Source], cid: Cid, deadline_seconds: float) -> bytes:
    """Returns the verified root block from the first source that sends it. The call blocks. Raises
    `Unavailable` if none sends it in time.
    """
    stop = StopSignal(deadline_seconds)
    for source in sources:
        try:
            with raw_answer(source, cid, stop, min(ANSWER_SECONDS, deadline_seconds)) as response:
                block = _read(Body(response, stop)) if response.status == 200 else b""
        except (BadSource, Unavailable, OSError, http.client.HTTPException):
            continue  # another source may have it
        if block and raw_cid(block).digest == cid.digest:
            return block
    raise Unavailable(f"no source sent the root block of {cid}", retry_after=30.0)


def _read(body: Body) -> bytes:
    room = bytearray(BLOCK_BYTES_MAX + 1)
    view, done = memoryview(room), 0
    while done < len(room) and (count := body.readinto(view[done:])):
        done += count
    return bytes(room[:done]) if done <= BLOCK_BYTES_MAX else b""
