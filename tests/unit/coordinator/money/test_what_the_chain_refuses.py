"""Tests that the coordinator takes nothing that the chain would refuse (PROTOCOL §6, I7)."""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Client
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money.ledger import on_voucher
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.settlement import SIGNABLE_MAX
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.units import ZERO_HASH, Amount, BlockNumber, UnixSeconds, usd
from quorate_protocol.values import replace
from support.markets.scripted_market import COORDINATOR, CPUS, DOMAIN, Market, Party
from support.refusals import refuses

RICH = 2**100  # on a test token anybody can mint such an amount


def test_a_voucher_of_more_than_the_chain_remembers_of_a_session_is_refused() -> None:
    """`Escrow` takes 96 bits of upTo, however much its session allows."""
    market = Market(Party(0))
    state, account = market.core.state, market.clients[0].address
    session = _session(market, RICH)
    with state.transaction():
        client = Client(account, tab=Tab(Amount(RICH)), charged=Amount(RICH), sessions=(session,))
        state.clients[account] = client
        context = StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
        with pytest.raises(Refused) as refused:
            on_voucher(context, _voucher(market, SIGNABLE_MAX + 1))
        assert refused.value.code is Code.INSUFFICIENT_FUNDS and usd(SIGNABLE_MAX) in str(
            refused.value
        )
        on_voucher(context, _voucher(market, SIGNABLE_MAX))
        assert state.clients[account].vouched == SIGNABLE_MAX


@pytest.mark.rule("I4")
def test_no_job_is_taken_that_no_voucher_could_pay() -> None:
    market = Market(*[Party(number) for number in range(5)])
    state, account = market.core.state, market.clients[0].address
    with state.transaction():
        before = state.clients[account]
        state.clients[account] = replace(before, tab=Tab(Amount(RICH)), charged=SIGNABLE_MAX)
    with refuses(Code.INSUFFICIENT_FUNDS):
        market.order(0, 1, up_to=Amount(RICH), prepays=False)
    with state.transaction():
        state.clients[account] = before


def _session(market: Market, up_to: int) -> Envelope[Session]:
    message = Session(
        market.clients[0].address,
        market.sessions[0].address,
        COORDINATOR.address,
        Amount(up_to),
        UnixSeconds(market.at + 3600),
    )
    return seal(DOMAIN, message, market.clients[0].sign)


def _voucher(market: Market, cumulative: int) -> ev.VoucherReceived:
    voucher = Voucher(market.clients[0].address, COORDINATOR.address, Amount(cumulative))
    return ev.VoucherReceived(
        seal(DOMAIN, voucher, market.sessions[0].sign), market.sessions[0].address
    )


# -------------------------------------------------------------------- nodes that withhold some logs


def test_slot_closing_without_its_opening_changes_nothing() -> None:
    market = Market(Party(0))
    slots = market.core.state.pool_slots[CPUS.id()].slots
    market.chain_says(
        ev.ChainSlotClosed(CPUS.id(), 7, BlockNumber(9)),
        ev.ChainSlotClosed(ZERO_HASH, 0, BlockNumber(9)),
    )
    assert market.core.state.pool_slots[CPUS.id()].slots == slots


def test_a_slot_position_beyond_any_list_takes_no_memory() -> None:
    market = Market(Party(0))
    market.chain_says(
        ev.ChainSlotOpened(CPUS.id(), 2**63, market.clients[0].address, BlockNumber(9))
    )
    market.chain_says(
        ev.ChainSlotOpened(CPUS.id(), 2**63, next(iter(market.parties)), BlockNumber(9))
    )
    assert len(market.core.state.pool_slots[CPUS.id()].slots) == 1
