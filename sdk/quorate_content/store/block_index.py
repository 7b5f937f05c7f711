"""Says in which object an inner block is, so that readers can ask for any block by its own CID.

Only blocks below the root have rows here; roots are in `index.sqlite`. The rows can be computed
again from the objects' nodes, so a damaged file is replaced. One row takes about 100 bytes for a
block of usually 1 MiB. Calls block and are safe from any thread.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quorate_content.dag.cid import Cid, Codec, parse
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import Nodes
from quorate_content.dag.walk import DagWalk, ExpectedBlock, NullSink, Role, TreePath
from quorate_protocol.refusals import Unavailable
from quorate_runtime.durable import SMALL_CACHE
from quorate_runtime.files import private_file

RETRY_SECONDS = 10.0
PLACES_MAX = 8  # of one block that are looked at

SCHEMA = """
create table if not exists root(id integer primary key, cid text not null unique);
create table if not exists block(digest blob, root integer, path blob not null,
  is_entry integer not null, offset integer not null, size integer,
  primary key(digest, root)) without rowid;
create index if not exists block_root on block(root);
"""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block is: in the object `root`, in the file or directory at `path`. `is_entry`: a
    whole file or directory begins with it. `size` is that of a leaf, else None.
    """

    root: Cid
    path: TreePath
    is_entry: bool
    offset: int
    size: int | None

    @property
    def may_be_root(self) -> bool:
        """Whether it can be the root of a walk: a file, a directory, or a part of a sharded one."""
        return self.is_entry or self.size is None

    def expected(self, cid: Cid) -> ExpectedBlock:
        role = Role.ENTRY if self.is_entry else Role.FILE
        return ExpectedBlock(cid, self.path, role, self.offset, self.size)


class BlockIndex:
    """One database file, shared by all processes that use the store."""

    def __init__(self, path: Path) -> None:
        self._guard = threading.Lock()
        try:
            self._base = _open(path)
        except sqlite3.DatabaseError:  # the rows are computed again
            for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                with suppress(FileNotFoundError):
                    name.unlink()
            self._base = _open(path)

    def close(self) -> None:
        with self._guard:
            self._base.close()

    def lacking(self, cids: list[str]) -> list[str]:
        """Returns those of these objects whose blocks are not listed. An object of one raw block
        has none.
        """
        with self._locked():
            known = {str(row[0]) for row in self._base.execute("select cid from root")}
        return [cid for cid in cids if cid not in known and parse(cid).codec == Codec.DAG_PB]

    def add(self, root: Cid, nodes: Nodes) -> None:
        """Lists the inner blocks of an object. Again: does nothing."""
        if root.codec != Codec.DAG_PB:
            return
        with self._locked():
            self._base.execute("begin immediate")
            try:
                found = self._base.execute(
                    "insert or ignore into root(cid) values(?)", (str(root.as_v1()),)
                )
                if found.rowcount:
                    self._base.executemany(
                        "insert or ignore into block values(?, ?, ?, ?, ?, ?)",
                        ((digest, found.lastrowid, *rest) for digest, rest in _rows(root, nodes)),
                    )
                self._base.execute("commit")
            except BaseException:
                self._base.execute("rollback")
                raise

    def forget(self, root: Cid) -> None:
        name = str(root.as_v1())
        if root.codec != Codec.DAG_PB:
            return
        with self._locked():
            query = "delete from block where root in (select id from root where cid = ?)"
            self._base.execute(query, (name,))
            self._base.execute("delete from root where cid = ?", (name,))

    def find(self, cid: Cid) -> tuple[BlockPlace, ...]:
        query = """select root.cid, path, is_entry, offset, size from block
                   join root on root.id = block.root where digest = ? limit ?"""
        with self._locked():
            rows = self._base.execute(query, (cid.digest, PLACES_MAX)).fetchall()
        return tuple(
            BlockPlace(
                parse(root), tuple(path.split(b"/")) if path else (), bool(is_entry), offset, size
            )
            for root, path, is_entry, offset, size in rows
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admits one thread at a time. Raises `Unavailable` if the database fails, as on a full
        disk.
        """
        with self._guard:
            try:
                yield
            except sqlite3.OperationalError as error:
                raise Unavailable(f"the store's list of blocks: {error}", RETRY_SECONDS) from error


def _open(path: Path) -> sqlite3.Connection:
    private_file(path)
    base = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=normal")
    base.execute(SMALL_CACHE)
    base.executescript(SCHEMA)
    return base


def _rows(root: Cid, nodes: Nodes) -> Iterator[tuple[bytes, tuple[bytes, bool, int, int | None]]]:
    """Yields each inner block's columns before and after the root's number."""
    walk = DagWalk(root, NullSink(), Bounds())
    while (expected := walk.expected) is not None:
        if expected.cid.digest != root.digest:
            yield (
                bytes(expected.cid.digest),
                (
                    b"/".join(expected.path),
                    expected.role is Role.ENTRY,
                    expected.offset,
                    expected.size,
                ),
            )
        node = nodes.get(expected.cid.digest) if expected.cid.codec == Codec.DAG_PB else None
        if node is None:
            walk.skip()
        else:
            walk.feed(node, verified=True)
