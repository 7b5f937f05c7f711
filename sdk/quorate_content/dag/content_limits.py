"""Bounds on content from strangers, and the errors for content that breaks them.

The numbers come from tests with hostile content. Ordinary trees made by Kubo, Helia or Quorate stay
far below each bound.
"""

from dataclasses import dataclass

from quorate_protocol.limits import TREE_ENTRIES_MAX
from quorate_protocol.refusals import Code, Refused, Unavailable

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a DAG may be. `bytes_max` counts the bytes of all files. The other bounds limit
    memory, CPU time and open files.
    """

    bytes_max: int = 1 << 40
    block_bytes_max: int = 2 * MIB
    nodes_max: int = 1 << 20  # number of blocks read
    # total of dag-pb nodes, which stay in memory: about 51 kB per GiB of file
    node_bytes_max: int = 64 * MIB
    # total of node bytes beside file data, counted at each visit
    node_visits_bytes_max: int = 1 << 30
    links_max: int = 1 << 14
    file_depth_max: int = 12
    directory_depth_max: int = 64
    entries_max: int = TREE_ENTRIES_MAX
    name_bytes_max: int = 255
    # Of a path below the root. Linux takes 4,095 bytes, and the folder that holds the tree needs
    # some of them.
    path_bytes_max: int = 2048
    fanout_max: int = 1024


class AbsentEverywhere(Unavailable):
    """Every source has said definitely that it does not have the content."""


class BadSource(Refused):
    """The source sent something other than what was asked for. Another source may have the right
    bytes.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(Code.MALFORMED, detail)


class TruncatedSource(BadSource):
    """The source stopped too early. What it sent is right, and it may send the rest later."""


class DiskFull(Unavailable):
    """The disk is full, so another source would not help. Verified data stays for later."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the disk is full: {detail}", retry_after=60.0)


class StoreFull(Refused):
    """The store is full, and accounts with an equal or better claim need everything in it."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.QUOTA, detail)


def malformed(detail: str) -> Refused:
    """A refusal for content that breaks a rule although its hash is right: no other source can
    help.
    """
    return Refused(Code.MALFORMED, detail)


def oversize(what: str, limit: int) -> Refused:
    return Refused(Code.OVERSIZE, f"{what}: at most {limit}")
