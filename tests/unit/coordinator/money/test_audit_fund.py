"""The audit fund pays for one client's jobs at most what they paid in, and an allowance."""

import pytest

from quorate_coordinator.core.money import ledger
from quorate_protocol.rules.settlement import Credit
from quorate_protocol.units import Amount
from quorate_protocol.values import replace
from support.markets.scripted_market import Market, Party

FUND = Amount(50_000)


def paid_from_the_fund(who: int, amount: int, paid_in: int) -> tuple[int, int, list[str]]:
    """What the fund pays for a job of a client that has paid so much into it.

    Returns (paid, left in the fund, the notes on the job).
    """
    market = Market(*[Party(number) for number in range(5)])
    job_id = market.order(who, 1)
    market.until_decided(job_id)
    context = market.context()
    job, account = market.job(job_id), market.clients[who].address
    client = context.state.clients[account]
    with context.state.transaction():
        context.state.clients[account] = replace(client, fund_paid=Amount(paid_in))
        context.change_own(fund=FUND)
        ledger.pay_from_fund(context, job, [Credit(job.leases[0], Amount(amount))])
    notes = [line.text for line in context.state.events[job.id] if line.name == "unpaid"]
    return context.state.clients[account].fund_spent, context.state.own.fund, notes


@pytest.mark.rule("5.99")
@pytest.mark.parametrize(
    ("amount", "paid_in", "expected"),
    [
        (900, 0, 900),
        (1_000, 0, 1_000),
        (9_000, 0, 1_000),
        (9_000, 3_000, 4_000),
        (4_000, 3_000, 4_000),
    ],
)
def test_one_client_takes_no_more_from_the_fund_than_it_paid_in(
    amount: int, paid_in: int, expected: int
) -> None:
    """The allowance of a devnet is 0.001 USD."""
    spent, left, notes = paid_from_the_fund(0, amount, paid_in)
    assert (spent, left) == (expected, FUND - expected)
    assert len(notes) == (expected < amount)
    assert all("the client's part of the audit fund lacks" in note for note in notes)


@pytest.mark.rule("5.99", "4.55")
def test_what_a_job_pays_into_the_fund_counts_for_its_client() -> None:
    market = Market(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    market.beats(3)
    clients, own = market.core.state.clients, market.core.state.own
    mine, other = (clients.get(market.clients[who].address) for who in (0, 1))
    assert mine is not None and mine.fund_paid == own.fund == market.job(job_id).split.fund > 0
    assert other is None or other.fund_paid == 0
