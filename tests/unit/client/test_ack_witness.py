"""Which Ack of a fast order its client countersigns."""

import pytest

from quorate.client.sent_orders import consider_ack
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Ack, Order, Witness
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Label, UnixSeconds, VerifyTier
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, GENESIS, INFO, STATEMENT, Market, Party

MARKET = Market(*[Party(number) for number in range(4)])
JOB = MARKET.job(MARKET.order(0, 1, verify_tier=VerifyTier.QUORUM_2_FAST))
AT = JOB.ack.message.ack_time
IDENTITY = CoordinatorIdentity(
    coordinator=JOB.order.coordinator,
    statement_key=STATEMENT.address,
    chain_id=DOMAIN.chain_id,
    stakes=DOMAIN.verifying_contract,
    escrow=ZERO_ADDRESS,
    token=ZERO_ADDRESS,
    beacon_key=INFO.public_key,
    beacon_period=INFO.period,
    beacon_genesis=GENESIS,
    limits="devnet",
)


def considered(now: float, order: Order = JOB.order, **changes: object) -> Witness | str | None:
    ack: Ack = replace(JOB.ack.message, **changes)  # type: ignore[arg-type]
    return consider_ack(order, seal(DOMAIN, ack, STATEMENT.sign), IDENTITY, now)


@pytest.mark.rule("5.165")
def test_a_client_countersigns_an_ack_whose_round_nobody_can_know() -> None:
    found = considered(AT)
    assert isinstance(found, Witness)
    assert (found.commit_hash, found.ack_hash) == (ZERO_HASH, JOB.ack.digest(DOMAIN))
    assert IDENTITY.timing.appears_at(found.beacon_round) - AT > INFO.period
    market_says = IDENTITY.timing.round_after_ack(AT)
    assert found.beacon_round == market_says


@pytest.mark.rule("5.165")
@pytest.mark.parametrize(
    ("now", "why"), [(AT + 2 * INFO.period, "already appeared"), (AT - 100, "too far")]
)
def test_it_signs_nothing_too_late_or_for_a_wrong_clock(now: int, why: str) -> None:
    found = considered(now)
    assert isinstance(found, str) and why in found
    dated = considered(AT, ack_time=UnixSeconds(AT - 2 * INFO.period))
    assert isinstance(dated, str), "the coordinator dates its Ack back, to a round that it knows"


@pytest.mark.rule("5.165")
def test_other_orders_need_no_witness_of_their_ack() -> None:
    usual = replace(JOB.order, verify_tier=VerifyTier.QUORUM_2)
    assert considered(AT, usual) is None
    assert considered(AT, rule=Label.UNVERIFIED) is None
