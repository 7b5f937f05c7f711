"""Money over tabs: vouchers, payrolls, redemptions, guarantees and what a client gets back.

The rules are PROTOCOL §6. `Market.escrow` is the chain, and confirms once a second.
"""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import (
    PaidVoucher,
    Send,
    SendGiveBack,
    SendLocks,
    SendPayroll,
    SendRedeem,
)
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger, payees
from quorate_protocol.limits import DAY, DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Assignment, Session, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    DeclineReason,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.scripted_market import COORDINATOR, DOMAIN, STATEMENT, Market, Party
from support.refusals import refuses

US = COORDINATOR.address


def a_market(count: int = 3) -> Market:
    return Market(*[Party(number) for number in range(count)])


def vouchers(market: Market) -> list[Voucher]:
    found = [effect.frame for effect in market.sent(Send)]
    return [frame.voucher.message for frame in found if isinstance(frame, frames.VoucherSent)]


def works(market: Market, jobs: int = 3) -> None:
    for nonce in range(1, jobs + 1):
        market.until_decided(market.order(nonce % 2, nonce))
    market.beat()


@pytest.mark.rule("I1", "6.68", "6.73", "6.82", "6.86")
def test_final_pay_is_vouched_and_paid_from_what_clients_vouchers_bring() -> None:
    market = a_market()
    works(market)
    owed = {owner: market.earned(owner) for owner in market.parties}
    newest = {item.payee: item.cumulative for item in vouchers(market)}
    assert newest == {owner: amount for owner, amount in owed.items() if amount}
    assert all(item.payer == US for item in vouchers(market))
    sent = [effect.frame for effect in market.sent(Send)]
    frame = next(frame for frame in sent if isinstance(frame, frames.VoucherSent))
    assert frame.voucher == seal(DOMAIN, frame.voucher.message, STATEMENT.sign)
    market.beats(DEVNET.redeem_every + DEVNET.pay_every + 5)
    paid = {payee.account: payee.tab.paid for payee in market.core.state.payees.values()}
    assert {owner: paid.get(owner, 0) for owner in owed} == owed
    payrolls = market.sent(SendPayroll)
    assert payrolls and len({effect.key for effect in payrolls}) == len(payrolls)
    assert payrolls[-1].root == market.core.state.own.log.root()
    for client in market.core.state.clients.values():
        assert client.tab.paid >= client.charged > 0, "redeemed after a while"
    before = len(market.chain)
    market.beats(3 * DEVNET.redeem_every)
    assert len(market.chain) == before and not market.core.needs_tick(), "nothing is left to do"


@pytest.mark.rule("6.86")
def test_a_payroll_stays_inside_balance_and_limit_and_one_is_under_way() -> None:
    market = a_market()
    market.escrow.balance = market.escrow.limit = 0
    market.chain_says(*market.escrow.own_notes())
    works(market)
    market.beats(DEVNET.pay_every)
    assert not market.sent(SendPayroll)
    market.escrow.balance, market.escrow.limit = 10_000, 700
    market.chain_says(*market.escrow.own_notes())
    market.confirm = lambda: None  # type: ignore[method-assign]
    market.beats(3 * DEVNET.pay_every)
    (payroll,) = market.sent(SendPayroll)
    assert sum(pay.cumulative for pay in payroll.pays) == 700
    market.send(ev.TransactionRefused(payroll.key, "limit"))
    market.beats(3 * DEVNET.pay_every)
    assert len(market.sent(SendPayroll)) == 2, "it is built again"
    market.send(ev.TransactionRefused(payroll.key, "limit"))
    market.beats(3 * DEVNET.pay_every)
    assert len(market.sent(SendPayroll)) == 2, "the same refusal again is of the first one"


