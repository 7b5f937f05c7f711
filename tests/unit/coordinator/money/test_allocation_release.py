"""Tests what happens when a client takes its deposit back (PROTOCOL §4).

It can order nothing for the announced amount. Its vouchers count up to what the chain still holds.
"""

import pytest

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import PostEpoch
from quorate_coordinator.core.entities import Client, EpochRecord
from quorate_coordinator.core.money import epoch_cap, epochs
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.scripted_market import COORDINATOR, DOMAIN, Market, Party

DEPOSIT = 50_000_000


def _chain_says(
    market: Market,
    block: int,
    client: Address,
    allocation: int,
    escrowed: int,
    release_at: int = 0,
    block_time: int = 0,
) -> None:
    note = ev.ChainAllocationChanged(
        client, Amount(allocation), Amount(escrowed), UnixSeconds(release_at)
    )
    market.send(
        ev.ChainAdvanced(
            BlockNumber(block), ZERO_HASH, UnixSeconds(block_time or market.at), (note,)
        )
    )


def _charged_and_not_covered() -> tuple[Market, Address, Amount]:
    """Returns a market in which the first client has a charged job and has signed no voucher for
    it.
    """
    market = Market(*[Party(number) for number in range(5)])
    client = market.clients[0].address
    market.order_on_credit(0, 1)
    everybody, market.clients = market.clients, []  # so that no client signs a voucher
    for _ in range(120):
        market.beat()
        charged = market.core.state.clients[client].charged
        if charged:
            market.clients = everybody
            return market, client, charged
    raise AssertionError("nothing was charged")


def _vouch(market: Market, client: Address, amount: Amount) -> None:
    voucher = Voucher(client, COORDINATOR.address, amount)
    market.send(
        ev.VoucherReceived(
            seal(DOMAIN, voucher, market.sessions[0].sign), market.sessions[0].address
        )
    )


@pytest.mark.rule("4.28", "4.29")
def test_an_announced_release_blocks_new_orders_and_not_vouchers() -> None:
    market, client, charged = _charged_and_not_covered()
    _chain_says(market, 6, client, allocation=0, escrowed=DEPOSIT)
    with pytest.raises(Refused) as refused:
        market.order(0, 2)
    assert refused.value.code is Code.OVER_ALLOCATION
    _vouch(market, client, charged)
    market.at += 30
    market.send(ev.Tick())
    assert any(isinstance(effect, PostEpoch) and effect.vouchers for effect in market.chain), (
        "what it owes is posted"
    )


def test_a_voucher_above_what_a_release_left_does_not_stop_the_epoch() -> None:
    """The chain refuses a whole epoch if one voucher exceeds the deposit that it holds. All credits
    would then wait for ever.
    """
    market, client, charged = _charged_and_not_covered()
    _chain_says(market, 6, client, allocation=0, escrowed=0)
    with pytest.raises(Refused) as refused:
        _vouch(market, client, charged)
    assert refused.value.code is Code.OVER_ALLOCATION and "release" in str(refused.value)
    assert market.core.state.clients[client].vouched == 0
    for _ in range(DEVNET.max_hold + 2 * DEVNET.epoch_every):
        market.at += 1
        market.send(ev.Tick())
    held = [provider.held for provider in market.core.state.providers.values() if provider.held]
    assert held and not any(provider.final for provider in market.core.state.providers.values()), (
        "and nobody is paid"
    )


@pytest.mark.rule("4.29", "4.30", "9.7")
@pytest.mark.parametrize("is_clock_behind", [False, True])
def test_a_voucher_shortly_before_a_release_counts_only_up_to_what_stays(
    is_clock_behind: bool,
) -> None:
    """The client sends its voucher moments before its release ends, so no epoch could be posted in
    time.
    """
    market, client, charged = _charged_and_not_covered()
    ready = market.at + DEVNET.allocation_release
    _chain_says(market, 6, client, allocation=charged - 1, escrowed=DEPOSIT, release_at=ready)
    if is_clock_behind:
        _chain_says(
            market, 7, client, charged - 1, DEPOSIT, ready, block_time=ready - DEVNET.voucher_margin
        )
    else:
        market.at = ready - DEVNET.voucher_margin
    with pytest.raises(Refused) as refused:
        _vouch(market, client, charged)
    assert refused.value.code is Code.OVER_ALLOCATION and "announce it again" in str(refused.value)
    _vouch(market, client, Amount(charged - 1))
    _chain_says(
        market,
        8,
        client,
        allocation=charged - 1,
        escrowed=DEPOSIT,
        release_at=ready + DEVNET.allocation_release,
    )
    _vouch(market, client, charged)
    assert market.core.state.clients[client].vouched == charged, (
        "a second announcement starts the delay again"
    )


@pytest.mark.rule("4.29")
def test_voucher_taken_in_time_is_posted_before_the_release() -> None:
    market, client, charged = _charged_and_not_covered()
    ready = market.at + DEVNET.allocation_release
    _chain_says(market, 6, client, allocation=0, escrowed=DEPOSIT, release_at=ready)
    market.at = ready - DEVNET.voucher_margin - 1
    market.send(ev.Tick())
    _vouch(market, client, charged)
    while not any(isinstance(effect, PostEpoch) and effect.vouchers for effect in market.chain):
        market.at += 1
        market.send(ev.Tick())
    assert market.at <= ready - 2 * DEVNET.epoch_every, (
        "with time for two more, should it be refused or late"
    )


def _next_epoch(market: Market, count: int) -> PostEpoch:
    """Lets time pass until the coordinator has built `count` epochs; returns the newest."""
    for _ in range(60):
        found = [effect for effect in market.chain if isinstance(effect, PostEpoch)]
        if len(found) >= count:
            return found[-1]
        market.beat()
    raise AssertionError("no epoch is due")


