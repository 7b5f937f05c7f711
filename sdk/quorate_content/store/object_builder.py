"""Builds one object in the store's `tmp` folder from local content or a CAR. Calls block."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quorate_content.dag.car import Progress, read_car
from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import Nodes, TreeWriter, build_path, keep_nodes
from quorate_content.dag.unixfs import V1_2025, Built, FileBuilder
from quorate_content.dag.walk import DagWalk
from quorate_content.store.index import Owner
from quorate_content.store.store_files import StoreFiles
from quorate_content.store.threads import StopSignal, StreamReader


@dataclass(frozen=True, slots=True)
class FinishedObject:
    """A complete tree in `tmp` that is not published yet."""

    cid: Cid
    size: int
    disk_bytes: int  # bytes that it takes on the disk
    nodes: Nodes

    def publish(self, files: StoreFiles, work: str) -> None:
        files.publish(self.cid, work, self.nodes, self.size, self.disk_bytes)


class ObjectBuilder:
    """Builds one object in `tmp` from local content. Calls block. After an error the caller removes
    the folder.
    """

    def __init__(
        self, files: StoreFiles, work: str, owner: Owner, bounds: Bounds, stop: StopSignal
    ) -> None:
        self._files = files
        self._work = work
        self._owner = owner
        self._bounds = bounds
        self._stop = stop

    def copy(self, source: Path, progress: Progress | None = None) -> FinishedObject:
        nodes: Nodes = {}
        writer = self._writer()
        writer.progress = progress
        try:
            built = build_path(source, V1_2025, keep_nodes(nodes), writer, self._bounds)
        finally:
            writer.abandon()
        return FinishedObject(built.cid, writer.total, writer.disk_bytes, nodes)

    def read(self, reader: StreamReader) -> FinishedObject:
        nodes: Nodes = {}
        target = f"{self._files.work(self._work)}/tree"
        with open(target, "xb", buffering=0) as file:
            built = self._copy(reader, file.write, FileBuilder(V1_2025, keep_nodes(nodes)))
        os.chmod(target, 0o444)
        return FinishedObject(built.cid, built.size, built.size, nodes)

    def read_car(self, reader: StreamReader, root: Cid) -> FinishedObject:
        writer = self._writer()
        walk = DagWalk(root, writer, self._bounds)
        try:
            read_car(
                reader, walk, self._bounds, writer.known, writer.seen, lambda _: self._stop.check()
            )
        finally:
            writer.abandon()
        return FinishedObject(root, walk.bytes_opened, writer.disk_bytes, writer.nodes)

    def _copy(
        self, reader: StreamReader, write: Callable[[memoryview], int | None], builder: FileBuilder
    ) -> Built:
        buffer, total = memoryview(bytearray(V1_2025.chunk_bytes)), 0
        while filled := _fill(reader, buffer):
            total += filled
            self._reserve(total)
            builder.add(buffer[:filled])
            written = 0
            while written < filled:
                written += write(buffer[written:filled]) or 0
        return builder.finish()

    def _writer(self) -> TreeWriter:
        return TreeWriter(Path(self._files.work(self._work), "tree"), self._bounds, self._reserve)

    def _reserve(self, size: int) -> None:
        self._stop.check()
        self._files.reserve(self._work, self._owner, size)


def _fill(reader: StreamReader, buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer) and (count := reader.readinto(buffer[filled:])):
        filled += count
    return filled
