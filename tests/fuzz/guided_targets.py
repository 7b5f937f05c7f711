"""Targets of coverage-guided fuzzing: one function for each reader of strangers' bytes.

Each returns, or raises what a stranger must not be able to cause. Bounds are small where a property
is a bound, so that a short input can reach it.
"""

import asyncio
import atexit
import http.client
import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzz.guided_answers import ASKED
from fuzz.guided_outer import OUTER, fuzz_sealed
from quorate.base.errors import UsageError
from quorate.job.jobfile import parse_job
from quorate.trust.receipt_verification import check_round, verify
from quorate_content.dag.car import frame_head, header, read_car
from quorate_content.dag.cid import Cid, Codec
from quorate_content.dag.content_limits import BadSource, Bounds
from quorate_content.dag.disk_tree import TreeWriter
from quorate_content.dag.unixfs import V1_2025, build_directory, build_file
from quorate_content.dag.walk import Block, DagWalk, NullSink, TreePath
from quorate_content.images.archive_reader import read_archive, sanitized_archive
from quorate_content.images.image_info import ImageLimits
from quorate_content.store import fetch
from quorate_content.store.threads import StopSignal
from quorate_node.executors.sandbox.rootfs import unpack
from quorate_protocol.codec import canonical
from quorate_protocol.messages import frames
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.receipts.receipt_checks import _checks
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient
from quorate_runtime.chain.rpc import RpcFailure, _result
from quorate_runtime.keys.crypto import recover
from quorate_runtime.peers.websocket_peers import HELLO_BYTES_MAX, Challenge, Hello, Welcome
from support.executors.image_archives import entry, image_entries, tar
from support.fuzz_properties import decode_or_refuse, parse_or_refuse, pieces

SMALL = Bounds(
    bytes_max=1 << 20,
    nodes_max=256,
    node_bytes_max=1 << 20,
    links_max=64,
    entries_max=64,
    directory_depth_max=8,
)
IMAGE = ImageLimits(
    archive_bytes=1 << 20, unpacked_bytes=4 << 20, config_bytes=1 << 16, layers=8, members=200
)
SCRATCH = Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())


def fuzz_codec(data: bytes) -> None:
    """Every decoder of messages and documents."""
    parse_or_refuse(data)
    decode_or_refuse(data)


def fuzz_frames(data: bytes) -> None:
    """Frames and the hello of the peers' WebSocket."""
    try:
        frame = frames.decode(data)
    except Refused:
        frame = None
    assert frame is None or frames.encode(frame) == data
    for kind in (Challenge, Hello, Welcome):
        try:
            canonical.decode(kind, data, HELLO_BYTES_MAX)
        except Refused:
            continue


def fuzz_receipt(data: bytes) -> None:
    """The receipt checker: for any input it gives a report or a refusal."""
    try:
        report = verify(data)
    except Refused:
        return
    assert not report.valid, "nothing made up verifies"


def planted(data: bytes) -> None:
    """The receipt checker with a bug that it once had: numbers that fit no machine word.

    A campaign that does not find this bug is useless.
    """
    try:
        found = canonical.from_json(Receipt, canonical.parse(data, 1 << 20)["body"])  # type: ignore[index, call-overload]
        for _ in _checks(found, recover, check_round):
            pass
    except (Refused, KeyError, IndexError, AssertionError, TypeError):
        return


def fuzz_job_file(data: bytes) -> None:
    """Job files."""
    try:
        parse_job(data, Path("/nowhere"))
    except UsageError:
        return


class _Strict(NullSink):
    """Checks the walk's promises: calls nest, offsets grow, no file is longer than announced."""

    def __init__(self) -> None:
        self.folders: list[TreePath] = []
        self.file: TreePath | None = None
        self.size = self.offset = 0

    def enter(self, path: TreePath) -> None:
        assert self.file is None and path[:-1] == (self.folders[-1] if self.folders else ())
        self.folders.append(path)

    def leave(self, path: TreePath) -> None:
        assert self.folders.pop() == path and self.file is None

    def open(self, path: TreePath, size: int) -> None:
        assert (
            self.file is None
            and b".." not in path
            and not any(b"/" in name or b"\0" in name for name in path)
        )
        self.file, self.size, self.offset = path, size, 0

    def write(self, path: TreePath, offset: int, data: Block) -> None:
        assert path == self.file and offset >= self.offset and offset + len(data) <= self.size
        self.offset = offset + len(data)

    def close(self, path: TreePath, size: int) -> None:
        assert path == self.file and size == self.size
        self.file = None


