"""Tests which markets are small: those with fewer than eight distinct staked owners, and every
devnet.

The rules are in PROTOCOL §5, Small markets.
"""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Code
from quorate_protocol.units import Hash32, Label, Outcome, Small
from quorate_protocol.values import replace
from support.markets.scripted_market import CPUS, Market, Party
from support.refusals import refuses


def market_of(owners: int, name: str) -> Market:
    made = Market(*[Party(number) for number in range(owners)])
    made.core.rules = replace(made.core.rules, limits=replace(DEVNET, name=name))
    return made


def rule_of(market: Market, job_id: Hash32) -> Label:
    return market.job(job_id).ack.message.rule


@pytest.mark.rule("5.38", "5.39")
@pytest.mark.parametrize(
    ("owners", "name", "expected"),
    [
        (8, "mainnet", Label.ADAPTIVE),
        (7, "mainnet", Label.QUORUM_2),
        (3, "mainnet", Label.QUORUM_2),
        (9, "devnet", Label.QUORUM_2),
    ],
)
def test_eight_owners_make_a_large_market_and_seven_a_small_one(
    owners: int, name: str, expected: Label
) -> None:
    market = market_of(owners, name)
    assert rule_of(market, market.order(0, 1)) is expected


@pytest.mark.rule("2.16")
def test_owners_are_counted_and_not_their_slots() -> None:
    market = market_of(7, "mainnet")
    owner, block = next(iter(market.parties)), market.next_block
    opened = (ev.ChainSlotOpened(CPUS.id(), 7 + place, owner, block) for place in range(5))
    market.chain_says(*opened)
    assert rule_of(market, market.order(0, 1)) is Label.QUORUM_2


@pytest.mark.rule("4.50")
@pytest.mark.parametrize(("owners", "name"), [(3, "devnet"), (8, "mainnet")])
def test_verified_order_allows_three_executions(owners: int, name: str) -> None:
    market = market_of(owners, name)
    with refuses(Code.BAD_AMOUNT, "maxExecutions 2 must be at least 3"):
        market.order(0, 1, max_executions=Small(2))
    market.order(0, 1, max_executions=Small(3))


@pytest.mark.rule("5.93")
def test_provider_without_stake_gets_no_work_in_a_staked_class() -> None:
    """A low price does not help. A provider without stake can lose nothing by lying."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    cheapest = next(iter(market.parties))
    market.chain_says(ev.ChainSlotClosed(CPUS.id(), 0, market.next_block))
    for number in range(1, 9):
        market.until_decided(market.order(number % 2, number))
    assert {lease.provider for lease in market.core.state.leases.values()} == set(
        market.parties
    ) - {cheapest}


@pytest.mark.rule("5.164")
def test_three_different_results_end_a_job_at_once() -> None:
    market = Market(*[Party(number, lies=True) for number in range(6)])
    job_id = market.order(0, 1)
    market.until_decided(job_id, seconds=200)
    job = market.job(job_id)
    assert market.verdict(job_id).outcome is Outcome.UNRESOLVED
    assert len(job.leases) == 3 < job.order.max_executions
    assert len(job.split.credits) == 3, "all that gave a result are paid"
