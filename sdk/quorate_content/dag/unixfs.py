"""Builds UnixFS trees: bytes and directories become blocks and CIDs, by the profiles of IPIP-499.

Does no input or output; memory grows with width × depth. New data always uses `V1_2025`. The older
profile exists because people know data by CIDs that older tools computed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import mmh3

from quorate_content.dag.cid import Cid, node_cid, raw_cid
from quorate_content.dag.content_limits import MIB, malformed
from quorate_content.dag.dagpb import (
    DIRECTORY_DATA,
    Link,
    encode_link,
    encode_node,
    file_data,
    hamt_data,
    leaf_block,
)

Emit = Callable[[Cid, bytes], None]
"""Called with every dag-pb node, children first. Leaves are not emitted, because they are the
file's own bytes.
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a tree is cut into blocks. `estimate_block`: a directory is sharded by the size of its
    block; otherwise by the size of its names and CIDs.
    """

    name: str
    chunk_bytes: int
    width: int
    version: int
    raw_leaves: bool
    estimate_block: bool
    shard_above_bytes: int = 262_144
    fanout: int = 256


V1_2025 = Profile("unixfs-v1-2025", MIB, 1024, 1, True, True)
V0_2015 = Profile("unixfs-v0-2015", MIB // 4, 174, 0, False, False)


@dataclass(frozen=True, slots=True)
class Built:
    """A finished subtree: its CID, its file bytes (0 for a directory), and the size of all its
    blocks.
    """

    cid: Cid
    size: int
    tsize: int


class FileBuilder:
    """Builds a balanced DAG from chunks in order. Every chunk but the last has
    `profile.chunk_bytes` bytes.
    """

    def __init__(self, profile: Profile = V1_2025, emit: Emit | None = None) -> None:
        self._profile, self._emit = profile, emit
        self._levels: list[list[Built]] = [[]]
        self._leaves = 0

    def add(self, chunk: bytes | memoryview) -> None:
        if self._profile.raw_leaves:
            leaf = Built(raw_cid(chunk), len(chunk), len(chunk))
        else:
            block = leaf_block(chunk)
            leaf = Built(node_cid(block, self._profile.version), len(chunk), len(block))
        self._leaves += 1
        self._push(0, leaf)

    def finish(self) -> Built:
        """Returns the root. A file of one chunk is that leaf itself; an empty file is one empty
        leaf.
        """
        if not self._leaves:
            self.add(b"")
        level = 0
        while True:
            row = self._levels[level]
            if level == len(self._levels) - 1 and len(row) == 1:
                return row[0]
            self._levels[level] = []
            if row:
                # A single trailing child is wrapped in a node too. Other tools do so in balanced
                # trees, and the CIDs must agree.
                self._push(level + 1, self._node(row))
            level += 1

    def _push(self, level: int, item: Built) -> None:
        if level == len(self._levels):
            self._levels.append([])
        if len(self._levels[level]) == self._profile.width:
            full, self._levels[level] = self._levels[level], []
            self._push(level + 1, self._node(full))
        self._levels[level].append(item)

    def _node(self, row: list[Built]) -> Built:
        block = encode_node(
            [Link(item.cid, b"", item.tsize) for item in row],
            file_data([item.size for item in row]),
        )
        return _built(
            block,
            sum(item.size for item in row),
            sum(item.tsize for item in row),
            self._profile,
            self._emit,
        )


def build_file(
    chunks: Iterable[bytes | memoryview], profile: Profile = V1_2025, emit: Emit | None = None
) -> Built:
    builder = FileBuilder(profile, emit)
    for chunk in chunks:
        builder.add(chunk)
    return builder.finish()


def cid_of_bytes(data: bytes, profile: Profile = V1_2025) -> Cid:
    view = memoryview(data)
    return build_file(
        (view[at : at + profile.chunk_bytes] for at in range(0, len(view), profile.chunk_bytes)),
        profile,
    ).cid


def build_directory(
    entries: Mapping[bytes, Built], profile: Profile = V1_2025, emit: Emit | None = None
) -> Built:
    """Builds a directory: one node with names sorted by bytes, or a HAMT above the profile's
    threshold.
    """
    links = [Link(built.cid, name, built.tsize) for name, built in sorted(entries.items())]
    if profile.estimate_block:
        estimate = sum(len(encode_link(link)) for link in links) + 2 + len(DIRECTORY_DATA)
    else:
        estimate = sum(len(link.name) + len(bytes(link.cid)) for link in links)
    if estimate > profile.shard_above_bytes:
        hashed = [
            (mmh3.hash64(link.name, 0, signed=False)[0].to_bytes(8, "big"), link) for link in links
        ]
        return _shard(hashed, 0, profile, emit)
    return _built(
        encode_node(links, DIRECTORY_DATA), 0, sum(link.tsize for link in links), profile, emit
    )


def _shard(
    items: list[tuple[bytes, Link]], depth: int, profile: Profile, emit: Emit | None
) -> Built:
    if depth == 8:
        raise malformed("two names of a directory have the same 64-bit hash; rename one")
    buckets: dict[int, list[tuple[bytes, Link]]] = {}
    for item in items:
        buckets.setdefault(item[0][depth], []).append(item)
    bits, links = 0, []
    for bucket in sorted(buckets):
        bits |= 1 << bucket
        prefix, group = b"%02X" % bucket, buckets[bucket]
        if len(group) == 1:
            only = group[0][1]
            links.append(Link(only.cid, prefix + only.name, only.tsize))
        else:
            child = _shard(group, depth + 1, profile, emit)
            links.append(Link(child.cid, prefix, child.tsize))
    return _built(
        encode_node(links, hamt_data(bits, profile.fanout)),
        0,
        sum(link.tsize for link in links),
        profile,
        emit,
    )


def _built(block: bytes, size: int, below: int, profile: Profile, emit: Emit | None) -> Built:
    cid = node_cid(block, profile.version)
    if emit is not None:
        emit(cid, block)
    return Built(cid, size, len(block) + below)
