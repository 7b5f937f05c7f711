"""Tests that one odd client, node or block does not hold back the pay of all others (PROTOCOL §6,
I7).

The coordinator does not post what the chain would refuse. It asks the chain for what no log
reported.
"""

import pytest

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import PostEpoch
from quorate_coordinator.core.entities import Client
from quorate_coordinator.core.money.ledger import on_voucher
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.rules.settlement import SIGNABLE_MAX
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Nonce,
    UnixSeconds,
    usd,
)
from quorate_protocol.values import replace
from support.markets.scripted_market import COORDINATOR, DOMAIN, HOST, Market, Party

RICH = 2**70  # on a test token anybody can mint such an amount


def test_a_voucher_of_more_than_the_chain_remembers_of_a_session_is_refused() -> None:
    """`Epochs` keeps 60 bits of upTo and refuses the whole epoch for one voucher above them,
    however much its session allows.
    """
    market = Market(Party(0))
    state, account = market.core.state, market.clients[0].address
    session = _session(market, RICH)
    with state.transaction():
        client = Client(
            account,
            allocation=Amount(RICH),
            escrowed=Amount(RICH),
            charged=Amount(RICH),
            sessions=(session,),
        )
        state.clients[account] = client
        context = StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
        with pytest.raises(Refused) as refused:
            on_voucher(context, _voucher(market, SIGNABLE_MAX + 1))
        assert refused.value.code is Code.OVER_ALLOCATION and usd(SIGNABLE_MAX) in str(
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
        state.clients[account] = replace(
            before, allocation=Amount(RICH), escrowed=Amount(RICH), charged=SIGNABLE_MAX
        )
    with pytest.raises(Refused) as refused:
        market.order(0, 1, up_to=Amount(RICH), prepays=False)
    assert refused.value.code is Code.OVER_ALLOCATION
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


def _advanced(market: Market, *notes: ev.ChainNote) -> None:
    block = BlockNumber(market.core.state.own.block + 1)
    market.send(ev.ChainAdvanced(block, ZERO_HASH, UnixSeconds(market.at), notes))


def test_slot_closing_without_its_opening_changes_nothing() -> None:
    market = Market(Party(0))
    slots = market.core.state.hosts[HOST.id()].slots
    _advanced(
        market,
        ev.ChainSlotClosed(HOST.id(), 7, BlockNumber(9)),
        ev.ChainSlotClosed(ZERO_HASH, 0, BlockNumber(9)),
    )
    assert market.core.state.hosts[HOST.id()].slots == slots


def test_a_slot_position_beyond_any_list_takes_no_memory() -> None:
    market = Market(Party(0))
    _advanced(
        market, ev.ChainSlotOpened(HOST.id(), 2**63, market.clients[0].address, BlockNumber(9))
    )
    _advanced(
        market, ev.ChainSlotOpened(HOST.id(), 2**63, next(iter(market.parties)), BlockNumber(9))
    )
    assert len(market.core.state.hosts[HOST.id()].slots) == 1


def test_account_indices_that_a_reorganisation_swapped_do_not_stop_the_epoch() -> None:
    """In the old history the first account had the second's index. In the new history the second
    account has it.
    """
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1), market.order(1, 2))
    paid = [
        provider
        for provider in market.core.state.providers.values()
        if provider.held or provider.final
    ]
    one, two = paid[0], paid[1]
    market.send(ev.ChainReorganised(BlockNumber(0)))
    again = ev.ChainProviderRegistered(
        two.owner, one.index, two.operator_key, two.payout, two.network
    )
    _advanced(market, again)
    assert market.core.state.providers[two.owner].index == one.index
    leaves = {leaf.account: leaf for leaf in next_epoch(market, 1)}
    assert leaves[one.owner].index != leaves[two.owner].index
    assert all(leaves[owner.owner].final + leaves[owner.owner].held > 0 for owner in (one, two)), (
        "both are paid"
    )
    _advanced(
        market, ev.ChainProviderRegistered(one.owner, 77, one.operator_key, one.payout, one.network)
    )
    assert market.core.state.providers[one.owner].index == 77


def next_epoch(market: Market, number: int) -> tuple[Leaf, ...]:
    """Lets time pass until the coordinator builds epoch `number`; returns its leaves."""
    for _ in range(60):
        record = market.core.state.epochs.get(number)
        if record is not None:
            return record.leaves
        market.beat()
    raise AssertionError("no epoch is due")


def _newest_post(market: Market) -> PostEpoch:
    return [effect for effect in market.chain if isinstance(effect, PostEpoch)][-1]


