"""The simulated Escrow: balances and tabs (PROTOCOL §6).

It keeps its own books (I1) and checks what the contract checks. A promise is the greatest sum that
a payer signed or paid: no tab ever pays more (I11).
"""

from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace

from quorate_protocol.limits import DAY, Limits
from quorate_protocol.messages.envelope import Envelope, signer
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.tabs import Pay
from quorate_protocol.units import Address, Amount
from quorate_runtime.keys.crypto import recover
from sim.parties import DOMAIN

FOREVER = 2**63
JOBS, COURT = Address(b"\x0e" * 20), Address(b"\x0f" * 20)


@dataclass(frozen=True, slots=True)
class Tab:
    """One payer's tab for one payee."""

    locked: int = 0
    paid: int = 0
    drawn: int = 0
    closes_at: int = 0

    @property
    def free(self) -> int:
        """What vouchers can still take."""
        return self.locked - self.paid


@dataclass(frozen=True, slots=True)
class Coordinator:
    """What the registry knows of a coordinator: its keys, and its limits of a day."""

    posting: Address
    statements: tuple[tuple[Address, int], ...]  # keys, and the last second of each
    pay_limit: int
    lock_limit: int


def need(holds: bool, why: str) -> None:
    """Refuses a transaction, as the contract does."""
    if not holds:
        raise Refused(Code.CHAIN, why)


