"""One client's, one node's or one block's oddity must not keep everybody's money: what the chain would refuse is not posted, and what it
did not say is asked for (PROTOCOL §6, I7).
"""

from dataclasses import replace

import pytest

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.ledger import on_voucher
from quorate_coordinator.core.state import Client
from quorate_coordinator.core.turn import Turn
from quorate_protocol.envelope import Envelope, seal
from quorate_protocol.messages import Session, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.settlement import SIGNABLE_MAX
from quorate_protocol.units import ZERO_HASH, Amount, Nonce, UnixSeconds
from scripted_market import COORDINATOR, DOMAIN, Market, Party

RICH = 2**70  # where everybody mints, anybody has it


def test_a_voucher_of_more_than_the_chain_remembers_of_a_session_is_refused() -> None:
    """`Epochs` keeps 60 bits of upTo and refuses the whole epoch for one voucher above them, however much its session allows."""
    market = Market(Party(0))
    state, account = market.core.state, market.clients[0].address
    session = _session(market, RICH)
    with state.transaction():
        client = Client(account, allocation=Amount(RICH), escrowed=Amount(RICH), charged=Amount(RICH), sessions=(session,))
        state.clients[account] = client
        turn = Turn(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
        with pytest.raises(Refused) as refused:
            on_voucher(turn, _voucher(market, SIGNABLE_MAX + 1))
        assert refused.value.code is Code.OVER_ALLOCATION and str(SIGNABLE_MAX) in str(refused.value)
        on_voucher(turn, _voucher(market, SIGNABLE_MAX))
        assert state.clients[account].vouched == SIGNABLE_MAX


def test_no_job_is_taken_that_no_voucher_could_pay() -> None:
    market = Market(*[Party(number) for number in range(5)])
    state, account = market.core.state, market.clients[0].address
    with state.transaction():
        before = state.clients[account]
        state.clients[account] = replace(before, allocation=Amount(RICH), escrowed=Amount(RICH), charged=SIGNABLE_MAX)
    with pytest.raises(Refused) as refused:
        market.order(0, 1, up_to=Amount(RICH))
    assert refused.value.code is Code.OVER_ALLOCATION
    with state.transaction():
        state.clients[account] = before


def _session(market: Market, up_to: int) -> Envelope[Session]:
    message = Session(
        market.clients[0].address, market.sessions[0].address, COORDINATOR.address, Amount(up_to), UnixSeconds(market.at + 3600)
    )
    return seal(DOMAIN, message, market.clients[0].sign)


def _voucher(market: Market, cumulative: int) -> ev.VoucherReceived:
    voucher = Voucher(market.clients[0].address, COORDINATOR.address, Amount(cumulative), Nonce(0))
    return ev.VoucherReceived(seal(DOMAIN, voucher, market.sessions[0].sign), market.sessions[0].address)
