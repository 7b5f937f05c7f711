"""Tests that the receipt of a run that its client stopped differs from that of an abandoned run."""

import pytest

from quorate.trust.charge_verification import OwnRecord, check_receipt
from quorate_coordinator.core.model import events as ev
from quorate_protocol.codec import canonical
from quorate_protocol.messages import receipt
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Stop
from quorate_protocol.units import Outcome, UnixSeconds
from quorate_runtime.keys.crypto import recover
from sim.parties import is_beacon_signature
from support.markets.scripted_market import DOMAIN, Market, Party


class _MarketWithStops(Market):
    """A market whose client stops every job as soon as a provider has accepted it."""

    ran_ms = 0

    def send(self, event: ev.Event) -> object:
        reply = super().send(event)
        if isinstance(event, ev.AcceptReceived):
            stop = Stop(
                self.core.state.leases[event.accept.message.assignment_hash].job_id,
                UnixSeconds(self.at),
            )
            super().send(
                ev.StopReceived(seal(DOMAIN, stop, self.sessions[0].sign), self.sessions[0].address)
            )
        return reply


@pytest.mark.rule("I4")
def test_a_stopped_run_is_marked_as_stopped_and_its_time_is_paid() -> None:
    market = _MarketWithStops(*(Party(number) for number in range(4)))
    market.until_decided(market.order(0, 1))
    found = canonical.decode(Receipt, market.receipts[0])
    order, ack = found.order.message, found.ack.message
    known = OwnRecord(
        order,
        ack,
        market.specs[found.order.message.spec_hash],
        DOMAIN,
        found.coordinator_key,
        found.beacon_key,
        found.timing,
        recover,
        is_beacon_signature,
    )
    stopped = check_receipt(known, receipt.document(found), found.verdict)
    assert stopped.is_stopped and stopped.verdict.outcome is Outcome.LAPSED and stopped.charged > 0
