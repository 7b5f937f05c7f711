"""Tests what tabs pay, when, for whose signature, and what is left at their end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from contracts.world import CLIENT_CLOSE, COORDINATOR_CLOSE, Sent, World, account, market
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH

C, K, K2, P, ANY = "client0", "coordinator", "coordinator2", "owner0", "stranger"
ORDER = 2**256 - 432420386565659656852420866394968145599  # of the curve


@dataclass
class Tabs:
    """Client, coordinator and owner with 100 USD in each tab."""

    world: World

    def redeem(self, payee: str, *vouchers: Any, sessions: Any = (), by: str = ANY) -> Sent:
        call = (account(payee), ZERO_HASH, list(sessions), list(vouchers))
        return self.world.send(by, self.world.escrow, "redeem", *call)

    def refused(self, reason: str, payee: str, *vouchers: Any, sessions: Any = ()) -> None:
        call = (account(payee), ZERO_HASH, list(sessions), list(vouchers))
        self.world.refused(reason, ANY, self.world.escrow, "redeem", *call)

    def paid(self, cumulative: int, key: str = "") -> int:
        """The client's tab after a voucher was sent."""
        self.redeem(K, self.world.voucher(C, K, cumulative, key))
        return self.world.tab(C, K)[1]

    def rotate(self, account_: str, fresh: str) -> None:
        self.world.send(account_, self.world.stakes, "rotate_key", account(fresh))


@pytest.fixture(scope="module")
def opened() -> Tabs:
    world = market()
    world.coordinator(K2)
    world.provider(P)
    for payer, payee in ((C, K), (C, K2), (K, P), (P, K)):
        world.fund(payer, 200 * USD)
        world.send(payer, world.escrow, "deposit", 100 * USD, account(payee))
    tabs = Tabs(world)
    tabs.redeem(K, sessions=[world.session(C)])
    return tabs


@pytest.fixture
def tabs(opened: Tabs) -> Tabs:
    return Tabs(opened.world.fork())


REFUSED: dict[str, tuple[str, Callable[[World], Any]]] = {
    "a stranger's key": ("voucher", lambda w: w.voucher(C, K, USD, "stranger")),
    "the account's own key": ("voucher", lambda w: w.voucher(C, K, USD, C)),
    "a key of another payer": ("voucher", lambda w: w.voucher(P, K, USD, f"{C} session")),
    "an owner's operator key": ("voucher", lambda w: w.voucher(P, K, USD, f"{P} operator")),
    "another chain": (
        "voucher",
        lambda w: w.voucher(C, K, USD, domain=Domain(1, w.stakes.address)),
    ),
    "another deployment": (
        "voucher",
        lambda w: w.voucher(C, K, USD, domain=Domain(31337, w.escrow.address)),
    ),
    "another tab": ("voucher", lambda w: w.voucher(C, K2, USD)),
    "another sum": ("voucher", lambda w: (w.voucher(C, K, USD)[0] + 1, w.voucher(C, K, USD)[1])),
    "more than the session allows": ("amount", lambda w: w.voucher(C, K, 10**12 + 1)),
}


@pytest.mark.rule("6.66")
@pytest.mark.parametrize("name", REFUSED)
def test_vouchers_that_pay_nothing(tabs: Tabs, name: str) -> None:
    reason, made = REFUSED[name]
    tabs.refused(reason, K, made(tabs.world))


def test_a_voucher_has_one_form(tabs: Tabs) -> None:
    debt, (r, s, v) = tabs.world.voucher(C, K, USD)
    tabs.refused("signature", K, (debt, (r, ORDER - s, 55 - v)))
    tabs.refused("signature", K, (debt, (r, s, 29)))


@pytest.mark.rule("6.65")
def test_vouchers_pay_once_in_any_order_by_any_sender(tabs: Tabs) -> None:
    sent = tabs.redeem(K, tabs.world.voucher(C, K, 10), tabs.world.voucher(C, K, 10))
    assert [(e.payer, e.payee, e.paid) for e in sent.all("Redeemed")] == [
        (account(C), account(K), 10)
    ]
    assert tabs.paid(30) == tabs.paid(20) == tabs.paid(30) == 30
    assert tabs.world.balance(K) == 30 and tabs.world.tab(C, K) == (100 * USD, 30, 30, 0)


@pytest.mark.rule("6.64", "6.65")
def test_a_voucher_above_what_is_locked_stays_due(tabs: Tabs) -> None:
    assert tabs.paid(150 * USD) == 100 * USD
    sent = tabs.world.send(C, tabs.world.escrow, "deposit", 20 * USD, account(K))
    assert sent.one("Deposited").amount == sent.one("Locked").amount == 20 * USD
    assert tabs.paid(150 * USD) == 120 * USD


