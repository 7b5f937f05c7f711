"""Checks a receipt's outcome against its reveals: the rule applied to them must give the Verdict.

Under the adaptive rule the decision depends on the providers' trust, which a receipt does not show.
There the checks refuse what no trust could give.
"""

from collections.abc import Iterator, Sequence

from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.rules import confirmation, settlement
from quorate_protocol.rules import verdict as verdicts
from quorate_protocol.rules.receipts.receipt_bill import ran_of, result_of
from quorate_protocol.rules.receipts.receipt_draws import is_audit_wanted
from quorate_protocol.rules.receipts.repeat_batch import drawn_batches
from quorate_protocol.rules.verdict import Accepted, Execution
from quorate_protocol.units import KILLED, PPM_ONE, Hash32, Label, Outcome
from quorate_protocol.values import replace

SUSPICION_MAX_PPM = 200_000
SUSPICION_MIN_PPM = 1_000
UNDECIDED = (Outcome.UNRESOLVED, Outcome.CANNOT_VERIFY)


def checks(receipt: Receipt) -> Iterator[Check]:
    """Yields every check of the outcome."""
    verdict, rule = receipt.verdict.message, receipt.ack.message.rule
    executions = tuple(_executions(receipt))
    yield Check("verdict:label", verdict.label is rule, "label is the Ack's rule")
    yield Check(
        "verdict:rule",
        rule is not Label.NONE
        and (rule is not Label.UNVERIFIED or receipt.order.message.accept_unverified),
        "the order asks for this rule",
    )
    yield Check(
        "verdict:batches",
        verdict.batches == len(receipt.batches) > 0,
        "the receipt has as many batches as the verdict says, and at least one",
    )
    yield Check(
        "verdict:exhausted",
        not receipt.exhausted_by or verdict.outcome in UNDECIDED,
        "an empty draw is shown only where it decides",
    )
    match verdict.outcome:
        case Outcome.ACCEPTED:
            yield from _accepted(receipt, executions)
        case Outcome.LAPSED:
            yield from _lapsed(receipt, executions)
        case Outcome.UNRESOLVED | Outcome.CANNOT_VERIFY:
            yield from _undecided(receipt, executions)


def _executions(receipt: Receipt) -> Iterator[Execution]:
    items = iter(receipt.executions)
    for batch in receipt.batches[: drawn_batches(receipt)]:
        for _ in batch.message.ordered:
            item = next(items)
            yield Execution(
                item.commit.message.assignment_hash,
                item.assignment.message.provider,
                result_of(item),
                is_killed=item.reveal is not None and item.reveal.exit_status in KILLED,
                is_alone=len(batch.message.ordered) == 1,
            )


def _decide(
    receipt: Receipt, executions: Sequence[Execution], is_exhausted: bool
) -> verdicts.Decision:
    order, fee_bps = receipt.order.message, receipt.ack.message.fee_bps
    ran = ran_of(receipt)[: len(executions)]
    return verdicts.decide(
        receipt.ack.message.rule,
        order.verify_tier,
        executions,
        order.max_executions,
        is_exhausted,
        settlement.further_affordable(order, fee_bps, ran),
        is_audit_wanted(receipt),
    )


