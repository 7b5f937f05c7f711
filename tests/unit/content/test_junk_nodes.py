"""Tests DAGs that cost more than their size.

They have junk fields, empty shards, one large node linked 100,000 times, or an endless CAR.
"""

import io
import time
from dataclasses import replace

import pytest

from quorate_content.dag.car import frame_head, header, read_car
from quorate_content.dag.cid import Cid, node_cid, raw_cid
from quorate_content.dag.content_limits import BadSource, Bounds
from quorate_content.dag.dagpb import (
    DIRECTORY_DATA,
    Link,
    decode_node,
    encode_node,
    file_data,
    hamt_data,
)
from quorate_content.dag.unixfs import V1_2025, build_file
from quorate_content.dag.varint import encode_varint
from quorate_content.dag.walk import DagWalk, NullSink
from quorate_protocol.refusals import Code, Refused

CID = raw_cid(b"x")


def walked(root: Cid, blocks: dict[bytes, bytes], bounds: Bounds) -> DagWalk:
    """Yields every block that the walk expects, as often as it expects it."""
    walk = DagWalk(root, NullSink(), bounds)
    while (expected := walk.expected) is not None:
        walk.feed(blocks[expected.cid.digest])
    return walk


def test_a_block_of_junk_fields_is_refused_at_once() -> None:
    data = b"\x08\x02" + b"\x38\x01" * 500_000
    begun = time.process_time()
    with pytest.raises(Refused) as refused:
        decode_node(encode_node((), data), Bounds())
    assert refused.value.code is Code.OVERSIZE and time.process_time() - begun < 2
    decode_node(
        encode_node((), b"\x08\x02" + b"\x38\x01\x42\x00"), Bounds()
    )  # mode and times are ordinary


@pytest.mark.parametrize("again", [b"\x12\x01a", b"\x18\x01"], ids=["name", "size"])
def test_a_repeated_field_of_a_link_is_refused(again: bytes) -> None:
    body = b"\x0a" + encode_varint(len(bytes(CID))) + bytes(CID) + b"\x12\x01n\x18\x01" + again
    with pytest.raises(Refused):
        decode_node(
            b"\x12" + encode_varint(len(body)) + body + b"\x0a\x02" + DIRECTORY_DATA, Bounds()
        )


def test_an_empty_shard_is_refused() -> None:
    empty = encode_node((), hamt_data(0, 256))
    root = encode_node(
        [Link(node_cid(empty, 1), b"00", 1), Link(node_cid(empty, 1), b"01", 1)],
        hamt_data(0b11, 256),
    )
    blocks = {node_cid(block, 1).digest: block for block in (empty, root)}
    with pytest.raises(Refused) as refused:
        walked(node_cid(root, 1), blocks, Bounds())
    assert "empty shard" in refused.value.detail


def test_a_large_node_counts_at_every_visit() -> None:
    leaf = build_file([b"x"])
    heavy = encode_node(
        [Link(leaf.cid, b"n" * 100_000, 1)], file_data([1])
    )  # a file of one byte that weighs 100 kB
    many = encode_node(
        [Link(node_cid(heavy, 1), b"%d" % number, 1) for number in range(500)], DIRECTORY_DATA
    )
    blocks = {node_cid(block, 1).digest: block for block in (heavy, many)} | {leaf.cid.digest: b"x"}
    with pytest.raises(Refused) as refused:
        walked(node_cid(many, 1), blocks, replace(Bounds(), node_visits_bytes_max=10_000_000))
    assert refused.value.code is Code.OVERSIZE
    assert walked(node_cid(many, 1), blocks, Bounds()).bytes_done == 500


def test_endless_empty_blocks_are_refused() -> None:
    empty = build_file([b""])
    folder = encode_node([Link(empty.cid, b"a", 0), Link(CID, b"b", 1)], DIRECTORY_DATA)
    root = node_cid(folder, 1)
    bounds = replace(Bounds(), bytes_max=10_000, node_bytes_max=10_000)
    car = (
        header(root)
        + frame_head(root, len(folder))
        + folder
        + frame_head(empty.cid, 0) * 2_000
        + frame_head(CID, 1)
        + b"x"
    )
    seen = {root.digest, empty.cid.digest}
    with pytest.raises(BadSource):
        read_car(
            io.BytesIO(car),
            DagWalk(root, NullSink(), bounds),
            bounds,
            None,
            lambda cid: cid.digest in seen,
        )


def test_ordinary_trees_still_pass() -> None:
    nodes: dict[bytes, bytes] = {}
    chunks = [bytes([number]) * 100 for number in range(3)]
    built = build_file(
        chunks,
        replace(V1_2025, chunk_bytes=100, width=2),
        lambda cid, block: nodes.__setitem__(cid.digest, block),
    )
    blocks = nodes | {raw_cid(chunk).digest: chunk for chunk in chunks}
    assert walked(built.cid, blocks, Bounds()).bytes_done == 300