@pytest.mark.rule("6.66")
def test_sessions_end_no_voucher_and_only_grow(tabs: Tabs) -> None:
    world, now = tabs.world, tabs.world.now
    shown = world.session(C, up_to=50, expires=now + 90 * DAY)
    event = tabs.redeem(K, sessions=[shown]).one("SessionShown")
    assert (event.key, event.upTo, event.expires) == (shown[1], 10**12, now + 90 * DAY)
    tabs.redeem(K, sessions=[world.session(C, key="another", up_to=2**128 - 1)])
    tabs.redeem(K, sessions=[world.session(C, up_to=10**12 + 5, expires=0)])
    place = (account(C), account(K), account(f"{C} session"))
    assert world.ask(world.escrow, "session", *place) == (10**12 + 5, now + 90 * DAY)
    assert tabs.paid(20) == 20 and tabs.paid(30, "another") == 30
    tabs.refused("session", K, sessions=[world.session(C, signer="stranger")])
    tabs.refused("voucher", K2, world.voucher(C, K2, 1))
    tabs.refused("signature", K, sessions=[(*world.session(C)[:4], (1, ORDER - 1, 27))])


@pytest.mark.rule("2.5", "6.67")
@pytest.mark.parametrize(
    ("payer", "payee", "key", "delay"),
    [(C, K, f"{C} session", CLIENT_CLOSE), (K, P, f"{K} statement", COORDINATOR_CLOSE)],
)
def test_a_key_counts_for_a_closing_delay_beyond_its_end(
    tabs: Tabs, payer: str, payee: str, key: str, delay: int
) -> None:
    if payer == K:
        tabs.rotate(K, "fresh")
    else:
        tabs.world.evm.travel(30 * DAY)
    tabs.world.evm.travel(delay)
    tabs.redeem(payee, tabs.world.voucher(payer, payee, 5, key))
    tabs.world.evm.travel(1)
    tabs.refused("expired", payee, tabs.world.voucher(payer, payee, 6, key))


@pytest.mark.rule("6.66", "6.70")
def test_a_coordinators_statement_key_pays_an_owner_that_draws_it(tabs: Tabs) -> None:
    world = tabs.world
    tabs.refused("voucher", P, world.voucher(K, P, 5, f"{K2} statement"))
    world.refused("amount", ANY, world.escrow, "draw", account(P), [account(K)])
    tabs.redeem(P, world.voucher(K, P, 5, f"{K} statement"))
    assert world.tab(K, P) == (100 * USD, 5, 0, 0) and world.balance(P) == 0
    event = world.send(ANY, world.escrow, "draw", account(P), [account(K)] * 2).one("Drawn")
    assert (event.receiver, event.amount) == (account(f"{P} payout"), 5)
    assert world.tokens(f"{P} payout") == 5 and world.tab(K, P)[2] == 5


def test_one_draw_sends_the_credit_of_several_payers(tabs: Tabs) -> None:
    world, payers = tabs.world, [account(K), account(K2), account("nobody")]
    world.fund(K2, 10)
    world.send(K2, world.escrow, "deposit", 10, account(P))
    for payer, sum_ in ((K, 5), (K2, 7)):
        tabs.redeem(P, world.voucher(payer, P, sum_, f"{payer} statement"))
    sent = world.send(ANY, world.escrow, "draw", account(P), payers)
    assert [each.amount for each in sent.all("Drawn")] == [5, 7]
    assert world.tokens(f"{P} payout") == 12


@pytest.mark.rule("6.73")
def test_only_the_payee_states_what_a_redemption_pays_for(tabs: Tabs) -> None:
    world, root = tabs.world, b"\1" * 32
    for payee, who in ((K, K), (K, f"{K} posting"), (P, P)):
        sent = world.send(who, world.escrow, "redeem", account(payee), root, [], [])
        assert (sent.one("Receipts").payee, sent.one("Receipts").root) == (account(payee), root)
    for payee, who in ((K, f"{K} statement"), (K, C), (P, f"{K} posting"), (P, ANY)):
        world.refused("root", who, world.escrow, "redeem", account(payee), root, [], [])


