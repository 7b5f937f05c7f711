"""Calls, queries and events of `Escrow`.

Written by `binding_writer` from the contract; do not edit it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import Call, Contract, Query, one, struct_of, values
from quorate_protocol.units import Address, Amount, Hash32, Nonce, Seconds, Signature, UnixSeconds


@dataclass(frozen=True, slots=True)
class LimitsOf:
    """What `Escrow` calls limits_of."""

    payroll: int
    paid: Amount
    locks: int
    moved: int


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """What `Escrow` calls terms."""

    nonce: Nonce
    deadline: UnixSeconds
    max_fee: int


@dataclass(frozen=True, slots=True)
class EscrowSession:
    """What `Escrow` calls session."""

    payer: Address
    session_key: Address
    up_to: Amount
    expires: UnixSeconds
    sig: Signature


@dataclass(frozen=True, slots=True)
class EscrowVoucher:
    """What `Escrow` calls voucher."""

    debt: int
    sig: Signature


@dataclass(frozen=True, slots=True)
class Tab:
    """What `Escrow` calls tab."""

    locked: Amount
    paid: Amount
    drawn: Amount
    closes_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Locked:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class SessionShown:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    key: Address
    up_to: Amount
    expires: UnixSeconds


@dataclass(frozen=True, slots=True)
class Redeemed:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    paid: Amount


@dataclass(frozen=True, slots=True)
class Receipts:
    """An event of `Escrow`."""

    payee: Address
    root: Hash32


@dataclass(frozen=True, slots=True)
class Payroll:
    """An event of `Escrow`."""

    payer: Address
    root: Hash32
    amount: Amount


@dataclass(frozen=True, slots=True)
class Drawn:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    receiver: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class GivenBack:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Closing:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    closes_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Closed:
    """An event of `Escrow`."""

    payer: Address
    payee: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """An event of `Escrow`."""

    account: Address
    receiver: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Paid:
    """An event of `Escrow`."""

    sender: Address
    receiver: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class PaidMany:
    """An event of `Escrow`."""

    sender: Address
    pays: tuple[Amount, ...]


@dataclass(frozen=True, slots=True)
class LimitsSet:
    """An event of `Escrow`."""

    account: Address
    payroll: int
    locks: int


@dataclass(frozen=True, slots=True)
class Deposited:
    """An event of `Escrow`."""

    account: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Escrow(Contract):
    """The contract `Escrow`."""

    NAME: ClassVar[str] = "Escrow"

    def token(self) -> Query[Address]:
        return self._query("TOKEN", one)

    def stakes(self) -> Query[Address]:
        return self._query("STAKES", one)

    def request_nonce(self, arg0: Address) -> Query[Nonce]:
        return self._query("request_nonce", one, arg0)

    def balance_of(self, account: Address) -> Query[Amount]:
        return self._query("balance_of", one, account)

    def limits_of(self, account: Address) -> Query[LimitsOf]:
        return self._query("limits_of", struct_of(LimitsOf), account)

    def withdraw(self, amount: Amount) -> Call:
        return self._call("withdraw", amount)

    def withdraw_for(
        self, account: Address, amount: Amount, terms: RequestTerms, fee: Amount, sig: Signature
    ) -> Call:
        return self._call("withdraw_for", account, amount, terms, fee, sig)

    def pay(self, pays: Sequence[Amount]) -> Call:
        return self._call("pay", pays)

    def set_limits(self, payroll: int, locks: int) -> Call:
        return self._call("set_limits", payroll, locks)

    def deposit(self, amount: Amount, payee: Address) -> Call:
        """Takes tokens from the sender into its balance, or into its tab for `payee` if one is
        named.
        """
        return self._call("deposit", amount, payee)

    def deposit_with_permit(
        self, amount: Amount, payee: Address, deadline: UnixSeconds, v: int, r: Hash32, s: Hash32
    ) -> Call:
        """As `deposit`, with the sender's permit (EIP-2612) of this amount for this contract,
        which saves an approval.
        """
        return self._call("deposit_with_permit", amount, payee, deadline, v, r, s)

    def take(self, account: Address, amount: Amount) -> Call:
        """Court and Jobs only: moves an account's balance to the sender's balance, because the
        account called the sender.
        """
        return self._call("take", account, amount)

    def lock(self, payee: Address, amount: Amount) -> Call:
        """Moves the sender's balance into its tab for a payee."""
        return self._call("lock", payee, amount)

    def lock_for(
        self,
        account: Address,
        payee: Address,
        amount: Amount,
        terms: RequestTerms,
        fee: Amount,
        sig: Signature,
    ) -> Call:
        """As `lock`, relayed."""
        return self._call("lock_for", account, payee, amount, terms, fee, sig)

    def lock_many(self, payer: Address, locks: Sequence[int]) -> Call:
        """`lock` for many payees by the posting key, within the limit of the day."""
        return self._call("lock_many", payer, locks)

    def redeem(
        self,
        payee: Address,
        root: Hash32,
        sessions: Sequence[EscrowSession],
        vouchers: Sequence[EscrowVoucher],
    ) -> Call:
        """Pays cumulative vouchers out of their payers' tabs, at once, and as far as is locked.
        Anyone may send it.
        """
        return self._call("redeem", payee, root, sessions, vouchers)

    def payroll(self, payer: Address, root: Hash32, pays: Sequence[Amount]) -> Call:
        """A coordinator's posting key pays from its balance, within the limit of the day. What
        is locked for the payees stays locked. Sums are cumulative, so a list that is sent twice
        pays once.
        """
        return self._call("payroll", payer, root, pays)

    def draw(self, payee: Address, payers: Sequence[Address]) -> Call:
        """Pays what tabs credited to a payee, to its payout address. Anyone may send it."""
        return self._call("draw", payee, payers)

    def draw_many(self, payer: Address, payees: Sequence[Address]) -> Call:
        """`draw` for many payees of one payer. A payee that the token refuses to pay keeps its
        credit and stops nobody else.
        """
        return self._call("draw_many", payer, payees)

    def give_back(self, payer: Address, payee: Address, amount: Amount) -> Call:
        """The payee frees a part of what is locked for it, at once; so does its posting key,
        within the limit of the day.
        """
        return self._call("give_back", payer, payee, amount)

    def close(self, payee: Address) -> Call:
        """The sender announces the end of its tab for a payee. Vouchers are paid until then, and
        nothing more is locked.
        """
        return self._call("close", payee)

    def close_for(
        self, account: Address, payee: Address, terms: RequestTerms, fee: Amount, sig: Signature
    ) -> Call:
        """As `close`, relayed."""
        return self._call("close_for", account, payee, terms, fee, sig)

    def finish(self, payer: Address, payee: Address) -> Call:
        """After the delay: what is left of a closing tab is the payer's balance. Anyone may send
        it. The tab can be used again.
        """
        return self._call("finish", payer, payee)

    def tab(self, payer: Address, payee: Address) -> Query[Tab]:
        """One tab as it stands."""
        return self._query("tab", struct_of(Tab), payer, payee)

    def session(self, payer: Address, payee: Address, key: Address) -> Query[tuple[int, int]]:
        """Up to which sum a session key signs, and until when; zeros if it was never shown."""
        return self._query("session", values, payer, payee, key)

    def court(self) -> Query[Address]:
        return self._query("COURT", one)

    def jobs(self) -> Query[Address]:
        return self._query("JOBS", one)

    def client_close(self) -> Query[Seconds]:
        return self._query("CLIENT_CLOSE", one)

    def coordinator_close(self) -> Query[Seconds]:
        return self._query("COORDINATOR_CLOSE", one)


EVENTS: tuple[type, ...] = (
    Locked,
    SessionShown,
    Redeemed,
    Receipts,
    Payroll,
    Drawn,
    GivenBack,
    Closing,
    Closed,
    Withdrawn,
    Paid,
    PaidMany,
    LimitsSet,
    Deposited,
)
