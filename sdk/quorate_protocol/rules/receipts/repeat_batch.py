"""The batches of a receipt in which members of a group repeat the job (PROTOCOL §5 Faults).

No beacon round draws them. Their CommitSets name no slots of a draw but the places of the
executions that are repeated, in the order of their entries.
"""

from collections.abc import Iterator

from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.messages.signed import CommitSet
from quorate_protocol.rules.confirmation import REPEATS

ALL_EXECUTIONS_MAX = 2 * EXECUTIONS_MAX  # each is repeated once at most


def is_repeat(batch: CommitSet) -> bool:
    return batch.batch > 0 and batch.beacon_round == 0


def drawn_batches(receipt: Receipt) -> list[int]:
    return [number for number, batch in enumerate(receipt.batches) if not is_repeat(batch.message)]


def drawn_executions(receipt: Receipt) -> list[int]:
    batches = (batch.message for batch in receipt.batches)
    repeats = [is_repeat(batch) for batch in batches for _ in batch.ordered]
    return [place for place, again in enumerate(repeats) if not again]


def checks(receipt: Receipt) -> Iterator[Check]:
    """Yields the checks of each repeat: who repeats what, once the batches before were closed."""
    drawn, ran, first = set(drawn_executions(receipt)), receipt.executions, 0
    repeated: list[int] = []
    for number, batch in enumerate(receipt.batches):
        message, start = batch.message, first
        first += len(message.ordered)
        if number not in drawn_batches(receipt):
            places, members = message.slots, ran[start:first]
            repeated += places
            is_theirs = len(places) == len(members) and all(
                place in drawn
                and place < start
                and ran[place].assignment.message.provider == item.assignment.message.provider
                for place, item in zip(places, members, strict=True)
            )
            yield Check(
                f"repeat:members[{number}]",
                is_theirs and len(set(repeated)) == len(repeated) and 0 < len(places) <= REPEATS,
                f"one or {REPEATS} providers repeat an execution of their own each, once",
            )
            yield Check(
                f"repeat:draw[{number}]",
                message.audit_ppm == receipt.batches[0].message.audit_ppm
                and all(skip.batch != number for skip in receipt.skips),
                "a repeat has no draw: the rate of the job, and no skips",
            )
