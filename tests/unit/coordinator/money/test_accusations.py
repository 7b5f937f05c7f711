"""What a receipt offers to the court (PROTOCOL 5.141, 5.142, 5.157)."""

import pytest

from quorate_contracts.accusations import burned, case_of, least_pay, read_receipt
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.commitment import assignment_id
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import EXIT_TIMEOUT, Address, Comparator, ExitStatus, Small, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, Market, Party


def a_receipt(*lies: int) -> tuple[Market, Receipt]:
    """A decided job of which the owners with these numbers gave another result."""
    market = Market(*[Party(number, lies=number in lies) for number in range(5)])
    market.ran_ms = 0
    job_id = market.order(0, 1, max_executions=Small(7))
    market.until_decided(job_id)
    return market, read_receipt(market.receipts[-1])


def wrong_receipt() -> tuple[Market, Receipt, Address]:
    """A receipt with one result that differs, and its owner."""
    for liar in range(5):
        market, receipt = a_receipt(liar)
        account = list(market.parties)[liar]
        if account in {run.assignment.message.provider for run in receipt.executions}:
            return market, receipt, account
    raise AssertionError("no liar was matched")


@pytest.mark.rule("5.141", "5.157")
def test_the_result_that_fewest_gave_is_accused_with_what_opens_it() -> None:
    market, receipt, liar = wrong_receipt()
    case = case_of(receipt, DOMAIN, DEVNET, UnixSeconds(market.at), None)
    assert case.run.assignment.message.provider == liar
    assert case.contradiction.assignment.message.provider != liar
    for run in (case.run, case.contradiction):
        named = run.assignment.message.assignment_id
        assert named == assignment_id(receipt.ack.message.job_id, run.index, run.blind)
    assert case == case_of(receipt, DOMAIN, DEVNET, UnixSeconds(market.at), liar)
    assert burned(least_pay(case, DEVNET), DEVNET) == 7 * (50_000 + 500_000)


@pytest.mark.rule("5.142", "5.157")
def test_what_no_court_hears_is_refused_with_its_reason() -> None:
    market, receipt, liar = wrong_receipt()
    order, now = receipt.order, UnixSeconds(market.at)

    def refusal(shown: Receipt, at: UnixSeconds = now, accused: Address | None = None) -> Code:
        with pytest.raises(Refused) as refused:
            case_of(shown, DOMAIN, DEVNET, at, accused)
        return refused.value.code

    def changed(**terms: object) -> Receipt:
        changed = replace(order.message, **terms)  # type: ignore[arg-type]
        return replace(receipt, order=replace(order, message=changed))

    assert refusal(changed(caseable=False)) is Code.UNSUPPORTED
    assert refusal(changed(comparator=Comparator.NUMERIC)) is Code.UNSUPPORTED
    late = UnixSeconds(now + DEVNET.case_evidence_age + 600)
    assert refusal(receipt, late) is Code.TOO_LATE
    assert refusal(receipt, accused=Address(b"\x01" * 20)) is Code.UNKNOWN, "it ran nothing"
    assert refusal(a_receipt()[1]) is Code.UNKNOWN, "all agree"
    killed = ExitStatus(EXIT_TIMEOUT)
    runs = [
        replace(run, reveal=replace(run.reveal, exit_status=killed))
        if run.assignment.message.provider == liar and run.reveal is not None
        else run
        for run in receipt.executions
    ]
    assert refusal(replace(receipt, executions=tuple(runs))) is Code.UNKNOWN, "a time-out"
    unopened = [replace(each, message=replace(each.message, blinds=())) for each in receipt.batches]
    assert refusal(replace(receipt, batches=tuple(unopened))) is Code.DOES_NOT_OPEN
