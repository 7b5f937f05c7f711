"""What money a client has and where: in its wallet, in the escrow, promised, and on its way out.

The chain says what is deposited and announced. The client's ledger says what is promised: vouchers
that it signed, and orders that may still be charged. No key is needed.
"""

from dataclasses import dataclass

from quorate.client.client_ledger import Ledger
from quorate.client.money.chain_access import ChainAccess
from quorate.client.money.lead import Lead, lead_of
from quorate.errors import translated
from quorate_contracts.bindings.escrow import Allocation, Withdrawal
from quorate_protocol.limits import Limits
from quorate_protocol.units import Address, Amount, UnixSeconds


@dataclass(frozen=True, slots=True)
class Promises:
    """What a client owes one coordinator, or may owe it, by its own ledger.

    `vouched` is cumulative: the newest voucher, or the checked charges if they are more.
    `orders` is what open orders may be charged beyond that.
    """

    vouched: Amount
    orders: Amount


@dataclass(frozen=True, slots=True)
class CoordinatorBalance:
    """A client's money with one coordinator, and the lead that it gives this coordinator."""

    coordinator: Address
    allocation: Allocation
    promises: Promises
    lead: Lead

    @property
    def left(self) -> Amount:
        """What is allocated and that no voucher on the chain has charged."""
        return Amount(self.allocation.allocated - self.allocation.charged)

    @property
    def vouched(self) -> Amount:
        """Signed vouchers, and checked charges, that the chain has not seen yet."""
        return Amount(max(0, self.promises.vouched - self.allocation.charged))

    @property
    def withdrawable(self) -> Amount:
        """What can be taken back so that every voucher stays payable (PROTOCOL §4)."""
        return Amount(max(0, self.left - self.vouched - self.promises.orders))


@dataclass(frozen=True, slots=True)
class Balances:
    """All money of a client's account in one deployment. Amounts are millionths of a USD."""

    account: Address
    wallet: Amount
    coins_wei: int
    unallocated: Amount  # deposited, not allocated to a coordinator
    coordinators: tuple[CoordinatorBalance, ...]
    withdrawal: Withdrawal
    block_time: UnixSeconds

    @property
    def deposited(self) -> Amount:
        """All that the escrow holds for the account."""
        return Amount(self.unallocated + sum(item.left for item in self.coordinators))

    def of(self, coordinator: Address) -> CoordinatorBalance:
        """Returns the money with one of the coordinators that were read."""
        return next(item for item in self.coordinators if item.coordinator == coordinator)


async def read_balances(
    chain: ChainAccess, account: Address, ledger: Ledger, now: float, setting: Amount | None = None
) -> Balances:
    """Reads an account's money from the chain and from the profile's ledger. `setting` is the
    profile's lead.

    Raises UnavailableError if the chain node does not answer.
    """
    coordinators = {chain.identity.coordinator: None} | dict.fromkeys(ledger.coordinators())
    limits = chain.identity.constants
    owed = {each: promises(ledger, each, limits, now) for each in coordinators}
    with translated():
        head = await chain.client.head()
        return Balances(
            account=account,
            wallet=await chain.ask(chain.token.balance_of(account)),
            coins_wei=await chain.client.balance(account),
            unallocated=await chain.ask(chain.escrow.free_of(account)),
            coordinators=tuple(
                [
                    await _with(
                        chain,
                        account,
                        coordinator,
                        promised,
                        lead_of(setting, ledger.debt(coordinator), limits),
                    )
                    for coordinator, promised in owed.items()
                ]
            ),
            withdrawal=await chain.ask(chain.escrow.withdrawal(account)),
            block_time=UnixSeconds(head.time),
        )


async def _with(
    chain: ChainAccess, account: Address, coordinator: Address, promised: Promises, lead: Lead
) -> CoordinatorBalance:
    allocation = await chain.ask(chain.escrow.allocation(account, coordinator))
    return CoordinatorBalance(coordinator, allocation, promised, lead)


def promises(ledger: Ledger, coordinator: Address, limits: Limits, now: float) -> Promises:
    """Returns what the ledger promises to a coordinator.

    An order counts until its expiry, its longest run and the longest hold have passed. After that
    nobody can charge it properly any more (PROTOCOL §4).
    """
    totals = ledger.debt(coordinator)
    vouched = Amount(max(totals.signed, totals.charged))
    open_orders = sum(
        item.reserved
        for item in ledger.open_orders(coordinator)
        if now < item.order.expiry + item.order.max_duration + limits.allocation_release
    )
    return Promises(vouched, Amount(max(0, totals.charged + open_orders - vouched)))