def fuzz_unixfs(data: bytes) -> None:
    """Blocks of a DAG with correct hashes; each is two bytes of length and its bytes."""
    walk = DagWalk(Cid(1, Codec.DAG_PB, Hash32(bytes(32))), _Strict(), SMALL)
    blocks = pieces(data)
    try:
        while walk.expected is not None:
            block = next(blocks, None)
            if block is None:
                return
            walk.feed(block, verified=True)
    except Refused:
        return


def fuzz_car(data: bytes) -> None:
    """A CAR that is written to the disk, as an upload is."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    writer = TreeWriter(folder / "tree", SMALL)
    try:
        read_car(
            io.BytesIO(data), DagWalk(TREE_ROOT, writer, SMALL), SMALL, writer.known, writer.seen
        )
    except Refused:
        pass  # the answer to a CAR of another tree
    finally:
        writer.abandon()
        assert {path.name for path in folder.iterdir()} <= {"tree"}
        shutil.rmtree(folder)


def fuzz_image(data: bytes) -> None:
    """An image archive: read, prepared for an engine, and unpacked without one.

    Nothing may appear outside its root.
    """
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    try:
        archive = folder / "image.tar"
        archive.write_bytes(data)
        try:
            info = read_archive(archive, IMAGE)
            for _ in sanitized_archive(archive, info):
                pass
            unpack(archive, info, folder / "root")
        except (Refused, Unavailable):
            pass  # the answer
        assert {path.name for path in folder.iterdir()} <= {"image.tar", "root"}
    finally:
        shutil.rmtree(folder)


class _Wire:
    """The parts of a socket that reading an HTTP answer needs."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def fuzz_gateway(data: bytes) -> None:
    """A whole HTTP answer of a content source."""
    response = http.client.HTTPResponse(_Wire(data))  # type: ignore[arg-type]
    try:
        response.begin()
        fetch.receive(response, DagWalk(TREE_ROOT, NullSink(), SMALL), SMALL, StopSignal(60.0))
    except (BadSource, Refused, Unavailable, OSError, http.client.HTTPException):
        return


class _AnsweringNode:
    """A chain node that gives the same answer to every request."""

    tree: object = None

    async def read(self, method: str, *params: object) -> object:
        return _result(self.tree, method)

    request = read


_CHAIN_NODE = _AnsweringNode()
_CHAIN = ChainClient(_CHAIN_NODE)  # type: ignore[arg-type]
_LOOP = asyncio.new_event_loop()
atexit.register(_LOOP.close)


def fuzz_chain(data: bytes) -> None:
    """A chain node's answer, read by every method of the chain client through web3."""
    try:
        _CHAIN_NODE.tree = canonical.loads(data)
    except ValueError:
        return
    account, digest = Address(bytes(20)), Hash32(bytes(32))
    for question in (
        _CHAIN.block(),
        _CHAIN.logs(BlockNumber(0), BlockNumber(9), [account]),
        _CHAIN.receipt(digest),
        _CHAIN.balance(account),
        _CHAIN.code(account),
        _CHAIN.call(account, b""),
        _CHAIN.fees(),
    ):
        try:
            _LOOP.run_until_complete(question)
        except (Unavailable, Refused, RpcFailure):
            continue


def _tree() -> tuple[Cid, bytes]:
    """A small directory and its CAR."""
    nodes: list[tuple[Cid, bytes]] = []
    one = build_file([b"x" * 40])
    made = build_directory(
        {b"a": one, b"b": one}, V1_2025, lambda cid, block: nodes.append((cid, block))
    )
    leaf = frame_head(one.cid, 40) + b"x" * 40
    return made.cid, header(made.cid) + b"".join(
        frame_head(cid, len(block)) + block for cid, block in nodes
    ) + leaf + leaf


TREE_ROOT, TREE_CAR = _tree()
SHELL = tar(
    [
        entry("bin", kind=b"5", mode=0o755),
        entry("bin/sh", b"#!"),
        entry("l", kind=b"2", link="bin/sh"),
        entry("bin/.wh.x"),
    ]
)


def image_seed() -> bytes:
    """A small valid archive."""
    return tar(image_entries([SHELL, SHELL], {"Env": ["A=1"], "Labels": {"quorate.python": "3"}}))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "codec": fuzz_codec,
    "frames": fuzz_frames,
    "receipt": fuzz_receipt,
    "job_file": fuzz_job_file,
    "unixfs": fuzz_unixfs,
    "car": fuzz_car,
    "image": fuzz_image,
    "gateway": fuzz_gateway,
    "chain": fuzz_chain,
    "sealed": fuzz_sealed,
    **{name: target for name, (target, _) in {**OUTER, **ASKED}.items()},
}
"""By the names that `python -m fuzz.guided` takes; `planted` comes in addition."""
