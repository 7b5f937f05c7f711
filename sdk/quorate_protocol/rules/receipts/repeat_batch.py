"""The batch of a receipt in which members of the accepted group repeat a job (PROTOCOL §5 Faults).

It is the last batch, and no beacon round draws it. Its CommitSet names no slots of a draw but the
places of the executions that are repeated, in the order of its entries.
"""

from collections.abc import Iterator

from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.messages.signed import CommitSet
from quorate_protocol.rules.confirmation import REPEATS

BATCHES_MAX = EXECUTIONS_MAX + 1
ALL_EXECUTIONS_MAX = EXECUTIONS_MAX + REPEATS


def is_repeat(batch: CommitSet) -> bool:
    """Whether a batch's executions repeat earlier ones."""
    return batch.batch > 0 and batch.beacon_round == 0


def drawn_batches(receipt: Receipt) -> int:
    """Returns the number of batches whose executions count for the result. A repeat follows them.

    Only the last batch may be a repeat. `checks` refuses any other, and their rules refuse it too.
    """
    count = len(receipt.batches)
    return count - (count > 1 and is_repeat(receipt.batches[-1].message))


def drawn_executions(receipt: Receipt) -> int:
    """Returns the number of executions that count for the result."""
    drawn = receipt.batches[: drawn_batches(receipt)]
    return sum(len(batch.message.ordered) for batch in drawn)


def checks(receipt: Receipt) -> Iterator[Check]:
    """Yields the checks of a repeat: who repeats what, once the other batches were closed."""
    number, first = drawn_batches(receipt), drawn_executions(receipt)
    if number == len(receipt.batches):
        return
    message, before = receipt.batches[number].message, receipt.batches[number - 1].message
    repeated = message.slots
    members = receipt.executions[first:]
    is_theirs = len(repeated) == len(members) and all(
        place < first
        and receipt.executions[place].assignment.message.provider
        == item.assignment.message.provider
        for place, item in zip(repeated, members, strict=True)
    )
    yield Check(
        "repeat:members",
        is_theirs and len(set(repeated)) == len(repeated) and 0 < len(repeated) <= REPEATS,
        f"one or {REPEATS} providers repeat an execution of their own each",
    )
    yield Check(
        "repeat:draw",
        message.audit_ppm == before.audit_ppm
        and not receipt.exhausted_by
        and all(skip.batch < number for skip in receipt.skips),
        "a repeat has no draw: the rate of the job, no skips, and no draw after it",
    )
