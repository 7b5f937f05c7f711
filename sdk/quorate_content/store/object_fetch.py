"""Fetches one object into the store's `tmp` folder and resumes earlier attempts. Calls block."""

from pathlib import Path

from quorate_content.dag.car import Progress
from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import (
    LocalBlocks,
    Nodes,
    TreeWriter,
    dump_nodes,
    load_nodes,
    resume_walk,
)
from quorate_content.dag.walk import DagWalk
from quorate_content.store.fetch import Tally, fetch
from quorate_content.store.fetch_order import Source
from quorate_content.store.index import Owner
from quorate_content.store.store_files import StoreFiles
from quorate_content.threads import StopSignal
from quorate_protocol.refusals import Refused


class ObjectFetch:
    """Fetches one object into `tmp/<cid>` and continues what an earlier attempt or process left
    there. Calls block.
    """

    def __init__(
        self,
        files: StoreFiles,
        cid: Cid,
        owner: Owner,
        bounds: Bounds,
        stop: StopSignal,
        tally: Tally,
    ) -> None:
        self._files = files
        self._work = str(cid)
        self._owner = owner
        self._bounds = bounds
        self._stop = stop
        self._tally = tally

    def run(self, root: Cid, sources: tuple[Source, ...], progress: Progress | None) -> None:
        """Fetches what is missing and publishes the object."""
        folder = Path(self._files.work(self._work))
        old_nodes = load_nodes(folder / "nodes", self._bounds)
        with open(folder / "nodes", "wb") as journal:
            journal.write(dump_nodes(old_nodes))  # drops the last entry if a kill cut it
            journal.flush()
            writer = TreeWriter(folder / "tree", self._bounds, self._reserve, resume=True)
            try:
                walk = DagWalk(root, writer, self._bounds)
                self._resume(walk, writer, old_nodes)
                writer.journal = journal
                fetch(root, sources, walk, writer, self._bounds, self._stop, progress, self._tally)
            except Refused:
                self._files.discard(self._work)
                raise
            finally:
                writer.abandon()
        self._files.publish(root, self._work, writer.nodes, walk.bytes_opened, writer.disk_bytes)

    def _resume(self, walk: DagWalk, writer: TreeWriter, nodes: Nodes) -> None:
        """Verifies what an earlier attempt left, where it lies and without a journal of its own."""
        part = LocalBlocks(writer.target, nodes)
        writer.is_replaying = True
        try:
            resume_walk(walk, part, self._stop.check)
        finally:
            part.close()
            writer.is_replaying = False

    def _reserve(self, size: int) -> None:
        self._files.reserve(self._work, self._owner, size)
