"""CARs from strangers: valid ones of every shape are read, and hostile or mutated ones are
refused.
"""

import io
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorate_content.dag.car import frame_head, header, read_car, write_car
from quorate_content.dag.cid import Cid, Codec, node_cid, raw_cid
from quorate_content.dag.content_limits import BadSource, Bounds
from quorate_content.dag.dagpb import (
    DIRECTORY_DATA,
    Link,
    decode_node,
    encode_node,
    file_data,
    hamt_data,
)
from quorate_content.dag.disk_tree import (
    LocalBlocks,
    Nodes,
    TreeWriter,
    build_path,
    cid_of_path,
    keep_nodes,
)
from quorate_content.dag.unixfs import V0_2015, V1_2025, Profile, build_directory, build_file
from quorate_content.dag.varint import encode_varint
from quorate_content.dag.walk import DagWalk, NullSink
from quorate_protocol.refusals import Code, Refused

SMALL = Profile("small", 1024, 4, 1, True, True, shard_above_bytes=2000)
LEAF = bytes(1024)


class Dag:
    """Blocks in memory."""

    def __init__(self) -> None:
        self.blocks: dict[Cid, bytes] = {}

    def raw(self, data: bytes) -> Cid:
        cid = raw_cid(data)
        self.blocks[cid] = data
        return cid

    def node(self, links: list[Link], data: bytes) -> Cid:
        block = encode_node(links, data)
        self.blocks[node_cid(block)] = block
        return node_cid(block)

    def file(self, data: bytes) -> Cid:
        chunks = [
            data[at : at + SMALL.chunk_bytes] for at in range(0, len(data), SMALL.chunk_bytes)
        ]
        for chunk in chunks:
            self.raw(chunk)
        return build_file(chunks, SMALL, lambda cid, block: self.blocks.update({cid: block})).cid

    def order(self, root: Cid, repeats: bool = True) -> list[tuple[Cid, bytes]]:
        found: list[tuple[Cid, bytes]] = []
        self._visit(root, repeats, set(), found)
        return found

    def _visit(
        self, cid: Cid, repeats: bool, done: set[Cid], found: list[tuple[Cid, bytes]]
    ) -> None:
        if cid in done and not repeats:
            return
        done.add(cid)
        found.append((cid, self.blocks[cid]))
        if cid.codec is Codec.DAG_PB:
            for link in decode_node(self.blocks[cid], Bounds()).links:
                self._visit(link.cid, repeats, done, found)


def car(root: Cid, blocks: list[tuple[Cid, bytes]]) -> bytes:
    return header(root) + b"".join(frame_head(cid, len(block)) + block for cid, block in blocks)


def unpack(raw: bytes, root: Cid, target: Path, bounds: Bounds | None = None) -> None:
    bounds = bounds or Bounds()
    writer = TreeWriter(target, bounds)
    try:
        read_car(io.BytesIO(raw), DagWalk(root, writer, bounds), bounds, writer.known, writer.seen)
    finally:
        writer.abandon()


DATA = random.Random(7).randbytes(20 * 1024 + 77)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("data", [DATA, bytes(9 * 1024), b"", b"x"])
def test_a_file_survives_a_round_trip(tmp_path: Path, data: bytes, repeats: bool) -> None:
    dag = Dag()
    root = dag.file(data)
    if not data:
        dag.raw(b"")
    unpack(car(root, dag.order(root, repeats)), root, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data


def make_tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "ünï côde 𝄞").write_bytes(DATA)
    (root / "a b").write_bytes(b"")
    (root / "back\\slash").write_bytes(b"x" * 5000)
    for index in range(200):
        (root / f"file-{index}").write_bytes(b"same")


