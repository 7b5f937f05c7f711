"""Checks a receipt's outcome against its reveals: the rule applied to them must give the Verdict.

Under the adaptive rule the decision depends on the providers' trust, which a receipt does not show.
There the checks refuse what no trust could give.
"""

from collections.abc import Iterator, Sequence

from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.rules import agreement as agreements
from quorate_protocol.rules import confirmation, orders, settlement
from quorate_protocol.rules import verdict as verdicts
from quorate_protocol.rules.receipts.receipt_bill import agreement_of, ran_of, result_of
from quorate_protocol.rules.receipts.receipt_draws import is_audit_wanted
from quorate_protocol.rules.receipts.repeat_batch import is_repeat
from quorate_protocol.rules.settlement import Ran
from quorate_protocol.rules.verdict import Accepted, Execution
from quorate_protocol.units import KILLED, PPM_ONE, ZERO_HASH, Comparator, Hash32, Label, Outcome
from quorate_protocol.values import replace

SUSPICION_MAX_PPM = 200_000
SUSPICION_MIN_PPM = 1_000
UNDECIDED = (Outcome.UNRESOLVED, Outcome.CANNOT_VERIFY)


def checks(receipt: Receipt) -> Iterator[Check]:
    verdict, rule = receipt.verdict.message, receipt.ack.message.rule
    executions = _executions(receipt, len(receipt.batches))
    yield Check("verdict:label", verdict.label is rule, "label is the Ack's rule")
    yield Check(
        "verdict:rule", orders.allows(receipt.order.message, rule), "the order asks for this rule"
    )
    yield Check(
        "verdict:batches",
        verdict.batches == len(receipt.batches) > 0,
        "the receipt has as many batches as the verdict says, and at least one",
    )
    yield Check(
        "verdict:exhausted",
        not receipt.exhausted_by
        or verdict.outcome in UNDECIDED
        or bool(_unconfirmed(receipt, ran_of(receipt), _result(receipt))),
        "an empty draw is shown only where it decides",
    )
    yield from _compared(receipt)
    yield from _repeated(receipt)
    match verdict.outcome:
        case Outcome.ACCEPTED:
            yield from _accepted(receipt, executions)
        case Outcome.LAPSED:
            yield from _lapsed(receipt, executions)
        case Outcome.UNRESOLVED | Outcome.CANNOT_VERIFY:
            yield from _undecided(receipt, executions)


def _compared(receipt: Receipt) -> Iterator[Check]:
    compare, order = receipt.compare, receipt.order.message
    job_spec.validate_compare(compare)
    is_exact = compare.comparator is Comparator.EXACT
    yield Check(
        "compare",
        compare.comparator is order.comparator and (is_exact or not order.caseable),
        "the comparator is the order's, and only an exact one is caseable",
    )
    reveals = [item.reveal for item in receipt.executions]
    pairs = () if is_exact else agreements.pairs_to_compare(reveals)
    shown = tuple((item.one, item.other) for item in receipt.distances)
    yield Check(
        "distances",
        shown == pairs and all(item.ppb is None or item.ppb >= 0 for item in receipt.distances),
        "each two results that differ are compared once, and others never",
    )


def _executions(receipt: Receipt, count: int) -> tuple[Execution, ...]:
    """The executions of the first `count` batches that the rule counts, without repeats. Who
    contradicted itself there has no result.
    """
    void = confirmation.contradicted(_repeats(receipt, count))
    items = iter(receipt.executions)
    found = []
    for batch in receipt.batches[:count]:
        for _ in batch.message.ordered:
            item = next(items)
            name = item.commit.message.assignment_hash
            if not is_repeat(batch.message):
                execution = Execution(
                    name,
                    item.assignment.message.provider,
                    result_of(item),
                    is_killed=item.reveal is not None and item.reveal.exit_status in KILLED,
                    is_alone=len(batch.message.ordered) == 1,
                )
                found.append(execution.void() if name in void else execution)
    return tuple(found)


def _ran(receipt: Receipt, count: int) -> list[Ran]:
    return ran_of(receipt)[: sum(len(batch.message.ordered) for batch in receipt.batches[:count])]


def _repeats(receipt: Receipt, count: int) -> list[confirmation.Repeat]:
    return settlement.repeats_in(_ran(receipt, count))


