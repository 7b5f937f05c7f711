"""Uploads what the staging store lacks, and downloads and opens sealed outputs.

Downloads are checked: the ciphertext must hash to the provider's commitment and must open to the
output digest.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from quorate.base.errors import (
    EvidenceError,
    QuorateError,
    RefusedError,
    UnavailableError,
    translated,
)
from quorate.job.packing import Upload
from quorate_content.dag.car import write_car
from quorate_content.dag.cid import Cid, Codec, from_digest, parse
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import (
    LOCATED_MAX,
    LocalBlocks,
    Nodes,
    build_path,
    cid_of_path,
    keep_nodes,
)
from quorate_content.dag.unixfs import V1_2025
from quorate_content.dag.walk import DagWalk, ExpectedBlock, NullSink
from quorate_content.transfer.sealed import open_sealed
from quorate_protocol.messages.receipt import ExecutionEvidence
from quorate_protocol.messages.views import SealedOutput
from quorate_protocol.refusals import Code
from quorate_protocol.units import Hash32

if TYPE_CHECKING:
    from quorate.client.base.coordinator_api import Api

PIECE_BYTES = 1 << 20
ANSWER_VALID_SECONDS = 60.0
ANSWERS_MAX = 10_000
Progress = Callable[[str, int, int], None]
"""Called with (text, bytes done, bytes in all or 0)."""


def no_progress(_what: str, _done: int, _total: int) -> None: ...


class Uploader:
    """Sends to the staging store what it lacks, and asks for each CID only once in a minute.

    A plan and the order after it need the same answers. Answers expire, because the store may
    remove content while a person reads the plan.
    """

    def __init__(self, api: "Api", now: Callable[[], float]) -> None:
        self._api, self._now = api, now
        self._answers: dict[str, tuple[bool, float]] = {}

    async def missing(self, uploads: tuple[Upload, ...]) -> tuple[Upload, ...]:
        """Returns the uploads that the store does not hold."""
        return tuple([item for item in uploads if not await self._is_stored(item.cid)])

    async def upload_missing(self, uploads: tuple[Upload, ...], progress: Progress) -> None:
        for item in await self.missing(uploads):
            await self._api.put_content(
                item.cid, partial(_counted, item, progress), item.is_directory
            )
            self._answers[item.cid] = True, self._now()

    async def _is_stored(self, cid: str) -> bool:
        is_stored, asked_at = self._answers.get(cid, (False, float("-inf")))
        if not 0 <= self._now() - asked_at < ANSWER_VALID_SECONDS:
            is_stored = (await self._api.stat_content(cid)).is_stored
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[cid] = is_stored, self._now()
        return is_stored


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
    build_path(item.path, V1_2025, keep_nodes(nodes), None, Bounds(), follows_links=True)
    blocks, root = LocalBlocks(item.path, nodes, follows_links=True), parse(item.cid)
    pending, sent = bytearray(), set[Hash32]()

    def is_new(expected: ExpectedBlock) -> bool:
        """Files that are links have bytes that were sent. The reader knows so many blocks."""
        if expected.cid.digest in sent:
            return False
        if len(sent) < LOCATED_MAX:
            sent.add(expected.cid.digest)
        return True

    try:
        walk = DagWalk(root, NullSink(), Bounds())
        for piece in write_car(walk, root, blocks.supply, is_new):
            pending += piece
            if len(pending) >= PIECE_BYTES:
                yield bytes(pending)
                pending.clear()
    finally:
        blocks.close()
    if pending:
        yield bytes(pending)


def sealed_of(item: ExecutionEvidence) -> SealedOutput:
    """Returns what opens the output of a revealed execution."""
    assert item.reveal is not None, "it was revealed"
    return SealedOutput(
        item.commit.message.encrypted_output,
        item.reveal.salt,
        item.reveal.output_digest,
        item.reveal.exit_status,
    )


async def fetch_output(
    api: "Api", output: SealedOutput, destination: Path, bytes_max: int, progress: Progress
) -> None:
    """Downloads, checks and opens a sealed output as the new directory `destination`."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    # The ciphertext is as long as the output's CAR: its files, and a little for each block and
    # chunk.
    sealed_max = bytes_max + bytes_max // 8 + (64 << 20)
    with TemporaryDirectory(prefix=".quorate-", dir=destination.parent) as folder:
        sealed = Path(folder) / "sealed"
        cid, size = await _locate(api, output.ciphertext)
        await api.get_content(
            str(cid), sealed, sealed_max, lambda done: progress("download output", done, size)
        )
        await asyncio.to_thread(_open, sealed, cid, output, destination, bytes_max)


async def _locate(api: "Api", digest: Hash32) -> tuple[Cid, int]:
    """Finds the ciphertext's CID, and its size or 0.

    A commit carries only the digest: the root is a raw block if short, else a dag-pb node.
    """
    for codec in (Codec.RAW, Codec.DAG_PB):
        cid = from_digest(digest, codec)
        found = await api.stat_content(str(cid))
        if found.is_stored:
            return cid, found.size_bytes or 0
    raise UnavailableError(
        f"the store no longer holds the output 0x{digest.hex()}; it keeps outputs until 7 "
        "days past finality"
    )


def _open(sealed: Path, cid: Cid, output: SealedOutput, destination: Path, bytes_max: int) -> None:
    if cid_of_path(sealed) != cid:
        raise EvidenceError(f"output: the downloaded file does not match {cid}; try again")
    try:
        with translated():
            open_sealed(sealed, output.salt, output.output_digest, destination, bytes_max)
    except RefusedError as error:
        raise _bad_output(error) from error
    except FileExistsError as error:
        raise UnavailableError(f"{destination} already exists; choose another directory") from error


def _bad_output(error: RefusedError) -> QuorateError:
    opens_to_other = error.code == Code.DOES_NOT_OPEN.value
    return (
        EvidenceError(
            f"output: the ciphertext does not open to the accepted result: {error.detail}"
        )
        if opens_to_other
        else error
    )
