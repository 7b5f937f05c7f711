"""Checks the times in a receipt: what came first, and what was over before the coordinator went on.

Providers' and clients' clocks may differ from the coordinator's by `CLOCK_TOLERANCE_SECONDS`.
"""

from collections.abc import Iterator
from itertools import pairwise

from quorate_protocol.limits import DAY
from quorate_protocol.messages.receipt import Check, ExecutionEvidence, Receipt
from quorate_protocol.messages.signed import CommitSet
from quorate_protocol.rules.audit_draw import is_outright
from quorate_protocol.rules.receipts.receipt_draws import is_fast
from quorate_protocol.rules.receipts.repeat_batch import is_repeat
from quorate_protocol.units import Outcome

CLOCK_TOLERANCE_SECONDS = 60
CLOSING_SECONDS_MAX = DAY  # a coordinator that was away signs a CommitSet again that late


def checks(receipt: Receipt) -> Iterator[Check]:
    yield from _order(receipt)
    yield from _executions(receipt)
    yield from _skips(receipt)
    yield from _closings(receipt)


def _order(receipt: Receipt) -> Iterator[Check]:
    acked = receipt.ack.message.ack_time
    session, order = receipt.session.message, receipt.order.message
    yield Check(
        "time:ack",
        acked < session.expires and acked < order.expiry,
        "the Ack is older than the ends of session and order",
    )
    round_of_draw = receipt.batches[0].message.beacon_round if receipt.batches else 0
    yield Check(
        "time:ackRound",
        not round_of_draw or acked < receipt.timing.appears_at(round_of_draw),
        "the Ack is older than the beacon round of the first draw",
    )
    if receipt.witness is not None and round_of_draw:
        appears = receipt.timing.appears_at(round_of_draw)
        yield Check(
            "time:witness",
            receipt.witness.message.time <= appears + CLOCK_TOLERANCE_SECONDS,
            "the witness signed before the round appeared",
        )


def _executions(receipt: Receipt) -> Iterator[Check]:
    timing, acked = receipt.timing, receipt.ack.message.ack_time
    number = 0
    for place, batch in enumerate(receipt.batches):
        closed = batch.message
        drawn_at = timing.appears_at(closed.beacon_round) if closed.beacon_round else acked
        if place > 0 and is_repeat(closed):
            drawn_at = receipt.batches[place - 1].message.closed_at
        for member in range(len(closed.ordered)):
            item = receipt.executions[number]
            sent = item.assignment.message.accept_by - timing.accept_within
            accepted, stored = item.accept.message.time, item.commit_receipt.message.time
            is_primary = place == 0 and member == 0 and not is_fast(receipt)
            yield Check(
                f"time:assignment[{number}]",
                # A primary has less time to accept if its order expires sooner.
                item.assignment.message.accept_by >= acked if is_primary else sent >= drawn_at,
                "the assignment is younger than Ack, round, or what it repeats",
            )
            yield Check(
                f"time:accept[{number}]",
                sent - CLOCK_TOLERANCE_SECONDS <= accepted <= item.assignment.message.accept_by,
                "the provider accepted within the assignment's time",
            )
            yield Check(
                f"time:commit[{number}]",
                sent - CLOCK_TOLERANCE_SECONDS <= stored <= closed.closed_at,
                "the coordinator had the commit between the assignment and the closing",
            )
            number += 1


def _skips(receipt: Receipt) -> Iterator[Check]:
    timing = receipt.timing
    for number, skip in enumerate(receipt.skips):
        if skip.batch < len(receipt.batches):
            closed = receipt.batches[skip.batch].message
            drawn_by, over = closed.beacon_round, closed.closed_at
        else:
            drawn_by, over = receipt.exhausted_by, receipt.verdict.message.time
        accept_by = skip.assignment.message.accept_by
        is_sent = accept_by - timing.accept_within >= timing.appears_at(drawn_by)
        has_declined = skip.decline is not None and is_outright(skip.decline.message)
        yield Check(
            f"time:skip[{number}]",
            is_sent and (has_declined or accept_by < over),
            "the provider was asked after the round, and declined or had its time to accept",
        )


def _closings(receipt: Receipt) -> Iterator[Check]:
    timing, verdict = receipt.timing, receipt.verdict.message
    sets = [batch.message for batch in receipt.batches]
    members = iter(receipt.executions)
    for number, closed in enumerate(sets):
        appears = timing.appears_at(closed.beacon_round) if closed.beacon_round else 0
        due = [
            appears,
            *(next(members).commit_receipt.message.time for _ in closed.ordered),
            *(s.assignment.message.accept_by for s in receipt.skips if s.batch == number),
        ]
        yield Check(
            f"closedAt[{number}]",
            appears <= closed.closed_at <= min(verdict.time, max(due) + CLOSING_SECONDS_MAX),
            f"closed no earlier than beacon round {closed.beacon_round}, before the verdict, and "
            "within a day of the last commit or skip",
        )
    yield Check(
        "time:batches",
        all(
            # A repeat waits for no round, and may follow within the second.
            one.closed_at <= after.closed_at - (not is_repeat(after))
            for one, after in pairwise(sets)
        ),
        "batches are closed one after the other",
    )
    silent = [
        closed.closed_at + timing.reveal_within
        for closed, item in _with_batch(receipt)
        if item.reveal is None
    ]
    yield Check(
        "time:reveals",
        all(verdict.time > due for due in silent),
        "the verdict came after silent providers had their time to reveal",
    )
    is_stop = receipt.stop is not None
    yield Check(
        "stop",
        is_stop == (verdict.outcome is Outcome.LAPSED),
        "a job lapses only by its client's Stop, and only then the Stop is shown",
    )


def _with_batch(receipt: Receipt) -> Iterator[tuple[CommitSet, ExecutionEvidence]]:
    numbers = iter(receipt.executions)
    for batch in receipt.batches:
        for _ in batch.message.ordered:
            yield batch.message, next(numbers)