@pytest.mark.rule("6.85")
def test_a_live_owner_with_stake_gets_a_guarantee_and_a_closing_tab_none() -> None:
    market = a_market(2)
    market.beats(3)
    first = DEVNET.slot_stake // 20
    assert [market.payee(owner).tab.free for owner in market.parties] == [first, first]
    locks = len(market.sent(SendLocks))
    market.beats(30)
    assert len(market.sent(SendLocks)) == locks, "half of it is enough"
    owner = next(iter(market.parties))
    market.escrow.tabs[US, owner] = first, first
    market.chain_says(ev.ChainTabChanged(US, owner, Amount(first), Amount(first)))
    market.beats(3)
    assert market.payee(owner).tab.free == first
    closing = UnixSeconds(market.at + 90)
    market.chain_says(ev.ChainTabChanged(US, owner, Amount(0), Amount(0), closing))
    market.beats(3)
    assert not market.payee(owner).tab.free


class Cautious(Market):
    """A market whose first provider declines what no guarantee covers."""

    ran_ms = 0
    declined = 0

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        if party.number or self.payee(party.owner).tab.free > 6_000_000:
            super()._run(party, assignment, spec)
            return
        self.declined += 1
        self.decline(party, assignment, DeclineReason.UNSECURED)


@pytest.mark.rule("6.83")
def test_an_unsecured_decline_counts_against_nobody_and_ends_with_a_larger_guarantee() -> None:
    market = Cautious(*[Party(number) for number in range(4)])
    owner = next(iter(market.parties))
    for nonce in range(1, 15):
        market.beats(20)  # it is left out for so long
        before = market.declined
        market.until_decided(market.order(0, nonce))
        if market.declined > before:
            assert market.core.state.providers[owner].unsecured_until > market.at - 5
    assert market.declined > 4
    answered, executions = (market.core.state.trust.get(owner) or Trusts()).availability()
    assert (answered, executions) == (0, 0), "the public log has none of it"
    market.escrow.tabs[US, owner] = (7_000_000, 0)
    market.chain_says(ev.ChainTabChanged(US, owner, Amount(7_000_000), Amount(0)))
    assert not market.core.state.providers[owner].unsecured_until
    declined = market.declined
    for nonce in range(20, 32):
        market.until_decided(market.order(0, nonce))
    assert market.declined == declined and market.earned(owner)


@pytest.mark.rule("6.87")
@pytest.mark.parametrize("clock", ["closing", "session", "balance", "none", "leaving"])
def test_a_voucher_is_redeemed_at_once_when_a_clock_runs_against_it(clock: str) -> None:
    market = a_market()
    limits = replace(DEVNET, redeem_every=Seconds(DAY - 1))
    market.core.rules = replace(market.core.rules, limits=limits)
    if clock == "balance":
        market.escrow.balance = 100
        market.chain_says(*market.escrow.own_notes())
    market.until_decided(market.order(0, 1))
    client = market.client()
    if clock == "closing":
        locked, closing = client.tab.locked, UnixSeconds(market.at + 60)
        market.chain_says(ev.ChainTabChanged(client.account, US, locked, Amount(0), closing))
    if clock == "leaving":
        market.chain_says(ev.ChainSlotsClosed(US, BlockNumber(1)))
    if clock == "session":
        assert client.voucher_session is not None
        market.at = client.voucher_session.message.expires
    market.beats(2 * DEVNET.pay_every)
    redeemed = [item for effect in market.sent(SendRedeem) for item in effect.vouchers]
    paid = market.core.state.clients[client.account].tab.paid
    if clock == "none":
        assert not redeemed and not paid
    else:
        assert redeemed == [PaidVoucher(client.voucher, client.voucher_session)]  # type: ignore[arg-type]
        assert paid == client.vouched >= client.charged


def test_a_voucher_that_the_chain_refuses_holds_back_no_other() -> None:
    market = a_market()
    market.confirm = lambda: None  # type: ignore[method-assign]
    market.until_decided(market.order(0, 1), market.order(1, 2))
    market.beats(DEVNET.redeem_every + 5)
    (both,) = market.sent(SendRedeem)
    assert len(both.vouchers) == 2
    market.send(ev.TransactionRefused(both.key, "expired"))
    market.beats(5)
    alone = market.sent(SendRedeem)[-1]
    assert len(alone.vouchers) == 1
    market.send(ev.TransactionRefused(alone.key, "expired"))
    market.beats(5)
    other = market.sent(SendRedeem)[-1]
    assert other.vouchers[0] != alone.vouchers[0]
    market.send(ev.TransactionConfirmed(other.key, tuple(market.escrow.take(other))))
    market.beats(DEVNET.pay_every)
    again = market.sent(SendRedeem)[-1]
    assert again.vouchers == alone.vouchers and again.key != alone.key, "after a day"