@pytest.mark.rule("6.72")
@pytest.mark.parametrize(
    ("payer", "payee", "delay"), [(C, K, CLIENT_CLOSE), (K, P, COORDINATOR_CLOSE)]
)
def test_a_closing_tab_pays_vouchers_and_takes_no_money(
    tabs: Tabs, payer: str, payee: str, delay: int
) -> None:
    world, place = tabs.world, (account(payer), account(payee))
    key = f"{C} session" if payer == C else f"{K} statement"
    world.send(payer, world.escrow, "deposit", USD, ZERO_ADDRESS)
    world.refused("early", ANY, world.escrow, "finish", *place)
    ends = world.now + delay
    assert world.send(payer, world.escrow, "close", place[1]).one("Closing").closesAt == ends
    for name, arguments in (("deposit", (USD, place[1])), ("lock", (place[1], USD))):
        world.refused("closing", payer, world.escrow, name, *arguments)
    world.refused("closing", payer, world.escrow, "close", place[1])
    world.evm.now = ends
    world.refused("early", ANY, world.escrow, "finish", *place)
    world.evm.travel(1)
    tabs.redeem(payee, world.voucher(payer, payee, 10 * USD, key))
    event = world.send(ANY, world.escrow, "finish", *place).one("Closed")
    assert event.amount == 90 * USD and world.balance(payer) == 91 * USD
    assert world.tab(payer, payee)[:2] == (10 * USD, 10 * USD)
    world.refused("early", ANY, world.escrow, "finish", *place)
    world.send(payer, world.escrow, "lock", place[1], 20 * USD)
    for cumulative in (10 * USD, 12 * USD, 10 * USD):
        tabs.redeem(payee, world.voucher(payer, payee, cumulative, key))
    assert world.tab(payer, payee)[:2] == (30 * USD, 12 * USD)


@pytest.mark.rule("6.72")
def test_only_the_payer_closes_a_tab(tabs: Tabs) -> None:
    for who in (K, f"{K} posting", f"{C} session", ANY):
        tabs.world.refused("closing", who, tabs.world.escrow, "close", account(K))


@pytest.mark.rule("6.71")
@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (K, ""),
        (f"{K} posting", ""),
        (f"{K} statement", "signer"),
        (f"{K2} posting", "signer"),
        (C, "signer"),
        (ANY, "signer"),
    ],
)
def test_who_gives_locked_money_back(tabs: Tabs, who: str, reason: str) -> None:
    world = tabs.world
    tabs.paid(40 * USD)
    call = (account(C), account(K))
    if reason:
        return world.refused(reason, who, world.escrow, "give_back", *call, 1)
    for amount in (0, 60 * USD + 1):
        world.refused("amount", who, world.escrow, "give_back", *call, amount)
    event = world.send(who, world.escrow, "give_back", *call, 60 * USD).one("GivenBack")
    assert event.amount == 60 * USD and world.balance(C) == 60 * USD
    assert world.tab(C, K)[:2] == (40 * USD, 40 * USD)
    return None


def test_amounts_that_no_tab_takes(tabs: Tabs) -> None:
    world, lock, place = tabs.world, "lock", account(K)
    world.send(C, world.escrow, "deposit", USD, ZERO_ADDRESS)
    for arguments in ((place, 0), (place, USD + 1), (account(C), 1), (place, 2**256 - 1)):
        world.refused("amount", C, world.escrow, lock, *arguments)
    world.refused("amount", C, world.escrow, "deposit", 0, ZERO_ADDRESS)
    world.fund("whale", 2**60 - 1 - world.tokens(world.escrow.address))
    all_ = world.tokens("whale")
    world.refused("amount", "whale", world.escrow, "deposit", all_ + 1, ZERO_ADDRESS)
    world.send("whale", world.escrow, "deposit", all_, place)
    assert world.tab("whale", K)[0] == all_
    shown = world.session("whale", up_to=2**128 - 1, expires=2**64 - 1)
    tabs.redeem(K, world.voucher("whale", K, all_), sessions=[shown])
    bounds = world.ask(world.escrow, "session", account("whale"), place, shown[1])
    assert bounds == (2**128 - 1, 2**64 - 1)
    world.send(K, world.escrow, "withdraw", all_)
    world.fund("whale", all_)
    more = 2**60 - all_
    world.refused("amount", "whale", world.escrow, "deposit", more, place)
    world.send("whale", world.escrow, "deposit", more - 1, place)


@pytest.mark.rule("6.63")
def test_balances_move_between_accounts_and_modules(tabs: Tabs) -> None:
    world = tabs.world
    world.send(C, world.escrow, "deposit", 100, ZERO_ADDRESS)
    pays = [
        (int.from_bytes(account(P), "big") << 96) | 30,
        (int.from_bytes(account(K), "big") << 96) | 20,
    ]
    sent = world.send(C, world.escrow, "pay", pays)
    assert sent.one("PaidMany").sender == account(C)
    assert list(sent.one("PaidMany").pays) == pays
    world.refused("amount", C, world.escrow, "pay", [pays[0], pays[1], pays[1] + 10])
    world.refused("module", C, world.escrow, "take", account(P), 1)
    world.refused("module", P, world.escrow, "take", account(P), 1)
    world.refused("amount", "court", world.escrow, "take", account(P), 31)
    world.send("court", world.escrow, "take", account(P), 30)
    assert [world.balance(who) for who in (C, P, K, "court")] == [50, 0, 20, 30]
    for amount in (0, 51):
        world.refused("amount", C, world.escrow, "withdraw", amount)
    event = world.send(C, world.escrow, "withdraw", 50).one("Withdrawn")
    assert (event.account, event.receiver, event.amount) == (account(C), account(C), 50)
