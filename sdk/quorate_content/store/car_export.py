"""Writes the CAR of a stored object."""

from collections.abc import Iterator
from pathlib import Path

from quorate_content.dag.car import write_car
from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import MIB, Bounds
from quorate_content.dag.disk_tree import LocalBlocks, Nodes
from quorate_content.dag.walk import DagWalk, ExpectedBlock, NullSink, Role, TreePath


def car_pieces(
    cid: Cid,
    path: Path,
    nodes: Nodes,
    from_byte: int = 0,
    only_root: bool = False,
    from_entry: TreePath = (),
) -> Iterator[bytes]:
    """Yields the object's CAR in pieces of about 1 MiB. Blocks are not hashed again, because every
    reader hashes them.

    `from_entry` leaves out the entries before that one, without reading them.
    """
    sought = from_entry

    def wanted(expected: ExpectedBlock) -> bool:
        nonlocal sought
        if sought and expected.role is Role.ENTRY:
            if expected.path != sought[: len(expected.path)]:
                return False
            sought = sought if len(expected.path) < len(sought) else ()
        if only_root and (expected.path or expected.role is not Role.ENTRY):
            return False
        return (
            expected.path != ()
            or expected.size is None
            or expected.offset + expected.size > from_byte
        )

    blocks = LocalBlocks(path, nodes)
    pending = bytearray()
    try:
        for piece in write_car(
            DagWalk(cid, NullSink(), Bounds()), cid, blocks.supply, wanted, trusts_supply=True
        ):
            pending += piece
            if len(pending) >= MIB:
                yield bytes(pending)
                pending.clear()
        if pending:
            yield bytes(pending)
    finally:
        blocks.close()