def _decide(
    receipt: Receipt, executions: Sequence[Execution], is_exhausted: bool
) -> verdicts.Decision:
    order, fee_bps = receipt.order.message, receipt.ack.message.fee_bps
    counted = {item.assignment_hash for item in executions if item.result is not None}
    ran = [item for item in ran_of(receipt) if item.assignment_hash in counted]
    return verdicts.decide(
        receipt.ack.message.rule,
        order.verify_tier,
        executions,
        order.max_executions,
        is_exhausted,
        settlement.further_affordable(order, fee_bps, ran),
        is_audit_wanted(receipt),
        agreement_of(receipt),
    )


def _accepted(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    verdict = receipt.verdict.message
    if not set(verdict.group) <= {item.assignment_hash for item in executions}:
        yield Check("verdict:group", False, "a repeat is no member of the group")
        return
    agreement, results = agreement_of(receipt), [item.result for item in executions]
    groups = (
        agreements.in_order(agreement, results, group)
        for group in agreements.groups(agreement, results)
    )
    yield Check(
        "verdict:group",
        verdict.group in [_names(executions, group) for group in groups],
        "the group is all that agree, but who contradicted itself; first whose output counts",
    )
    silent = {x.assignment_hash for x in executions if x.result is None and not x.is_alone}
    ran, result = ran_of(receipt), _result(receipt)
    unconfirmed = _unconfirmed(receipt, ran, result)
    confirmed = _disputed(receipt, ran, result) - unconfirmed
    wrong = {x.assignment_hash for x in _wrong(ran, result) if x.class_id in confirmed}
    yield Check(
        "verdict:confirmed",
        verdict.faulted
        == tuple(x.assignment_hash for x in ran if x.assignment_hash in silent | wrong),
        "another result is a fault if, and only if, two of the group repeated theirs in its class",
    )
    yield Check(
        "verdict:unconfirmed",
        not unconfirmed or receipt.exhausted_by != 0 or len(executions) >= EXECUTIONS_MAX,
        "a fault stays unconfirmed only where no further owner could be asked",
    )
    yield Check(
        "verdict:enough",
        _is_enough(receipt, executions),
        "the rule applied to the reveals accepts this group, and no earlier one",
    )


def _result(receipt: Receipt) -> Hash32 | None:
    group = receipt.verdict.message.group
    return next((x.result for x in ran_of(receipt) if x.assignment_hash in group), None)


def _names(executions: Sequence[Execution], group: Sequence[int]) -> tuple[Hash32, ...]:
    return tuple(executions[index].assignment_hash for index in group)


def _wrong(ran: Sequence[Ran], result: Hash32 | None) -> list[Ran]:
    return [item for item in ran if item.result not in (None, result)]


def _disputed(receipt: Receipt, ran: Sequence[Ran], result: Hash32 | None) -> frozenset[Hash32]:
    """The classes in which another result is a fault once confirmed; none within a tolerance."""
    if not agreement_of(receipt).is_exact:
        return frozenset()
    return confirmation.disputed(((item.result, item.class_id) for item in ran), result)


def _unconfirmed(receipt: Receipt, ran: Sequence[Ran], result: Hash32 | None) -> frozenset[Hash32]:
    """The classes in which another result is no fault yet."""
    repeats = settlement.repeats_in(ran)
    kinds = _disputed(receipt, ran, result) if result is not None else ()
    return frozenset(kind for kind in kinds if confirmation.missing(repeats, result, kind))


def _is_enough(receipt: Receipt, executions: tuple[Execution, ...]) -> bool:
    verdict = receipt.verdict.message
    if verdict.label is Label.ADAPTIVE:
        if len(executions) == 1:
            # A provider that ran nothing can claim a kill, so a kill is always audited.
            return not executions[0].is_killed and not is_audit_wanted(receipt)
        return len(verdict.group) >= 2
    decision = _decide(receipt, executions, is_exhausted=False)
    named = isinstance(decision, Accepted) and verdict.group == _names(executions, decision.group)
    return named and not _was_decided_before(receipt)


def _was_decided_before(receipt: Receipt) -> bool:
    """Whether the batches before a draw were enough, or showed that the program differs. Then no
    further batch was due, and a coordinator that draws one looks for another result.
    """
    for count in range(1, len(receipt.batches)):
        executions = _executions(receipt, count)
        decision = _decide(receipt, executions, is_exhausted=False)
        is_draw = not is_repeat(receipt.batches[count].message)
        if is_draw and decision == verdicts.Unresolved(verdicts.Limit.PROGRAM):
            return True
        if is_draw and isinstance(decision, Accepted):
            result = executions[decision.group[0]].result
            if not _unconfirmed(receipt, _ran(receipt, count), result):
                return True
    return False


def _repeated(receipt: Receipt) -> Iterator[Check]:
    """Checks that each repeat was due, and that members of the group repeated. After two owners
    that contradicted themselves there is no further batch.
    """
    for count in range(1, len(receipt.batches)):
        executions, again = _executions(receipt, count), _repeats(receipt, count)
        message = receipt.batches[count].message
        is_due = not confirmation.is_random(again)
        if is_repeat(message):
            ran = _ran(receipt, count + 1)[-len(message.ordered) :]
            before = _ran(receipt, count)
            named = {item.repeats for item in ran}
            kinds = {item.class_id for item in before if item.assignment_hash in named}
            kind = next(iter(kinds), ZERO_HASH)
            results = {item.result for item in executions if item.assignment_hash in named}
            result = next(iter(results), None)
            group = [item for item in executions if item.result == result]
            missing = confirmation.missing(again, result, kind)
            is_due = (
                is_due
                and len(results) == len(kinds) == 1
                and result is not None
                and len(group) >= 2
                and len(named) <= missing
                and kind in _disputed(receipt, before, result)
                and named <= {item.assignment_hash for item in group}
            )
            if receipt.ack.message.rule is not Label.ADAPTIVE:
                decision = _decide(receipt, executions, is_exhausted=False)
                is_due = (
                    is_due
                    and isinstance(decision, Accepted)
                    and executions[decision.group[0]].result == result
                )
        yield Check(
            f"repeat:due[{count}]",
            is_due,
            "members of the group repeat, only while another result needs confirmation",
        )


def _lapsed(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    verdict = receipt.verdict.message
    revealed = tuple(item.assignment_hash for item in executions if item.result is not None)
    yield Check(
        "verdict:lapsed",
        bool(revealed)
        and verdict.group == revealed
        and receipt.batches[0].message.beacon_round == 0
        and not verdict.faulted,
        "a stopped job has revealed executions without a draw, and nobody is faulted",
    )


def _undecided(receipt: Receipt, executions: tuple[Execution, ...]) -> Iterator[Check]:
    verdict = receipt.verdict.message
    yield Check(
        "verdict:empty", not verdict.group and not verdict.faulted, "nobody agrees or is faulted"
    )
    if confirmation.is_random(_repeats(receipt, len(receipt.batches))):
        yield Check(
            "verdict:differed",
            verdict.outcome is Outcome.UNRESOLVED
            and not receipt.exhausted_by
            # Trust decides when an adaptive job has enough, and held pay may be audited later.
            and (receipt.ack.message.rule is Label.ADAPTIVE or not _was_decided_before(receipt)),
            "two owners gave another result than before",
        )
        return
    decision = _decide(receipt, executions, receipt.exhausted_by != 0)
    good = _outcome_of(decision) is verdict.outcome and not _was_decided_before(receipt)
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
    executions: tuple[Execution, ...], of_group: int, of_others: int, group: Sequence[int] = ()
) -> tuple[Execution, ...]:
    """The executions with one suspicion for those of a group, and another for others."""
    return tuple(
        replace(item, suspicion_ppm=of_group if number in group else of_others)
        for number, item in enumerate(executions)
    )


def _is_beyond_doubt(receipt: Receipt, executions: tuple[Execution, ...]) -> bool:
    """Whether the adaptive rule accepts a group however little its members are trusted, and however
    much the others are.
    """
    results = [item.result for item in executions]
    for group in agreements.groups(agreement_of(receipt), results):
        doubted = _with_suspicion(executions, SUSPICION_MAX_PPM, SUSPICION_MIN_PPM, group)
        decision = _decide(receipt, doubted, is_exhausted=True)
        is_theirs = isinstance(decision, Accepted) and set(decision.group) == set(group)
        if len(executions) > 1 and is_theirs:
            return True
    return False