def test_a_posting_whose_log_never_comes_is_found_by_a_chain_query() -> None:
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1))
    next_epoch(market, 1)
    first = _newest_post(market)
    client = market.clients[0].address
    assert market.core.state.clients[client].posted == 0
    market.send(ev.ChainStateQueried((ev.ChainNewestEpoch(1, first.root.hash),)))
    assert market.core.state.epochs[1].is_posted and market.core.state.clients[client].posted > 0
    market.until_decided(market.order(1, 2))
    next_epoch(market, 2)


def test_a_posting_that_a_reorganisation_took_away_is_made_again() -> None:
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1))
    next_epoch(market, 1)
    first, client = _newest_post(market), market.clients[0].address
    _advanced(market, ev.ChainEpochPosted(1, first.root.hash))
    market.until_decided(market.order(1, 2))
    next_epoch(market, 2)
    second = _newest_post(market)
    # The chain forgets the first, refuses the second for its number, and is asked what stands.
    asked = ev.ChainAllocationChanged(client, Amount(50_000_000), posted=Amount(0))
    market.send(ev.ChainStateQueried((asked, ev.ChainNewestEpoch(0, ZERO_HASH))))
    market.send(ev.TransactionRefused(second.key, "epoch"))
    assert market.core.state.own.epoch == 0
    next_epoch(market, 1)
    again = _newest_post(market)
    assert (
        again.number == 1 and again.root.final == second.root.final and len(again.vouchers) == 2
    ), "with all vouchers again"
    assert again.key != first.key, "one transaction a purpose: a new one"


def test_an_invented_posting_is_dropped_after_a_chain_query() -> None:
    """A node that invents one of the coordinator's epoch numbers must not make it skip numbers for
    ever.
    """
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1))
    _advanced(market, ev.ChainEpochPosted(2**40, Hash32(b"\x07" * 32)))
    next_epoch(market, 2**40 + 1)
    refused = _newest_post(market)
    market.send(ev.ChainStateQueried((ev.ChainNewestEpoch(0, ZERO_HASH),)))
    market.send(ev.TransactionRefused(refused.key, "epoch"))
    next_epoch(market, 1)


def test_an_allocation_that_a_reorganisation_removed_does_not_stop_the_epoch() -> None:
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1), market.order(1, 2))
    next_epoch(market, 1)
    refused, client = _newest_post(market), market.clients[0].address
    market.send(
        ev.ChainStateQueried(
            (
                ev.ChainAllocationChanged(client, Amount(0), posted=Amount(0)),
                ev.ChainNewestEpoch(0, ZERO_HASH),
            )
        )
    )
    market.send(ev.TransactionRefused(refused.key, "allocation"))
    market.clients, market.sessions = market.clients[1:], market.sessions[1:]
    next_epoch(market, 1)
    assert [item.voucher.message.payer for item in _newest_post(market).vouchers] == [
        market.clients[0].address
    ]


@pytest.mark.rule("6.1", "6.10")
def test_an_account_that_is_provider_and_client_has_one_leaf() -> None:
    """The account has one index and one claim. Two leaves once crashed the coordinator, and the
    chain pays only the larger of two.
    """
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1))
    state = market.core.state
    both = next(
        provider for provider in state.providers.values() if provider.final or provider.held
    )
    with state.transaction():
        state.indices[both.owner] = both.index
        state.clients[both.owner] = _with_refund(both.owner, 30)
        state.indices[COORDINATOR.address] = 1
        state.clients[COORDINATOR.address] = _with_refund(COORDINATOR.address, 20)
    leaves = next_epoch(market, 1)
    mine = [leaf for leaf in leaves if leaf.account == both.owner]
    assert [leaf.final + leaf.held for leaf in mine] == [both.final + both.held + 30]
    assert (
        mine[0].receipts_root == state.providers[both.owner].credits.root()
        and mine[0].index == both.index
    )
    assert len([leaf for leaf in leaves if leaf.account == COORDINATOR.address]) == 1
    assert sum(leaf.final + leaf.held for leaf in leaves) == sum(
        client.charged for client in state.clients.values()
    )


def _with_refund(account: Address, amount: int) -> Client:
    """Returns a client record with a refund from held pay, which its voucher covers."""
    much = Amount(amount)
    return Client(
        account,
        allocation=much,
        escrowed=much,
        charged=much,
        vouched=much,
        posted=much,
        refund=much,
    )


@pytest.mark.parametrize("is_second_over", [False, True])
def test_decided_case_does_not_end_the_freeze_of_another(is_second_over: bool) -> None:
    market = Market(Party(0))
    owner = next(iter(market.parties))
    _advanced(market, *(ev.ChainCaseOpened(Nonce(number), owner, (), ()) for number in (1, 2)))
    _advanced(market, ev.ChainCaseDecided(Nonce(1), False, Amount(0)))
    assert market.core.state.providers[owner].is_frozen
    if is_second_over:
        _advanced(market, ev.ChainCaseDecided(Nonce(2), False, Amount(0)))
        assert not market.core.state.providers[owner].is_frozen