def _accepted(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    verdict = receipt.verdict.message
    by_hash = {item.assignment_hash: item for item in executions}
    if not set(verdict.group) <= set(by_hash):
        yield Check("verdict:group", False, "a repeat is no member of the group")
        return
    agreed = {by_hash[item].result for item in verdict.group}
    inside = set(verdict.group)
    group = tuple(item.assignment_hash for item in executions if item.assignment_hash in inside)
    outside = [item for item in executions if item.assignment_hash not in inside]
    silent = tuple(
        item.assignment_hash for item in outside if item.result is None and not item.is_alone
    )
    faulted = tuple(
        item.assignment_hash for item in outside if item.result or item.assignment_hash in silent
    )
    repeats = settlement.repeats_in(ran_of(receipt))
    due = faulted if confirmation.is_confirmed(repeats) else silent
    is_all = all(item.assignment_hash in inside for item in executions if item.result in agreed)
    yield Check(
        "verdict:group",
        group == verdict.group
        and verdict.faulted in (faulted, silent)
        and len(agreed) == 1
        and None not in agreed
        and is_all,
        "the group is all that agree, and the faulted are the others",
    )
    yield Check(
        "verdict:confirmed",
        verdict.faulted == due and not confirmation.has_differed(repeats),
        "another result is a fault if, and only if, two of the group repeated their own",
    )
    yield _repeats_of(receipt, set(verdict.group), is_disputed=faulted != silent)
    yield Check(
        "verdict:enough",
        _is_enough(receipt, executions),
        "the rule applied to the reveals accepts this group, and no earlier one",
    )


def _is_enough(receipt: Receipt, executions: tuple[Execution, ...]) -> bool:
    """Whether the rule accepts the group, for any trust of its members."""
    verdict = receipt.verdict.message
    if verdict.label is Label.ADAPTIVE:
        if len(executions) == 1:
            # A provider that ran nothing can claim a kill, so a kill is always audited.
            return not executions[0].is_killed and not is_audit_wanted(receipt)
        return len(verdict.group) >= 2
    decision = _decide(receipt, executions, is_exhausted=False)
    named = isinstance(decision, Accepted) and verdict.group == tuple(
        executions[index].assignment_hash for index in decision.group
    )
    return named and not _was_decided_before(receipt, executions)


def _was_decided_before(receipt: Receipt, executions: tuple[Execution, ...]) -> bool:
    """Whether the batches before the last one were enough. Then no further batch was due, and a
    coordinator that draws one looks for another result.
    """
    count = 0
    for batch in receipt.batches[: drawn_batches(receipt) - 1]:
        count += len(batch.message.ordered)
        if isinstance(_decide(receipt, executions[:count], is_exhausted=False), Accepted):
            return True
    return False


def _repeats_of(receipt: Receipt, group: set[Hash32], is_disputed: bool) -> Check:
    """Checks that a repeat was due, and that members of the group repeated."""
    repeated = {item.repeats for item in ran_of(receipt) if item.repeats}
    return Check(
        "repeat:group",
        not repeated or (is_disputed and repeated <= group),
        "members of the group repeat the job, and only if another result was revealed",
    )


def _lapsed(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    verdict = receipt.verdict.message
    is_alone = (
        len(executions) == 1
        and verdict.group == (executions[0].assignment_hash,)
        and executions[0].result is not None
        and receipt.batches[0].message.beacon_round == 0
    )
    yield Check(
        "verdict:lapsed",
        is_alone and not verdict.faulted,
        "a stopped job has one revealed execution without a draw, and nobody is faulted",
    )


def _undecided(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    verdict = receipt.verdict.message
    yield Check(
        "verdict:empty", not verdict.group and not verdict.faulted, "nobody agrees or is faulted"
    )
    if drawn_batches(receipt) < len(receipt.batches):
        yield from _differed(receipt, executions)
        return
    decision = _decide(receipt, executions, receipt.exhausted_by != 0)
    good = _outcome_of(decision) is verdict.outcome and not _was_decided_before(receipt, executions)
    if receipt.ack.message.rule is Label.ADAPTIVE:
        # So much suspicion that no group is accepted.
        doubted = _decide(
            receipt, _with_suspicion(executions, PPM_ONE, PPM_ONE), receipt.exhausted_by != 0
        )
        is_held = len(executions) == 1 and receipt.exhausted_by != 0
        good = (
            _outcome_of(doubted) is verdict.outcome
            or (is_held and verdict.outcome is Outcome.CANNOT_VERIFY)
        ) and not _is_beyond_doubt(receipt, executions)
    yield Check("verdict:undecided", good, "the rule applied to the reveals decides nothing")


def _differed(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    """Checks a job that ended because a member of the accepted group gave two results."""
    ran = ran_of(receipt)
    results = {item.assignment_hash: item.result for item in executions}
    repeated = {results[item.repeats] for item in ran if item.repeats}
    result = next(iter(repeated))
    group = [item for item in executions if item.result == result]
    is_one = len(repeated) == 1 and result is not None and len(group) >= 2
    others = {item.result for item in executions} - {result, None}
    if receipt.ack.message.rule is not Label.ADAPTIVE:
        decision = _decide(receipt, executions, is_exhausted=False)
        is_one = is_one and isinstance(decision, Accepted)
        is_one = is_one and not _was_decided_before(receipt, executions)
    yield Check(
        "verdict:differed",
        receipt.verdict.message.outcome is Outcome.UNRESOLVED
        and is_one
        and bool(others)
        and confirmation.has_differed(settlement.repeats_in(ran)),
        "others gave another result than the group, and one of the group gave two",
    )


def _outcome_of(decision: verdicts.Decision) -> Outcome | None:
    match decision:
        case verdicts.Unresolved():
            return Outcome.UNRESOLVED
        case verdicts.CannotVerify():
            return Outcome.CANNOT_VERIFY
        case verdicts.Accepted():
            return Outcome.ACCEPTED
        case verdicts.More():
            return None


def _with_suspicion(
    executions: tuple[Execution, ...], of_result: int, of_others: int, result: Hash32 | None = None
) -> tuple[Execution, ...]:
    """The executions with one suspicion for those that gave `result`, and another for others."""
    return tuple(
        replace(item, suspicion_ppm=of_result if item.result == result else of_others)
        for item in executions
    )


def _is_beyond_doubt(receipt: Receipt, executions: tuple[Execution, ...]) -> bool:
    """Whether the adaptive rule accepts a group however little its members are trusted, and however
    much the others are.
    """
    for result in {item.result for item in executions if item.result is not None}:
        doubted = _with_suspicion(executions, SUSPICION_MAX_PPM, SUSPICION_MIN_PPM, result)
        decision = _decide(receipt, doubted, is_exhausted=True)
        is_theirs = (
            isinstance(decision, Accepted) and executions[decision.group[0]].result == result
        )
        if len(executions) > 1 and is_theirs:
            return True
    return False
