"""A client takes its deposit back: nobody orders for what is announced, vouchers reach what the chain still holds (PROTOCOL §4)."""

import pytest

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import PostEpoch
from quorate_protocol.envelope import seal
from quorate_protocol.messages import Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, BlockNumber, Nonce, UnixSeconds
from scripted_market import COORDINATOR, DOMAIN, Market, Party

DEPOSIT = 50_000_000


def _chain_says(market: Market, block: int, client: Address, allocation: int, escrowed: int) -> None:
    note = ev.AllocationChanged(client, Amount(allocation), Amount(escrowed))
    market.send(ev.ChainAdvanced(BlockNumber(block), ZERO_HASH, UnixSeconds(market.at), (note,)))


def _charged_and_not_covered() -> tuple[Market, Address, Amount]:
    """A market in which a job of the first client is charged and its voucher still to come."""
    market = Market(*[Party(number) for number in range(5)])
    client = market.clients[0].address
    market.order(0, 1)
    everybody, market.clients = market.clients, []  # nobody signs vouchers
    for _ in range(120):
        market.beat()
        charged = market.core.state.clients[client].charged
        if charged:
            market.clients = everybody
            return market, client, charged
    raise AssertionError("nothing was charged")


def _vouch(market: Market, client: Address, amount: Amount) -> None:
    voucher = Voucher(client, COORDINATOR.address, amount, Nonce(0))
    market.send(ev.VoucherReceived(seal(DOMAIN, voucher, market.sessions[0].sign), market.sessions[0].address))


def test_announced_release_ends_orders_and_not_vouchers() -> None:
    market, client, charged = _charged_and_not_covered()
    _chain_says(market, 6, client, allocation=0, escrowed=DEPOSIT)
    with pytest.raises(Refused) as refused:
        market.order(0, 2)
    assert refused.value.code is Code.OVER_ALLOCATION
    _vouch(market, client, charged)
    market.at += 30
    market.send(ev.Tick())
    assert any(isinstance(effect, PostEpoch) and effect.vouchers for effect in market.chain), "what it owes is posted"


def test_voucher_beyond_a_finished_release_stops_nobodys_epoch() -> None:
    """The chain refuses an epoch whole for one voucher that it does not hold the money for: everybody's credit would wait for ever."""
    market, client, charged = _charged_and_not_covered()
    _chain_says(market, 6, client, allocation=0, escrowed=0)
    with pytest.raises(Refused) as refused:
        _vouch(market, client, charged)
    assert refused.value.code is Code.OVER_ALLOCATION and "release" in str(refused.value)
    assert market.core.state.clients[client].vouched == 0