@pytest.mark.rule("4.80", "I4")
def test_no_order_on_a_closing_tab_and_no_voucher_of_a_session_that_is_nearly_over() -> None:
    market = a_market()
    market.until_decided(market.order(0, 1))
    client = market.client()
    assert client.voucher_session is not None
    over = client.voucher_session.message.expires + DEVNET.client_close
    market.at = over - DEVNET.client_close // 2
    market.vouch(0, Amount(client.vouched + 1))
    market.at += 1
    with refuses(Code.EXPIRED):
        market.vouch(0, Amount(client.vouched + 2))
    market = a_market()
    locked, closing = client.tab.locked, UnixSeconds(market.at + 60)
    market.chain_says(ev.ChainTabChanged(client.account, US, locked, Amount(0), closing))
    with pytest.raises(Refused, match="closing"):
        market.order(0, 2)


def test_a_voucher_counts_as_far_as_is_locked() -> None:
    market = a_market()
    account = market.clients[0].address
    market.until_decided(market.order(0, 1))
    market.chain_says(ev.ChainTabChanged(account, US, Amount(4_000), Amount(0)))
    market.vouch(0, Amount(9_000_000))
    assert market.core.state.clients[account].vouched == 4_000
    market.chain_says(ev.ChainTabChanged(account, US, Amount(50_000_000), Amount(0)))
    assert market.core.state.clients[account].vouched == 9_000_000
    market.chain_says(ev.ChainTabChanged(account, US, Amount(50_000_000), Amount(9_500_000)))
    assert market.core.state.clients[account].vouched == 9_500_000, "somebody relayed a newer one"


@pytest.mark.rule("4.81", "6.89", "6.90")
def test_a_client_gets_back_what_nothing_needs_and_what_it_paid_beyond_its_charges() -> None:
    market = a_market()
    account = market.clients[0].address
    market.until_decided(market.order(0, 1))
    market.beats(DEVNET.redeem_every + 5)
    client = market.core.state.clients[account]
    excess = client.tab.paid - client.charged
    assert excess > 0, "its voucher covered what the job reserved"
    market.confirm = lambda: None  # type: ignore[method-assign]
    asked = ev.GiveBackAsked(account, Amount(10**9))
    assert market.send(asked) == market.send(asked) == 50_000_000 - client.tab.paid
    assert len(market.sent(SendGiveBack)) == 1
    with pytest.raises(Refused, match="available"):
        market.order(0, 2)
    del market.confirm
    market.beats(DEVNET.pay_every + 3)
    client = market.core.state.clients[account]
    assert client.tab == Tab(client.tab.paid, client.tab.paid) and client.charged == client.tab.paid
    assert market.payee(account).tab.paid == excess, "by payroll"
    assert not any(item.payee == account for item in vouchers(market))
    assert market.send(asked) == market.send(asked) == 0
    market.chain_says(ev.ChainTabChanged(STATEMENT.address, US, Amount(5), Amount(0)))
    market.chain_says(ev.ChainTabChanged(STATEMENT.address, US, Amount(0), Amount(0)))
    assert STATEMENT.address not in market.core.state.clients, "it never ordered"


@pytest.mark.rule("5.140", "6.89")
def test_a_client_asks_once_a_day_for_a_part_of_its_tab() -> None:
    """Otherwise it makes the coordinator send one transaction after the other for nothing."""
    market = a_market()
    account = market.clients[0].address
    for _ in range(2):
        assert market.send(ev.GiveBackAsked(account, Amount(1))) == 1
        market.confirm()
        with pytest.raises(Refused, match="once a day"):
            market.send(ev.GiveBackAsked(account, Amount(1)))
        market.at += DEVNET.pay_every
    market.at -= DEVNET.pay_every
    assert market.send(ev.GiveBackAsked(account, Amount(10**9))) == 49_999_998