def _lands(market: Market, epoch: PostEpoch, block: int) -> None:
    market.send(
        ev.ChainAdvanced(
            BlockNumber(block),
            ZERO_HASH,
            UnixSeconds(market.at),
            (ev.ChainEpochPosted(epoch.number, epoch.root.hash),),
        )
    )


@pytest.mark.rule("6.20", "6.21", "6.22")
def test_a_release_that_ends_before_its_epoch_costs_the_fee_first_and_no_other_pay() -> None:
    """The chain was away for longer than the margin. The voucher is void and its credits wait; the
    epoch shows the other client's credits.
    """
    market, client, charged = _charged_and_not_covered()
    _vouch(market, client, charged)
    owed = {
        provider.owner: provider.final
        for provider in market.core.state.providers.values()
        if provider.final
    }
    assert owed, "its job is final, and its providers were told so"
    market.clients, market.sessions = market.clients[1:], market.sessions[1:]
    lost = _next_epoch(market, 1)
    assert lost.root.final == charged
    _chain_says(market, 7, client, allocation=0, escrowed=0)
    market.send(ev.TransactionRefused(lost.key, "allocation"))
    assert market.core.state.clients[client].vouched == 0
    market.until_decided(market.order_on_credit(0, 2))
    paid = _next_epoch(market, 2)
    other = market.core.state.clients[market.clients[0].address]
    assert [item.voucher.message.payer for item in paid.vouchers] == [other.account]
    assert 0 < paid.root.final == other.vouched, "what the other client paid for is shown, no more"
    assert paid.root.final + paid.root.held <= DEPOSIT
    leaves = {leaf.account: leaf for leaf in market.core.state.epochs[paid.number].leaves}
    assert leaves[COORDINATOR.address].final == 0 < leaves[COORDINATOR.address].held, (
        "of what is missing the fee is the first"
    )
    finals = {provider.owner: provider.final for provider in market.core.state.providers.values()}
    assert all(finals[owner] >= amount for owner, amount in owed.items()), (
        "nobody is told less than before"
    )
    _lands(market, paid, 8)
    _chain_says(market, 9, client, allocation=DEPOSIT, escrowed=DEPOSIT)
    whole = _next_epoch(market, 3)
    assert whole.root.final == charged + other.vouched and len(whole.vouchers) == 1, (
        "allocated again, its voucher counts again"
    )


@pytest.mark.rule("4.31")
def test_a_session_that_ends_before_an_epoch_can_land_signs_no_voucher() -> None:
    market, client, charged = _charged_and_not_covered()
    session = market.core.state.clients[client].sessions[-1].message
    now, market.at = market.at, session.expires - DEVNET.voucher_margin
    with pytest.raises(Refused) as refused:
        _vouch(market, client, charged)
    assert refused.value.code is Code.EXPIRED
    market.at = now
    _vouch(market, client, charged)
    for number in range(
        4
    ):  # the coordinator keeps four sessions; none of these may push out the voucher's session
        weak = replace(
            session, up_to=Amount(1), session_key=session.session_key if number else client
        )
        market.send(ev.SessionReceived(seal(DOMAIN, weak, market.clients[0].sign)))
    assert _next_epoch(market, 1).vouchers[0].session.message == session


@pytest.mark.rule("6.20")
def test_more_vouchers_than_an_epoch_has_room_for_go_into_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chain refuses final credits above the vouchers, so the credits of the vouchers that are
    left over wait.
    """
    monkeypatch.setattr(epochs, "VOUCHERS_PER_EPOCH_MAX", 1)
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order_on_credit(0, 1), market.order_on_credit(1, 2))
    first = _next_epoch(market, 1)
    assert (
        len(first.vouchers) == 1
        and first.root.final == first.vouchers[0].voucher.message.cumulative
    )
    _lands(market, first, 6)
    vouched = sum(client.vouched for client in market.core.state.clients.values())
    assert _next_epoch(market, 2).root.final == vouched > first.root.final, (
        "and at once, if the chain keeps up"
    )


@pytest.mark.rule("6.21")
def test_missing_money_is_shared_and_posted_credits_never_fall() -> None:
    """The fee and the audit fund lose first. Then all others share the loss in proportion to their
    new credits. No leaf falls below an amount that an epoch already showed.
    """
    market = Market(Party(0))
    state = market.core.state
    made = [
        _leaf(0, 40),
        Leaf(1, COORDINATOR.address, Amount(30), Amount(0), ZERO_HASH),
        _leaf(2, 101),
        _leaf(3, 302),
    ]
    with state.transaction():
        state.epochs[1] = EpochRecord(
            1, (_leaf(2, 50), _leaf(3, 100)), ZERO_HASH, (), UnixSeconds(0), is_posted=True
        )
        for party, posted in zip(market.clients, (Amount(300), Amount(40)), strict=True):
            state.clients[party.address] = Client(
                party.address, escrowed=posted, charged=Amount(500), vouched=posted, posted=posted
            )
    context = StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
    assert [(leaf.final, leaf.held) for leaf in epoch_cap.backed(context, tuple(made), ())] == [
        (0, 0),
        (0, 0),
        (89, 0),
        (251, 0),
    ]
    with state.transaction():
        account = market.clients[1].address
        state.clients[account] = replace(state.clients[account], escrowed=Amount(500))
    found = epoch_cap.backed(context, tuple(made), ())
    assert [(leaf.final, leaf.held) for leaf in found] == [(0, 40), (0, 30), (89, 12), (251, 51)], (
        "held, where the chain still has it"
    )


def _leaf(index: int, final: int) -> Leaf:
    return Leaf(index, ZERO_ADDRESS, Amount(final), Amount(0), ZERO_HASH)
