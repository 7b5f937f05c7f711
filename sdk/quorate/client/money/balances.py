"""What money a client has and where: in its wallet, its balance, its tabs, and funded orders.

The chain says what is locked and paid. The client's ledger says what is promised: vouchers that it
signed, and orders that may still be charged. No key is needed.
"""

from dataclasses import dataclass

from quorate.base.errors import translated
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.money.chain_access import ChainAccess
from quorate.client.money.lead import Lead, lead_of
from quorate_contracts.calls import ask
from quorate_contracts.generated.escrow import Tab
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds


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
    """A client's tab for one coordinator, and the lead that it gives this coordinator."""

    coordinator: Address
    tab: Tab
    promises: Promises
    lead: Lead

    @property
    def free(self) -> Amount:
        """What vouchers can still take."""
        return Amount(self.tab.locked - self.tab.paid)

    @property
    def vouched(self) -> Amount:
        """Signed vouchers, and checked charges, that the tab has not paid yet."""
        return Amount(max(0, self.promises.vouched - self.tab.paid))

    @property
    def withdrawable(self) -> Amount:
        """What can be taken back so that every voucher stays payable."""
        return Amount(max(0, self.free - self.vouched - self.promises.orders))


@dataclass(frozen=True, slots=True)
class FundedOrder:
    """An order with an escrow of its own, whose budget is not paid out or taken back yet."""

    job_id: Hash32
    name: str
    coordinator: Address
    budget: Amount  # in `Jobs`; 0 if the funding never reached the chain
    until: UnixSeconds  # from then on it can be taken back


@dataclass(frozen=True, slots=True)
class Balances:
    """All money of a client's account in one deployment. Amounts are millionths of a USD."""

    account: Address
    wallet: Amount
    coins_wei: int
    balance: Amount  # promised to nobody
    coordinators: tuple[CoordinatorBalance, ...]
    funded: tuple[FundedOrder, ...]
    block_time: UnixSeconds

    def of(self, coordinator: Address) -> CoordinatorBalance:
        return next(item for item in self.coordinators if item.coordinator == coordinator)


async def read_balances(
    chain: ChainAccess, account: Address, ledger: Ledger, setting: Amount | None = None
) -> Balances:
    """Reads an account's money from the chain and from the profile's ledger. `setting` is the
    profile's lead.

    Raises UnavailableError if the chain node does not answer.
    """
    names = {chain.identity.coordinator: None} | dict.fromkeys(ledger.coordinators())
    with translated():
        head = await chain.client.head()
        coordinators = [
            CoordinatorBalance(
                each,
                await ask(chain.client, chain.escrow.tab(account, each)),
                promises(ledger, each),
                lead_of(setting, ledger.debt(each), chain.identity.constants),
            )
            for each in names
        ]
        return Balances(
            account=account,
            wallet=await ask(chain.client, chain.token.balance_of(account)),
            coins_wei=await chain.client.balance(account),
            balance=await ask(chain.client, chain.escrow.balance_of(account)),
            coordinators=tuple(coordinators),
            funded=tuple([await _funded(chain, account, each) for each in ledger.funded_orders()]),
            block_time=UnixSeconds(head.time),
        )


async def _funded(chain: ChainAccess, account: Address, entry: OrderRecord) -> FundedOrder:
    job = await ask(chain.client, chain.jobs.job(account, entry.job_id))
    budget = Amount(0) if job.is_over else job.budget
    until = job.until or entry.funded_until
    return FundedOrder(entry.job_id, entry.name, entry.order.coordinator, budget, until)


def promises(ledger: Ledger, coordinator: Address) -> Promises:
    totals = ledger.debt(coordinator)
    vouched = Amount(max(totals.signed, totals.charged))
    return Promises(vouched, Amount(max(0, totals.charged + totals.promised - vouched)))
