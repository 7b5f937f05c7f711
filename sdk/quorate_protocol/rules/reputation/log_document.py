"""The document of a public log: its head, then its lines, one JSON object each (PROTOCOL §7)."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import envelope
from quorate_protocol.messages.envelope import Envelope, Recover
from quorate_protocol.messages.signed import Summary
from quorate_protocol.messages.views import ReputationHead
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.reputation.public_log import LogOf, Reading, read
from quorate_protocol.units import Address, Hash32

LINES_MAX = 1_000_000
LINE_BYTES_MAX = 64 * 1024
HEAD_BYTES_MAX = 4 * 1024


class FoldedLog(Struct, frozen=True):
    """A log whose every line was checked, and what it says of each provider. `roots[n]` is the root
    of its first n lines.
    """

    head: ReputationHead
    trusts: Mapping[Address, Trusts]
    roots: tuple[Hash32, ...]


def head_of(data: bytes) -> ReputationHead:
    try:
        head = canonical.from_json(ReputationHead, canonical.parse(data, HEAD_BYTES_MAX))
    except Refused as refused:
        raise Refused(
            Code.MALFORMED, f"log: its first line is not the head of a log: {refused.detail}"
        ) from refused
    if not 0 <= head.length <= LINES_MAX:
        raise Refused(Code.MALFORMED, f"log: {head.length} lines are more than {LINES_MAX}")
    return head


def folded(
    head: ReputationHead,
    lines: Iterable[bytes],
    recover: Recover,
    pinned: Mapping[int, Hash32] | None = None,
) -> FoldedLog:
    """Checks the lines that follow the head, and folds them. `pinned` as in `public_log.read`.
    Raises Refused, with the number of the line, for a log that is not whole and as it was signed.
    """
    domain = Domain(head.chain_id, head.stakes)
    log_of = LogOf(domain, head.coordinator, head.statement_key, recover)
    pins = {**(pinned or {}), head.length: head.root}
    if pinned and pinned.get(head.length, head.root) != head.root:
        raise Refused(
            Code.MALFORMED, f"log: its root over {head.length} lines is not the one of an Ack"
        )
    roots: list[Hash32] = []

    def told(reading: Reading, line: Summary) -> None:
        roots.append(line.previous_root)

    reading = read(_decoded(lines, head.length), log_of, pins, told)
    if reading.log.root() != head.root:  # a log without lines meets no pin
        raise Refused(Code.MALFORMED, "log: its head names lines, and it has none")
    return FoldedLog(head, reading.trusts, (*roots, reading.log.root()))


def first_difference(one: FoldedLog, other: FoldedLog) -> int | None:
    """Returns the number of the first line that two logs of one coordinator do not share. None if
    the shorter one is the beginning of the longer one.
    """
    common = min(len(one.roots), len(other.roots))
    if one.roots[common - 1] == other.roots[common - 1]:
        return None
    return next(at for at in range(common) if one.roots[at] != other.roots[at]) - 1


def _decoded(lines: Iterable[bytes], length: int) -> Iterator[Envelope[Summary]]:
    for number, line in enumerate(lines):
        if number >= length:
            raise Refused(
                Code.MALFORMED, f"log: line {number} follows a head that names {length} lines"
            )
        try:
            yield envelope.decode(line, Summary)
        except Refused as refused:
            raise Refused(
                Code.MALFORMED, f"log: line {number} cannot be read: {refused.detail}"
            ) from refused
