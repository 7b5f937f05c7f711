"""Tests that a provider tells its owner which Verdicts can be appealed."""

import logging

import pytest

from quorate_contracts.appeal_evidence import appeal_evidence
from quorate_node.appeals.appeal_notices import AppealNotices
from quorate_node.core.provider_core import ProviderCore
from quorate_node.ops.dates import date_text
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Comparator, usd
from quorate_protocol.values import replace
from quorate_runtime.clock import VirtualClock
from support.markets.provider_world import make_terms
from support.markets.scripted_market import DOMAIN, Market, Party


def faulting() -> tuple[Market, Receipt]:
    """Returns a market and a receipt whose Verdict faults somebody."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    for nonce in range(1, 9):
        market.until_decided(market.order(0, nonce))
        body = canonical.decode(Receipt, market.receipts[-1])
        if body.verdict.message.faulted:
            return market, body
    raise AssertionError("the liar got no job")


@pytest.mark.rule("5.135")
def test_an_owner_hears_of_a_verdict_that_faults_it_with_bond_and_last_moment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    market, body = faulting()
    place = body.verdict.message.faulted[0]
    own = next(item for item in body.executions if item.commit.message.assignment_hash == place)
    liar = own.assignment.message.provider
    shown = appeal_evidence(body, liar)
    assert shown.assignment_hash == place == digest(DOMAIN, shown.run.assignment.message)
    assert shown.reveal == own.reveal and shown.verdict == body.verdict
    terms, clock = replace(make_terms(), provider=liar, domain=DOMAIN), VirtualClock(market.at)
    notices, job_id = AppealNotices(ProviderCore(terms), clock), body.verdict.message.job_id
    with caplog.at_level(logging.INFO):
        notices.note(job_id, document(body))
    line, bond = caplog.messages
    assert f"`quorate node appeal 0x{job_id.hex()}` asks a jury, until " in line
    assert date_text(shown.open_until(DEVNET), market.at) in line
    assert f"the bond of an appeal is {usd(shown.bond(DEVNET))} USD" in bond


def test_verdicts_that_no_jury_judges_cannot_be_appealed() -> None:
    _, body = faulting()
    place = body.verdict.message.faulted[0]
    own = next(item for item in body.executions if item.commit.message.assignment_hash == place)
    other = next(item for item in body.executions if item is not own)
    with pytest.raises(Refused, match="faults no execution"):
        appeal_evidence(body, other.assignment.message.provider)
    order = replace(body.order.message, comparator=Comparator.TEXT)
    with pytest.raises(Refused, match="exact and caseable"):
        appeal_evidence(
            replace(body, order=replace(body.order, message=order)), own.assignment.message.provider
        )
