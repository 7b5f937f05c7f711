"""The document of GET /v1/operator, which `quorate coordinator status` prints.

Amounts are millionths of a USD. Coins, which pay for gas, are in gwei: billionths of a coin.
"""

from msgspec import Struct

from quorate_protocol.units import Address, Amount
from quorate_runtime.process.health import Problem


class ProvidersView(Struct, frozen=True):
    """Providers that registered on chain, that are connected now, and whose offer can be used."""

    registered: int
    connected: int
    on_offer: int
    run_slots: int  # on offer
    leases: int  # that occupy run slots


class OrdersView(Struct, frozen=True):
    """Jobs under way, by phase, and how long the oldest one waits for an offer."""

    matching: int
    running: int
    awaiting_round: int
    revealing: int
    rented: int  # rentals that run
    oldest_wait_seconds: int

    @property
    def under_way(self) -> int:
        """All but those that wait for an offer."""
        return self.running + self.awaiting_round + self.revealing + self.rented


class EndingsView(Struct, frozen=True):
    """How jobs ended since this process started. `unmatched`: the order expired without an offer.

    The medians are seconds from the order to its first assignment, and to its verdict; 0 before
    the first.
    """

    accepted: int
    unresolved: int
    cannot_verify: int
    lapsed: int
    stopped: int
    unmatched: int
    matched_seconds_median: int
    decided_seconds_median: int


ENDINGS = EndingsView.__struct_fields__[:-2]
"""How a job can end."""


class MoneyView(Struct, frozen=True):
    """The coordinator's fees and capital, and what it owes. `uncovered` is charged to clients that
    have signed no voucher for it yet; nobody is paid from it before they do.
    """

    fee_final: Amount
    fee_held: Amount
    fund: Amount  # the audit fund, final and held
    provider_final: Amount
    provider_held: Amount
    uncovered: Amount
    unpaid: Amount  # vouchers of this coordinator that no payroll has paid
    redeemable: Amount  # vouchers of clients that are not redeemed
    balance: Amount  # in Escrow; payrolls and guarantees come from it
    locked: Amount  # of it, as guarantees of providers
    payroll_left: Amount  # what the day's limits leave to the posting key
    locks_left: Amount


class ChainView(Struct, frozen=True):
    """What the chain says of this coordinator; `checked_at` 0 before the first answer.

    `days_left` says how long the posting key's coins last at the use of the last seven days; None
    while it used none.
    """

    checked_at: int
    bond: Amount
    retired_at: int  # Unix seconds; 0 while it has not retired
    account: Address
    account_amount: Amount
    account_gwei: int
    posting: Address
    posting_amount: Amount
    posting_gwei: int
    spent_gwei: int  # by the posting key, in the last seven days
    days_left: int | None
    coin: str  # symbol of the coin that pays for gas, or "coins"
    bond_lacks: Amount = Amount(0)  # what was burned, until it is topped up
    bond_at: int = 0  # Unix seconds from when on the bond can be taken; 0 as `retired_at`
    accusations: Amount = Amount(0)  # the posting key's balance in Escrow, which cases burn


class BackupView(Struct, frozen=True):
    """The second place: where it is, and how old its newest whole copy is; None before the first.

    `events_behind` counts events of the journal that it lacks.
    """

    place: str
    lag_seconds: int | None
    events_behind: int
    problem: str  # why nothing is copied now; "" while it is


class OperatorView(Struct, frozen=True):
    """GET /v1/operator: for the operator alone."""

    version: str
    started_at: int
    block: int
    chain_lag_seconds: int
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    providers: ProvidersView
    orders: OrdersView
    endings: EndingsView
    money: MoneyView
    chain: ChainView
    backup: BackupView | None = None  # None without a second place
