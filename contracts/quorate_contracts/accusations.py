"""What a receipt offers to the court: a wrong result, and one that contradicts it. Pure."""

from collections import Counter

from quorate_contracts.court_facts import CaseEvidence, RunEvidence
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.limits import JURORS, Limits
from quorate_protocol.messages.commitment import assignment_id, result_digest
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, ExecutionEvidence, Receipt
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.settlement import pay_of
from quorate_protocol.units import (
    KILLED,
    Address,
    Amount,
    Comparator,
    Hash32,
    Milliseconds,
    UnixSeconds,
)


def read_receipt(content: bytes) -> Receipt:
    tree = canonical.parse(content, RECEIPT_BYTES_MAX + 1024)
    if isinstance(tree, dict) and "body" in tree:
        tree = tree["body"]
    return canonical.from_json(Receipt, tree)


def case_of(
    receipt: Receipt, domain: Domain, limits: Limits, now: UnixSeconds, accused: Address | None
) -> CaseEvidence:
    """Returns the execution to accuse and its contradiction.

    Without `accused` it is the one whose result fewest owners gave. Raises Refused if the court
    would not hear it, or if the receipt does not say whose result is wrong.
    """
    order = receipt.order.message
    if order.comparator is not Comparator.EXACT or not order.caseable:
        raise Refused(
            Code.UNSUPPORTED, "its order is not exact and caseable, so no jury repeats it"
        )
    runs = [
        run for run in receipt.executions if run.reveal and run.reveal.exit_status not in KILLED
    ]
    counts = Counter(map(_result, runs))
    if len(counts) < 2:
        raise Refused(Code.UNKNOWN, "all executions that a jury can repeat have one result")
    likely, most = counts.most_common(1)[0]
    wrong = [run for run in runs if _is_wrong(run, counts, most, likely, accused)]
    if not wrong:
        told = "it does not say whose result is wrong: name --provider"
        raise Refused(
            Code.UNKNOWN, told if accused is None else "this provider gave no other result in it"
        )
    run = min(wrong, key=lambda each: counts[_result(each)])
    other = _contradiction(run, runs, counts)
    last = run.assignment.message.accept_by + run.assignment.message.max_duration
    if run.assignment.message.max_duration > limits.case_duration_max:
        raise Refused(Code.UNSUPPORTED, "it may run for longer than a jury repeats")
    if now > last + limits.case_evidence_age:
        raise Refused(Code.TOO_LATE, "the court heard of it until its evidence was too old")
    shown = _shown(receipt, domain, run), _shown(receipt, domain, other)
    return CaseEvidence(receipt.session, receipt.order, *shown)


def least_pay(case: CaseEvidence, limits: Limits) -> Amount:
    """Returns the least that a juror gets beside its gas."""
    assignment = case.run.assignment.message
    whole = Milliseconds(assignment.max_duration * 1000)
    return max(limits.jury_pay_min, pay_of(case.order.message, assignment, whole))


def burned(pay: Amount, limits: Limits) -> Amount:
    return Amount(JURORS * (pay + limits.jury_gas_fee))


def _is_wrong(
    run: ExecutionEvidence,
    counts: "Counter[Hash32]",
    most: int,
    likely: Hash32,
    accused: Address | None,
) -> bool:
    if accused is not None:
        return run.assignment.message.provider == accused
    return _result(run) != likely and counts[_result(run)] < most


def _contradiction(
    run: ExecutionEvidence, runs: list[ExecutionEvidence], counts: "Counter[Hash32]"
) -> ExecutionEvidence:
    """Returns another owner's execution of the same class, of the result that most gave."""
    owner, kind = run.assignment.message.provider, run.commit.message.class_id
    found = [
        each
        for each in runs
        if each.assignment.message.provider != owner
        and each.commit.message.class_id == kind
        and _result(each) != _result(run)
    ]
    if not found:
        raise Refused(Code.UNKNOWN, "no other owner of its class gave another result")
    return max(found, key=lambda each: counts[_result(each)])


def _shown(receipt: Receipt, domain: Domain, run: ExecutionEvidence) -> RunEvidence:
    hashed, job_id = digest(domain, run.assignment.message), receipt.ack.message.job_id
    for batch in receipt.batches:
        entries = zip(batch.message.ordered, batch.message.blinds, strict=False)
        for entry, blind in entries:
            is_it = entry.assignment_hash == hashed
            named = run.assignment.message.assignment_id
            if is_it and assignment_id(job_id, run.index, blind) == named:
                return RunEvidence(run.index, blind, run.assignment, run.commit)
    raise Refused(Code.DOES_NOT_OPEN, "the receipt does not open an assignment of its job")


def _result(run: ExecutionEvidence) -> Hash32:
    assert run.reveal is not None, "only revealed executions are compared"
    return result_digest(run.reveal.exit_status, run.reveal.output_digest)
