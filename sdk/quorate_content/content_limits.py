"""Every bound on content that strangers made, once, and the error for a source that sent
something wrong.

Source of the numbers: the hostile-content cases; a legitimate Kubo, Helia or Quorate tree stays
far below each of them.
"""

from dataclasses import dataclass

from quorate_protocol.refusals import Code, Refused, Unavailable

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a DAG may be. `bytes_max` counts the bytes of all files; the rest holds memory,
    CPU time and descriptors down.
    """

    bytes_max: int = 1 << 40
    block_bytes_max: int = 2 * MIB
    nodes_max: int = 1 << 20  # blocks visited
    node_bytes_max: int = (
        64 * MIB
    )  # dag-pb nodes, which are held in memory; about 51 kB per GiB of file
    node_visits_bytes_max: int = (
        1 << 30
    )  # what stands in nodes beside file data, each time that one is visited
    links_max: int = 1 << 14
    file_depth_max: int = 12
    directory_depth_max: int = 64
    entries_max: int = 100_000
    name_bytes_max: int = 255
    fanout_max: int = 1024


class BadSource(Refused):
    """What was sent is not what was asked for: another source may still have the right bytes."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.MALFORMED, detail)


class Cut(BadSource):
    """What was sent ended too early; what came so far is right, and the same source may send the
    rest.
    """


class DiskFull(Unavailable):
    """There is no space; asking another source would not help. What is verified stays for a
    later attempt.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(f"the disk is full: {detail}", retry_after=60.0)


class StoreFull(Refused):
    """Everything in the store is needed by somebody with as good a claim."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.QUOTA, detail)


def malformed(detail: str) -> Refused:
    """The content itself (its hash is right) breaks a rule: no other source can help."""
    return Refused(Code.MALFORMED, detail)


def oversize(what: str, limit: int) -> Refused:
    """The content is larger than a bound."""
    return Refused(Code.OVERSIZE, f"{what}: at most {limit}")