@pytest.mark.parametrize("profile", [V1_2025, V0_2015, SMALL], ids=lambda profile: profile.name)
def test_a_directory_survives_a_round_trip_in_every_profile(
    tmp_path: Path, profile: Profile
) -> None:
    make_tree(tmp_path / "in")
    nodes: Nodes = {}
    root = build_path(tmp_path / "in", profile, keep_nodes(nodes), None, Bounds()).cid
    blocks = LocalBlocks(tmp_path / "in", nodes)
    raw = b"".join(map(bytes, write_car(DagWalk(root, NullSink(), Bounds()), root, blocks.supply)))
    unpack(raw, root, tmp_path / "out")
    assert cid_of_path(tmp_path / "out") == cid_of_path(tmp_path / "in")
    assert raw == b"".join(
        map(
            bytes,
            write_car(
                DagWalk(root, NullSink(), Bounds()),
                root,
                LocalBlocks(tmp_path / "out", nodes).supply,
            ),
        )
    )
    assert (tmp_path / "out" / "a b").stat().st_mode & 0o777 == 0o444


Case = tuple[bytes, Cid, Bounds]


def good() -> tuple[Dag, Cid, list[tuple[Cid, bytes]]]:
    dag = Dag()
    root = dag.file(DATA)
    return dag, root, dag.order(root)


def of_blocks(change: Callable[[list[tuple[Cid, bytes]]], list[tuple[Cid, bytes]]]) -> Case:
    _, root, blocks = good()
    return car(root, change(blocks)), root, Bounds()


def of_bytes(change: Callable[[bytes], bytes]) -> Case:
    _, root, blocks = good()
    return change(car(root, blocks)), root, Bounds()


def of_dag(dag: Dag, root: Cid, bounds: Bounds | None = None) -> Case:
    return car(root, dag.order(root)), root, bounds or Bounds()


def flipped(raw: bytes) -> bytes:
    return raw[:-40] + bytes((raw[-40] ^ 1,)) + raw[-39:]


def bomb() -> Case:
    dag = Dag()
    child, size = dag.raw(LEAF), len(LEAF)
    for _ in range(6):
        child, size = (
            dag.node([Link(child, b"", size)] * 1000, file_data([size] * 1000)),
            size * 1000,
        )
    return car(child, [(child, dag.blocks[child])]), child, Bounds(bytes_max=1 << 33)


def empty_bomb() -> Case:
    dag = Dag()
    child = dag.node([], file_data([]))
    for _ in range(10):
        child = dag.node([Link(child, b"", 0)] * 1000, file_data([0] * 1000))
    return car(child, [(child, dag.blocks[child])]), child, Bounds()


def lying_parent(declared: int, inner: bool) -> Case:
    dag = Dag()
    leaf = dag.raw(LEAF)
    child = dag.node([Link(leaf, b"", 1024)] * 3, file_data([1024] * 3)) if inner else leaf
    return of_dag(dag, dag.node([Link(child, b"", declared)], file_data([declared])))


def contradicting() -> Case:
    dag = Dag()
    leaf = dag.raw(LEAF)
    return of_dag(
        dag,
        dag.node(
            [Link(leaf, b"", 1024)],
            b"\x08\x02\x18" + encode_varint(999) + b"\x20" + encode_varint(1024),
        ),
    )


def chain(depth: int) -> Case:
    dag = Dag()
    child = dag.raw(LEAF)
    for _ in range(depth):
        child = dag.node([Link(child, b"", 1024)], file_data([1024]))
    return of_dag(dag, child)


def wide() -> Case:
    dag = Dag()
    leaf = dag.raw(b"x")
    root = dag.node([Link(leaf, b"", 1)] * 20_000, file_data([1] * 20_000))
    return car(root, [(root, dag.blocks[root])]), root, Bounds()


def foreign_hash(raw_link_cid: bytes) -> Case:
    body = b"\x0a" + encode_varint(len(raw_link_cid)) + raw_link_cid + b"\x12\x00\x18\x05"
    block = b"\x12" + encode_varint(len(body)) + body + encode_node([], file_data([5]))
    return car(node_cid(block), [(node_cid(block), block)]), node_cid(block), Bounds()


def directory(*names: bytes, data: bytes = DIRECTORY_DATA) -> Case:
    dag = Dag()
    leaf = dag.raw(b"x")
    root = dag.node([Link(leaf, name, 1) for name in names], data)
    return car(root, [(root, dag.blocks[root]), *[(leaf, b"x")] * len(names)]), root, Bounds()


