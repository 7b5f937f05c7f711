"""Tests that the receipt of a run that its client stopped differs from that of an abandoned run."""

import pytest

from quorate.trust.charge_verification import check_receipt
from quorate_protocol.messages import receipt
from quorate_protocol.units import Outcome
from support.markets.scripted_market import Party, StoppingMarket
from support.receipt_readers import own_record


@pytest.mark.rule("I4")
def test_a_stopped_run_is_marked_as_stopped_and_its_time_is_paid() -> None:
    market = StoppingMarket(*(Party(number) for number in range(4)))
    market.until_decided(market.order(0, 1))
    found = market.receipt(0)
    known = own_record(market, found)
    stopped = check_receipt(known, receipt.document(found), found.verdict)
    assert stopped.is_stopped and stopped.verdict.outcome is Outcome.LAPSED and stopped.charged > 0
