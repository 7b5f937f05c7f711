"""Reads a coordinator's public log of Summaries and checks every line (PROTOCOL §7)."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.merkle import Log
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.signed import Summary
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation.fold import Trusts, after_summary
from quorate_protocol.units import Address, Hash32


class Reading(Struct, frozen=True):
    """What the first lines of a log say: its accumulator, and all reputations so far."""

    log: Log = Log()
    trusts: dict[Address, Trusts] = field(default_factory=dict)


class LogOf(Struct, frozen=True):
    """Whose log is read, and how its lines are checked."""

    domain: Domain
    coordinator: Address  # its account
    key: Address  # its statement key
    recover: Recover


def read(
    lines: Iterable[Envelope[Summary]],
    log_of: LogOf,
    pinned: Mapping[int, Hash32] | None = None,
    told: Callable[[Reading, Summary], None] | None = None,
) -> Reading:
    """Checks a whole log from its first line, and folds it.

    `pinned` maps a length to the root that the log must have there; Acks, payrolls and the
    coordinator's head name such roots. `told` gets each line with what the lines up to it say.

    Raises Refused, with the number of the line, for a line that its coordinator did not sign, that
    is not at its place, or that does not follow from the lines before; and for a wrong root.
    """
    pins, log, trusts = dict(pinned or {}), Log(), dict[Address, Trusts]()
    for line in lines:
        log = after_line(log, line, log_of)
        wanted = pins.pop(log.count, None)
        if wanted is not None and wanted != log.root():
            raise Refused(
                Code.MALFORMED,
                f"log: up to line {log.count - 1} its root is not the one that the coordinator "
                f"named for {log.count} lines; one of them was rewritten",
            )
        trusts.update(after_summary(trusts, line.message))
        if told is not None:
            told(Reading(log, trusts), line.message)
    missing = [length for length in pins if length > 0]
    if missing:
        raise Refused(
            Code.MALFORMED,
            f"log: it ends after {log.count} lines, and the coordinator named a root for "
            f"{min(missing)} lines; the lines from {log.count} on were dropped",
        )
    return Reading(log, trusts)


def after_line(log: Log, line: Envelope[Summary], log_of: LogOf) -> Log:
    summary, place = line.message, log.count
    if summary.seq != place:
        raise Refused(
            Code.MALFORMED,
            f"log: line {place} says that it is line {summary.seq}; lines were dropped or swapped",
        )
    if summary.coordinator != log_of.coordinator:
        raise Refused(Code.MALFORMED, f"log: line {place} is of another coordinator's log")
    if not _is_signed(line, log_of):
        raise Refused(
            Code.WRONG_SIGNER,
            f"log: line {place} was rewritten: its signature is not of the statement key "
            f"0x{log_of.key.hex()}",
        )
    if summary.previous_root != log.root():
        raise Refused(
            Code.MALFORMED,
            f"log: line {place} does not follow from the lines before it; line {place - 1} or an "
            f"earlier one was rewritten",
        )
    return log.append(digest(log_of.domain, summary))


def _is_signed(line: Envelope[Summary], log_of: LogOf) -> bool:
    try:
        return signer(log_of.domain, line, log_of.recover) == log_of.key
    except Refused:  # the caller's refusal names the line
        return False
