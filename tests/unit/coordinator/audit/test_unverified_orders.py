"""Tests orders that choose to be unverified: one execution, no draw, in any market."""

import pytest

from quorate_coordinator.core.model.entities import Revealing
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.rules import orders
from quorate_protocol.units import Label, Outcome, Small, VerifyTier
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, STATEMENT, Market, Party
from support.receipts import failures, verdict_again

CHOSEN: dict[str, object] = {
    "verify_tier": VerifyTier.NONE,
    "accept_unverified": True,
    "max_executions": Small(1),
    "caseable": False,
}


def market_of(owners: int, is_large: bool = False) -> Market:
    market = Market(*[Party(number) for number in range(owners)])
    if is_large:
        market.core.rules = replace(market.core.rules, limits=replace(DEVNET, name=MAINNET.name))
    return market


def body_of(market: Market) -> Receipt:
    tree = canonical.parse(market.receipts[-1], 1 << 20)
    assert isinstance(tree, dict)
    return canonical.from_json(Receipt, tree.get("body", tree))


@pytest.mark.rule("5.163")
@pytest.mark.parametrize(("owners", "is_large"), [(1, False), (5, False), (9, True)])
def test_an_order_may_choose_one_execution_in_any_market(owners: int, is_large: bool) -> None:
    market = market_of(owners, is_large)
    job_id = market.order(0, 1, **CHOSEN)
    market.deliver()
    job = market.job(job_id)
    assert job.ack.message.rule is Label.UNVERIFIED and not job.beacons, "no round draws anybody"
    verdict = market.verdict(job_id)
    assert verdict.outcome is Outcome.ACCEPTED and verdict.label is Label.UNVERIFIED
    assert len(job.leases) == len(verdict.group) == 1
    assert failures(body_of(market)) == set()
    assert job.split.charged == 1_000 + 20, "one execution and its fee, no premium"
    trusts = dict(market.core.state.trust.items()).values()
    assert all(not trust.by_class for trust in trusts), "nobody checked it, so nobody gains trust"


@pytest.mark.rule("5.163")
def test_a_stop_after_the_commit_leaves_the_result() -> None:
    market = market_of(3)
    job_id = market.order(0, 1, **CHOSEN)
    for party in market.parties.values():
        party.is_mute = True
    market.deliver()
    assert isinstance(market.job(job_id).phase, Revealing)
    market.stop(job_id)
    assert market.job(job_id).stop is None


@pytest.mark.rule("5.163")
def test_a_coordinator_may_not_verify_otherwise_than_ordered() -> None:
    order = market_of(5).submission(0, 1).order.message
    chosen = replace(order, verify_tier=VerifyTier.NONE, accept_unverified=True)
    assert orders.allows(order, Label.QUORUM_2) and not orders.allows(order, Label.UNVERIFIED)
    assert not orders.allows(chosen, Label.QUORUM_2) and orders.allows(chosen, Label.UNVERIFIED)


@pytest.mark.rule("5.163")
def test_a_verified_job_needs_a_draw() -> None:
    """A coordinator that calls a batch unverified could leave its draw out."""
    market = market_of(3)
    market.order(0, 1, **CHOSEN)
    market.deliver()
    body = body_of(market)
    ack = replace(body.ack.message, rule=Label.QUORUM_2)
    forged = replace(body, ack=replace(body.ack, message=ack))
    forged = verdict_again(forged, DOMAIN, STATEMENT.sign, label=Label.QUORUM_2)
    assert {"draw[0]", "verdict:rule"} <= failures(forged)