def symlink() -> Case:
    dag = Dag()
    link = dag.node([], b"\x08\x04\x12\x0b/etc/passwd")
    return of_dag(dag, dag.node([Link(link, b"innocent", 1)], DIRECTORY_DATA))


def deep_directories(depth: int) -> Case:
    dag = Dag()
    child = dag.node([], DIRECTORY_DATA)
    for _ in range(depth):
        child = dag.node([Link(child, b"d", 1)], DIRECTORY_DATA)
    return of_dag(dag, child)


def directory_bomb() -> Case:
    dag = Dag()
    child = dag.node([], DIRECTORY_DATA)
    for _ in range(8):
        child = dag.node([Link(child, b"%d" % index, 1) for index in range(10)], DIRECTORY_DATA)
    return car(child, dag.order(child, repeats=False)), child, Bounds(entries_max=2000)


def garbage_node() -> Case:
    block = b"\x12\xff\xff\xff\xff\x0fxx"
    return car(node_cid(block), [(node_cid(block), block)]), node_cid(block), Bounds()


def big_block() -> Case:
    data = bytes(3 << 20)
    return car(raw_cid(data), [(raw_cid(data), data)]), raw_cid(data), Bounds()


ROOT = raw_cid(b"root")
HOSTILE: dict[str, Callable[[], Case]] = {
    "bit flip": lambda: of_bytes(flipped),
    "cut in a block": lambda: of_bytes(lambda raw: raw[:-100]),
    "cut between blocks": lambda: of_blocks(lambda blocks: blocks[:-3]),
    "empty body": lambda: of_bytes(lambda raw: b""),
    "header only": lambda: of_blocks(lambda blocks: []),
    "error page": lambda: of_bytes(
        lambda raw: b"<html><body>504 Gateway Timeout</body></html>" * 4
    ),
    "swapped blocks": lambda: of_blocks(lambda blocks: [blocks[0], *blocks[2:], blocks[1]]),
    "foreign block": lambda: of_blocks(
        lambda blocks: [blocks[0], (raw_cid(b"evil"), b"evil"), *blocks[1:]]
    ),
    "block of 3 MiB": big_block,
    "length of 2^62": lambda: (header(ROOT) + encode_varint(1 << 62) + b"x", ROOT, Bounds()),
    "endless length": lambda: (header(ROOT) + b"\xff" * 20, ROOT, Bounds()),
    "header of 2^30": lambda: (encode_varint(1 << 30) + b"x", ROOT, Bounds()),
    "CAR version 2": lambda: (b"\x0a\xa1\x67version\x02", ROOT, Bounds()),
    "frame without a CID": lambda: (header(ROOT) + b"\x28" + b"z" * 40, ROOT, Bounds()),
    "zip bomb": bomb,
    "bomb of nothing": empty_bomb,
    "parent lies about a subtree": lambda: lying_parent(10, True),
    "parent lies about a leaf": lambda: lying_parent(10, False),
    "parent claims too much": lambda: lying_parent(4096, False),
    "file size contradicts": contradicting,
    "chain of 40": lambda: chain(40),
    "20,000 links": wide,
    "keccak leaf": lambda: foreign_hash(b"\x01\x55\x1b\x20" + bytes(32)),
    "sha1 leaf": lambda: foreign_hash(b"\x01\x55\x11\x14" + bytes(20)),
    "identity leaf of 129 bytes": lambda: foreign_hash(b"\x01\x55\x00\x81\x01" + b"A" * 129),
    "garbage node": garbage_node,
    "shard that is none": lambda: directory(b"00name", data=b"\x08\x05"),
    "shard with a fanout of 2^20": lambda: directory(b"00000name", data=hamt_data(1, 1 << 20)),
    "shard whose bits contradict": lambda: directory(b"00a", b"01b", data=hamt_data(1, 256)),
    "shard without a bucket": lambda: directory(b"0", data=hamt_data(1, 256)),
    "name ..": lambda: directory(b".."),
    "name .": lambda: directory(b"."),
    "no name": lambda: directory(b""),
    "name with a slash": lambda: directory(b"../escape"),
    "absolute name": lambda: directory(b"/etc/passwd"),
    "name with NUL": lambda: directory(b"a\0b"),
    "name with escape": lambda: directory(b"a\x1b[2Jb"),
    "name of 256 bytes": lambda: directory(b"n" * 256),
    "name not UTF-8": lambda: directory(b"\xff\xfe"),
    "name twice": lambda: directory(b"a", b"a"),
    "name twice in a shard": lambda: directory(b"00a", b"01a", data=hamt_data(3, 256)),
    "shard with a bad name": lambda: directory(b"00..", data=hamt_data(1, 256)),
    "symbolic link": symlink,
    "metadata node": lambda: directory(data=b"\x08\x03"),
    "unknown type": lambda: directory(data=b"\x08\x09"),
    "100 levels": lambda: deep_directories(100),
    "directory bomb": directory_bomb,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_car_is_refused_at_once(tmp_path: Path, name: str) -> None:
    raw, root, bounds = HOSTILE[name]()
    (tmp_path / "inside").mkdir()
    start = time.process_time()
    with pytest.raises(Refused) as refused:
        unpack(raw, root, tmp_path / "inside" / "out", bounds)
    assert refused.value.code in (Code.MALFORMED, Code.OVERSIZE)
    assert time.process_time() - start < 5
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


def test_a_wrong_root_in_the_header_is_ignored(tmp_path: Path) -> None:
    _, root, blocks = good()
    unpack(car(raw_cid(b"other"), blocks), root, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == DATA


def test_file_cannot_be_written_through_a_link(tmp_path: Path) -> None:
    _, root, blocks = good()
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    with pytest.raises((Refused, OSError)):
        unpack(car(root, blocks), root, tmp_path / "out")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def mutations(raw: bytes, count: int) -> Iterator[bytes]:
    chance = random.Random(1)
    for _ in range(count):
        changed = bytearray(raw)
        for _ in range(chance.randint(1, 3)):
            kind, at = chance.random(), chance.randrange(len(changed))
            if kind < 0.6:
                changed[at] ^= 1 << chance.randrange(8)
            elif kind < 0.8:
                del changed[at : at + chance.randrange(1, 50)]
            else:
                changed[at:at] = chance.randbytes(chance.randrange(1, 50))
        yield bytes(changed)


class Collect(NullSink):
    """A file's bytes in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, path: tuple[bytes, ...], offset: int, data: bytes | memoryview) -> None:
        self.data[offset : offset + len(data)] = data


def test_mutated_cars_are_refused_or_right() -> None:
    _, root, blocks = good()
    bounds, refused = Bounds(block_bytes_max=4096), 0
    for raw in mutations(car(root, blocks), 2000):
        sink = Collect()
        try:
            read_car(io.BytesIO(raw), DagWalk(root, sink, bounds), bounds)
        except Refused:
            refused += 1
        else:
            assert bytes(sink.data) == DATA
    assert refused > 1900


def test_writer_notices_a_file_that_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(3 << 20))
    nodes: Nodes = {}
    root = build_path(tmp_path / "file", V1_2025, keep_nodes(nodes), None, Bounds()).cid
    with open(tmp_path / "file", "r+b") as file:
        file.seek(2 << 20)
        file.write(b"changed")
    with pytest.raises(BadSource):
        list(
            write_car(
                DagWalk(root, NullSink(), Bounds()),
                root,
                LocalBlocks(tmp_path / "file", nodes).supply,
            )
        )


def test_sharded_directory_round_trips_through_blocks() -> None:
    file = build_file([b"x"], SMALL)
    shards: list[bytes] = []
    build_directory(
        {b"name-%d" % index: file for index in range(300)},
        SMALL,
        lambda _, block: shards.append(block),
    )
    assert len(shards) > 1
    assert all(decode_node(block, Bounds()).fanout == 256 for block in shards)
