"""Who pays what, computed again from one receipt (PROTOCOL §4 Outputs and pay)."""

from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.rules import settlement
from quorate_protocol.rules.agreement import EXACT, Agreement, within
from quorate_protocol.rules.receipts.receipt_draws import was_held
from quorate_protocol.rules.receipts.repeat_batch import is_repeat
from quorate_protocol.rules.settlement import Bill, Ran
from quorate_protocol.units import Amount, Comparator, Hash32, Outcome


def bill_of(receipt: Receipt) -> Bill:
    first = len(receipt.batches[0].message.ordered)
    order, ack = receipt.order.message, receipt.ack.message
    is_billed = settlement.is_audit_billed(order, ack.rule, receipt.witness is not None, first)
    return settlement.bill(
        order,
        ack,
        receipt.verdict.message,
        ran_of(receipt),
        is_billed,
        len(receipt.batches) > 1 and was_held(receipt),
        agreement_of(receipt),
    )


def agreement_of(receipt: Receipt) -> Agreement:
    """What says which results agree. `receipt_outcomes` checks that it is complete."""
    if receipt.compare.comparator is Comparator.EXACT:
        return EXACT
    results = dict(enumerate(map(result_of, receipt.executions)))
    shown = receipt.distances
    known = ((results.get(it.one), results.get(it.other), it.ppb) for it in shown)
    return within(receipt.compare.tolerance_ppm, known)


def paid_by_client(receipt: Receipt) -> dict[Hash32, Amount]:
    """What the client of a checked receipt pays each execution. The held pay of the first one is
    lost if a later verdict leaves it out, or if the market ran out on different results (5.111).
    """
    order, ack, verdict = receipt.order.message, receipt.ack.message, receipt.verdict.message
    ran = ran_of(receipt)
    match verdict.outcome:
        case _ if len(receipt.batches) == 1 or not was_held(receipt):
            is_lost = False
        case Outcome.ACCEPTED:
            is_lost = ran[0].assignment_hash not in verdict.group
        case Outcome.UNRESOLVED:
            agreement = agreement_of(receipt)
            is_lost = not settlement.is_clients_limit(order, ack.fee_bps, ran, agreement)
        case _:
            is_lost = False
    credits = () if is_lost else bill_of(receipt).split.credits
    return {item.assignment_hash: item.amount for item in credits}


def ran_of(receipt: Receipt) -> list[Ran]:
    items = iter(receipt.executions)
    found: list[Ran] = []
    for number, batch in enumerate(receipt.batches):
        is_repeated = number > 0 and is_repeat(batch.message)
        for place in range(len(batch.message.ordered)):
            item = next(items)
            pay = _pay(receipt, item)
            before = found[batch.message.slots[place]].assignment_hash if is_repeated else None
            name = item.commit.message.assignment_hash
            found.append(Ran(name, pay, result_of(item), before, item.commit.message.class_id))
    return found


def result_of(item: ExecutionEvidence) -> Hash32 | None:
    if item.reveal is None:
        return None
    return result_digest(item.reveal.exit_status, item.reveal.output_digest)


def _pay(receipt: Receipt, item: ExecutionEvidence) -> Amount:
    """One execution's pay, from the time that it had, whatever usage it claims."""
    commit, assignment = item.commit.message, item.assignment.message
    by = item.commit_receipt.message.time
    usage = settlement.payable_usage(commit.usage_ms, assignment, by, receipt.timing.accept_within)
    return settlement.pay_of(receipt.order.message, assignment, usage)
