"""Bytes in and out of the staging store: uploads of what the store lacks, the sealed output back
and opened.

Nothing that comes back is believed: the ciphertext must hash to what the provider committed to,
and must open to the output digest.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from quorate.client.coordinator_api import Api
from quorate.errors import EvidenceError, QuorateError, RefusedError, UnavailableError, translated
from quorate.job.packing import Upload
from quorate_content.content_limits import Bounds
from quorate_content.dag.car import write_car
from quorate_content.dag.cid import Cid, Codec, from_digest, parse
from quorate_content.dag.disk_tree import LocalBlocks, Nodes, build_path, cid_of_path, keep_nodes
from quorate_content.dag.unixfs import V1_2025
from quorate_content.dag.walk import DagWalk, NullSink
from quorate_content.sealed import open_sealed
from quorate_protocol.messages.views import SealedOutput
from quorate_protocol.refusals import Code
from quorate_protocol.units import Hash32

PIECE_BYTES = 1 << 20
Progress = Callable[[str, int, int], None]
"""Told (what, bytes done, bytes in all or 0)."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """For callers that do not look."""


async def upload_missing(api: Api, uploads: tuple[Upload, ...], progress: Progress) -> int:
    """Sends what the store does not hold; how many bytes that were."""
    sent = 0
    for item in uploads:
        if (await api.stat_content(item.cid)).is_stored:
            continue
        await api.put_content(item.cid, partial(_counted, item, progress), item.is_directory)
        sent += item.size_bytes
    return sent


async def _counted(item: Upload, progress: Progress) -> AsyncIterator[bytes]:
    pieces = _directory_pieces(item) if item.is_directory else _file_pieces(item)
    done = 0
    while piece := await asyncio.to_thread(next, pieces, b""):
        done += len(piece)
        progress(f"upload {item.path.name}", min(done, item.size_bytes), item.size_bytes)
        yield piece


def _file_pieces(item: Upload) -> Iterator[bytes]:
    with item.path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _directory_pieces(item: Upload) -> Iterator[bytes]:
    nodes: Nodes = {}
    build_path(item.path, V1_2025, keep_nodes(nodes), None, Bounds())
    blocks, root = LocalBlocks(item.path, nodes), parse(item.cid)
    pending = bytearray()
    try:
        for piece in write_car(DagWalk(root, NullSink(), Bounds()), root, blocks.supply):
            pending += piece
            if len(pending) >= PIECE_BYTES:
                yield bytes(pending)
                pending.clear()
    finally:
        blocks.close()
    if pending:
        yield bytes(pending)


async def fetch_output(
    api: Api, output: SealedOutput, destination: Path, bytes_max: int, progress: Progress
) -> None:
    """Downloads, checks and opens a sealed output as the new directory `destination`."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    # The ciphertext is as long as the CAR of the output: its files, and a little for each block and
    # chunk.
    sealed_max = bytes_max + bytes_max // 8 + (64 << 20)
    with TemporaryDirectory(prefix=".quorate-", dir=destination.parent) as folder:
        sealed = Path(folder) / "sealed"
        cid = await _locate(api, output.ciphertext)
        await api.get_content(
            str(cid), sealed, sealed_max, lambda done: progress("download output", done, 0)
        )
        await asyncio.to_thread(_open, sealed, cid, output, destination, bytes_max)


async def _locate(api: Api, digest: Hash32) -> Cid:
    """A commit carries the digest alone: the root of a short ciphertext is a raw block, of a
    long one a dag-pb node.
    """
    for codec in (Codec.RAW, Codec.DAG_PB):
        cid = from_digest(digest, codec)
        if (await api.stat_content(str(cid))).is_stored:
            return cid
    raise UnavailableError(
        f"the store does not hold the ciphertext 0x{digest.hex()}; it is kept until 7 days past "
        f"finality"
    )


def _open(sealed: Path, cid: Cid, output: SealedOutput, destination: Path, bytes_max: int) -> None:
    if cid_of_path(sealed) != cid:
        raise EvidenceError(f"output: what was downloaded is not {cid}")
    try:
        with translated():
            open_sealed(sealed, output.salt, output.output_digest, destination, bytes_max)
    except RefusedError as error:
        raise _bad_output(error) from error
    except FileExistsError as error:
        raise UnavailableError(f"{destination} exists already; choose another directory") from error


def _bad_output(error: RefusedError) -> QuorateError:
    opens_to_other = error.code == Code.DOES_NOT_OPEN.value
    return (
        EvidenceError(
            f"output: the ciphertext does not open to the accepted result: {error.detail}"
        )
        if opens_to_other
        else error
    )