class Escrow:
    """The books. All values are immutable, so a copy of the tables is a copy of the books."""

    TABLES = ("balances", "tabs", "sessions", "spent", "promised", "coordinators")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tokens_in = self.tokens_out = 0
        self.balances: defaultdict[Address, int] = defaultdict(int)
        self.tabs: defaultdict[tuple[Address, Address], Tab] = defaultdict(Tab)
        # (payer, payee, key) -> (up to, expires)
        self.sessions: dict[tuple[Address, Address, Address], tuple[int, int]] = {}
        self.spent: defaultdict[tuple[Address, str, int], int] = defaultdict(int)  # of each day
        self.promised: defaultdict[tuple[Address, Address], int] = defaultdict(int)
        self.coordinators: dict[Address, Coordinator] = {}

    def copy(self) -> "Escrow":
        """The same books, which change by themselves."""
        again = copy(self)
        for name in self.TABLES:
            setattr(again, name, copy(getattr(self, name)))
        return again

    # ------------------------------------------------------------------------------------- balances

    def deposit(self, account: Address, amount: int, payee: Address | None = None) -> None:
        """Tokens come in, into a balance or straight into a tab."""
        need(payee is None or not self.tabs[account, payee].closes_at, "closing")
        self.tokens_in += amount
        self.balances[account] += amount
        if payee is not None:
            self.lock(account, payee, amount)

    def withdraw(self, account: Address, amount: int) -> None:
        """A balance is promised to nobody."""
        need(0 < amount <= self.balances[account], "amount")
        self.balances[account] -= amount
        self.tokens_out += amount

    def withdraw_all(self, account: Address) -> None:
        """Takes out a whole balance, if there is any."""
        if self.balances[account]:
            self.withdraw(account, self.balances[account])

    def move(self, sender: Address, receiver: Address, amount: int) -> None:
        """Moves a balance, for a module or a payment."""
        need(amount <= self.balances[sender], "amount")
        self.balances[sender] -= amount
        self.balances[receiver] += amount

    # ----------------------------------------------------------------------------------------- tabs

    def lock(self, payer: Address, payee: Address, amount: int) -> None:
        """Moves a balance into a tab."""
        tab = self.tabs[payer, payee]
        need(0 < amount <= self.balances[payer], "amount")
        need(not tab.closes_at, "closing")
        self.balances[payer] -= amount
        self.tabs[payer, payee] = replace(tab, locked=tab.locked + amount)

    def lock_many(
        self, sender: Address, payer: Address, locks: dict[Address, int], now: int
    ) -> None:
        """Locks guarantees by the posting key, within the limit of the day."""
        self._only_poster(sender, payer)
        need(sum(locks.values()) <= self.balances[payer], "amount")
        need(not any(self.tabs[payer, payee].closes_at for payee in locks), "closing")
        self._spend(payer, "locks", sum(locks.values()), now)
        for payee, amount in locks.items():
            self.lock(payer, payee, amount)

    def redeem(
        self,
        payee: Address,
        vouchers: Iterable[tuple[Envelope[Voucher], Envelope[Session] | None]],
        now: int,
    ) -> None:
        """Pays vouchers at once, as far as is locked. All or nothing, as a transaction is."""
        shown = tuple(vouchers)
        for _, session in shown:
            if session is not None:
                self._show(payee, session)
        for voucher, _ in shown:
            self._check_key(payee, voucher, now)
        for voucher, _ in shown:
            self._pay(voucher.message.payer, payee, voucher.message.cumulative)

    def _show(self, payee: Address, signed: Envelope[Session]) -> None:
        session = signed.message
        need(signer(DOMAIN, signed, recover) == session.client, "session")
        need(session.coordinator == payee, "session")
        place = session.client, payee, session.session_key
        up_to, expires = self.sessions.get(place, (0, 0))
        self.sessions[place] = max(up_to, session.up_to), max(expires, session.expires)

    def _check_key(self, payee: Address, signed: Envelope[Voucher], now: int) -> None:
        voucher, used = signed.message, signer(DOMAIN, signed, recover)
        need(voucher.payee == payee, "voucher")
        session = self.sessions.get((voucher.payer, payee, used))
        if session is not None:
            need(now <= session[1] + self.limits.client_close, "expired")
            need(voucher.cumulative <= session[0], "amount")
            return
        coordinator = self.coordinators.get(voucher.payer)
        need(coordinator is not None, "voucher")
        assert coordinator is not None
        ends = [until for statement, until in coordinator.statements if statement == used]
        need(bool(ends), "voucher")
        need(now <= ends[0] + self.limits.coordinator_close, "expired")

    def _pay(self, payer: Address, payee: Address, cumulative: int) -> None:
        place = payer, payee
        self.promised[place] = max(self.promised[place], cumulative)
        tab = self.tabs[place]
        added = max(0, min(cumulative, tab.locked) - tab.paid)
        is_balance = payee in self.coordinators
        drawn = tab.drawn + (added if is_balance else 0)
        self.tabs[place] = replace(tab, paid=tab.paid + added, drawn=drawn)
        if is_balance:
            self.balances[payee] += added

    def payroll(self, sender: Address, payer: Address, pays: Iterable[Pay], now: int) -> None:
        """Pays cumulative sums from a balance. What is locked stays locked."""
        self._only_poster(sender, payer)
        added = {
            pay.payee: pay.cumulative - self.tabs[payer, pay.payee].paid
            for pay in pays
            if pay.cumulative > self.tabs[payer, pay.payee].paid
        }
        total = sum(added.values())
        need(total <= self.balances[payer], "amount")
        self._spend(payer, "payroll", total, now)
        self.balances[payer] -= total
        for payee, amount in added.items():
            tab = self.tabs[payer, payee]
            paid = tab.paid + amount
            self.tabs[payer, payee] = replace(tab, locked=tab.locked + amount, paid=paid)
            self.promised[payer, payee] = max(self.promised[payer, payee], paid)

    def draw(self, payee: Address) -> int:
        """Sends what tabs credited to a payee; returns it."""
        total = 0
        for (payer, owner), tab in list(self.tabs.items()):
            if owner == payee and tab.paid > tab.drawn:
                total += tab.paid - tab.drawn
                self.tabs[payer, owner] = replace(tab, drawn=tab.paid)
        need(total > 0, "amount")
        self.tokens_out += total
        return total

    def give_back(
        self, sender: Address, payer: Address, payee: Address, amount: int, now: int
    ) -> None:
        """The payee frees locked money; its posting key does so within the limit of the day."""
        tab = self.tabs[payer, payee]
        if sender != payee:
            self._only_poster(sender, payee)
        need(0 < amount <= tab.free, "amount")
        if sender != payee:
            self._spend(payee, "locks", amount, now)
        self.tabs[payer, payee] = replace(tab, locked=tab.locked - amount)
        self.balances[payer] += amount

    def close(self, payer: Address, payee: Address, now: int) -> None:
        """The payer announces the end of a tab."""
        tab = self.tabs[payer, payee]
        need(tab != Tab() and not tab.closes_at, "closing")
        is_coordinator = payer in self.coordinators
        delay = self.limits.coordinator_close if is_coordinator else self.limits.client_close
        self.tabs[payer, payee] = replace(tab, closes_at=now + delay)

    def finish(self, payer: Address, payee: Address, now: int) -> None:
        """What is left of a closing tab is its payer's balance."""
        tab = self.tabs[payer, payee]
        need(0 < tab.closes_at < now, "early")
        self.balances[payer] += tab.free
        self.tabs[payer, payee] = replace(tab, locked=tab.paid, closes_at=0)

    # --------------------------------------------------------------------------------------- limits

    def _only_poster(self, sender: Address, account: Address) -> None:
        known = self.coordinators.get(account)
        need(known is not None and sender == known.posting, "signer")

    def left(self, account: Address, what: str, now: int) -> Amount:
        """What a day's limit leaves to a posting key."""
        known = self.coordinators[account]
        limit = known.pay_limit if what == "payroll" else known.lock_limit
        return Amount(limit - self.spent.get((account, what, now // DAY), 0))

    def _spend(self, account: Address, what: str, amount: int, now: int) -> None:
        need(amount <= self.left(account, what, now), "limit")
        self.spent[account, what, now // DAY] += amount

    # --------------------------------------------------------------------------------------- checks

    def check(self, before: "Escrow | None") -> None:
        """I1: tokens = balances and what tabs hold; drawn <= paid <= locked; no sum falls.

        I11: a tab never paid more than its payer promised, and no day moved more than its limit.
        """
        held = sum(self.balances.values())
        held += sum(tab.locked - tab.drawn for tab in self.tabs.values())
        there = self.tokens_in - self.tokens_out
        assert there == held, f"I1: {there} tokens are there, {held} are accounted for"
        assert all(amount >= 0 for amount in self.balances.values()), "I1: a negative balance"
        for place, tab in self.tabs.items():
            assert tab.drawn <= tab.paid <= tab.locked, f"I1: a tab of {tab}"
            assert tab.paid <= self.promised[place], "I11: a tab paid more than was promised"
            earlier = before.tabs.get(place) if before is not None else None
            assert earlier is None or earlier.paid <= tab.paid, "I1: what a tab paid fell"
        for (account, what, _), spent in self.spent.items():
            known = self.coordinators[account]
            limit = known.pay_limit if what == "payroll" else known.lock_limit
            assert spent <= limit, f"I11: a posting key moved {spent} of {limit} in a day"