@pytest.mark.rule("5.111", "6.90")
@pytest.mark.parametrize("is_leaving", [False, True])
def test_a_refund_lowers_what_is_charged(is_leaving: bool) -> None:
    market = a_market()
    account, state = market.clients[0].address, market.core.state
    first, second = market.order(0, 1), market.order(0, 2)
    market.until_decided(first, second)
    charged, job = state.clients[account].charged, market.job(first)
    (credit, *_) = job.split.credits
    lease = state.leases[credit.assignment_hash]
    with state.transaction():
        context = StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
        client = state.clients[account]
        closing = UnixSeconds(market.at + 60) if is_leaving else UnixSeconds(0)
        tab = Tab(client.tab.locked, client.vouched, closing)
        # the pay is held again, as if the verdict were provisional, and nobody covers the rest
        state.clients[account] = replace(client, tab=tab, open_charges=())
        payee = payees.of(state, lease.provider)
        final = Amount(payee.final - credit.amount)
        state.payees[payee.account] = replace(payee, final=final, held=credit.amount, vouched=final)
        payees.hold(context, lease.provider, -credit.amount)
        ledger.refund(context, job, credit.amount)
        ledger.check(context)
    paid = market.payee(account).final
    if is_leaving:
        assert state.clients[account].charged == charged - credit.amount + paid
        assert paid == state.clients[account].tab.paid - (charged - credit.amount) > 0
    else:
        assert state.clients[account].charged == charged - credit.amount and not paid


@pytest.mark.rule("6.88")
def test_the_core_knows_when_others_have_more_than_it_signed_and_never_signs_less() -> None:
    market = a_market()
    works(market)
    market.beats(2 * DEVNET.pay_every)
    owner = max(market.parties, key=market.earned)
    vouched = market.payee(owner).vouched
    state = market.core.state
    assert not payees.is_newer(state, Voucher(US, owner, vouched))
    assert payees.is_newer(state, Voucher(US, owner, Amount(vouched + 1)))
    assert not payees.paid_beyond(state)
    paid = Amount(vouched + 50_000)
    market.escrow.tabs |= {(US, party): (paid, paid) for party in market.parties}
    notes = [ev.ChainTabChanged(US, party, paid, paid) for party in market.parties]
    market.chain_says(*notes)
    assert set(payees.paid_beyond(state)) == set(market.parties)
    before = len(vouchers(market))
    market.until_decided(*(market.order(0, nonce) for nonce in range(10, 13)))
    market.beats(1)
    later = [item.cumulative for item in vouchers(market)[before:]]
    assert later and min(later) == paid


@pytest.mark.rule("6.85")
def test_daily_pay_is_an_average_of_a_week() -> None:
    market = a_market()
    owner: Address = next(iter(market.parties))
    state = market.core.state
    found = []
    with state.transaction():
        for day in range(40):
            at = UnixSeconds((20_000 + day) * DAY)
            context = StepContext(state, market.core.rules, at, ZERO_HASH)
            if day < 30:
                payees.hold(context, owner, 7_000)
            found.append(payees.daily_pay(payees.of(state, owner), at))
    assert found[0] == 7_000 and all(amount == 7_000 for amount in found[:30])
    assert 1_000 < found[-1] < 3_000


def test_a_longer_session_of_the_same_voucher_is_kept() -> None:
    market = a_market()
    market.until_decided(market.order(0, 1))
    client = market.client()
    assert client.voucher is not None and client.voucher_session is not None
    before = client.voucher_session.message
    for later in (100, 50):
        message: Session = replace(before, expires=UnixSeconds(before.expires + later))
        market.send(ev.SessionReceived(seal(DOMAIN, message, market.clients[0].sign)))
        market.send(ev.VoucherReceived(client.voucher, market.sessions[0].address))
    kept = market.core.state.clients[client.account].voucher_session
    assert kept is not None and kept.message.expires == before.expires + 100
