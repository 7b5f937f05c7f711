"""Tests that a client pays before its jobs run and before it reads what they wrote."""

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.jobs import log_reads
from quorate_coordinator.core.jobs.log_reads import LogAccess
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Decided
from quorate_coordinator.storage.output_access import Outputs
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, Hash32
from support.markets.scripted_market import Market, Party
from support.memory_archive import MemoryArchive
from support.refusals import refuses


def a_market() -> Market:
    return Market(*[Party(number) for number in range(5)])


@pytest.mark.rule("4.76", "I4")
def test_an_order_without_cover_is_refused_and_taken_after_its_voucher() -> None:
    market = a_market()
    order = ev.OrderReceived(market.submission(0, 1))
    market.send(ev.SessionReceived(order.submission.session))
    with refuses(Code.NO_VOUCHER, r"at least 0\.023797 USD"):
        market.send(order)
    assert not market.core.state.jobs
    market.vouch(0, Amount(23_796))
    with pytest.raises(Refused, match="no-voucher"):
        market.send(order)
    market.vouch(0, Amount(23_797))
    market.send(order)
    assert len(market.core.state.jobs) == 1


@pytest.mark.rule("4.77")
def test_credit_is_the_fees_that_the_client_has_paid() -> None:
    market = a_market()
    market.until_decided(market.order(0, 1, budget=Amount(23_797)))
    client = market.client()
    assert client.charged == 2_040 and client.fees_paid == market.core.state.own.fee == 36
    market.vouch(0, Amount(2_040 + 23_797 - 37))
    with pytest.raises(Refused, match="no-voucher"):
        market.order(0, 2, prepays=False)
    market.vouch(0, Amount(2_040 + 23_797 - 36))
    market.order(0, 2, prepays=False)


def on_credit(market: Market) -> Hash32:
    """Orders on credit, and lets the market's own clients sign nothing."""
    job_id = market.order_on_credit(0, 1)
    market.clients = market.clients[:0]
    return job_id


@pytest.mark.rule("4.52", "4.78")
def test_output_is_served_once_a_voucher_reaches_its_charge() -> None:
    market = a_market()
    client = market.clients[0]
    job_id = on_credit(market)
    market.until_decided(job_id)
    market.clients = [client]
    state, job = market.core.state, market.job(job_id)
    assert isinstance(job.phase, Decided) and views.run_view(state, job, True).output is None
    assert job.receipt_cid is not None, "receipt and bill come first"
    outputs, lease = Outputs(state, MemoryArchive()), state.leases[job.batches[0].members[0]]
    outputs.load()
    (digest,) = (name for name, of in outputs.by_digest.items() if of == lease.assignment_hash)
    with refuses(Code.NO_VOUCHER, r"at least 0\.00204 USD"):
        outputs.may_read(digest, client.address)
    assert outputs.may_read(digest, lease.provider)
    market.vouch(0, Amount(job.charged_up_to - 1))
    assert not market.job(job_id).is_readable
    market.vouch(0, job.charged_up_to)
    assert outputs.may_read(digest, client.address)
    assert views.run_view(state, market.job(job_id), True).output is not None


@pytest.mark.rule("4.56", "4.78")
def test_lines_of_a_running_job_are_not_read_on_credit() -> None:
    market = a_market()
    clients = market.clients
    job_id = on_credit(market)
    job, state = market.job(job_id), market.core.state
    lease = state.leases[job.leases[0]]
    assert log_reads.access(state, job, lease) is LogAccess.UNPAID
    with pytest.raises(Refused, match=r"at least 0\.023797 USD"):
        market.send(ev.LogRead(job_id, lease.assignment_hash))
    market.clients = clients
    market.vouch(0, Amount(job.reserved))
    market.send(ev.LogRead(job_id, lease.assignment_hash))
    assert market.job(job_id).read == (lease.assignment_hash,)
