"""Watches what the chain says of this coordinator: bond, retirement, coins of its keys."""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts.calls import view
from quorate_contracts.deploy import Contracts
from quorate_contracts.money_texts import Currency, currency_of
from quorate_coordinator.base.operator_view import ChainView
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain import send_records
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.process.log_throttle import LogThrottle

log = logging.getLogger(__name__)
POLL_SECONDS_MAX = 15.0
DAY_SECONDS = 86_400
PERIOD_SECONDS = 7 * DAY_SECONDS
DAYS_WARNED = 7
GAS_LEAST = 3_000_000  # units; a few payrolls and one case


@dataclass(slots=True)
class GasUse:
    """What one key's transactions cost in the last seven days."""

    spent: list[tuple[int, int]] = field(default_factory=list)  # (second, wei), oldest first
    known: set[str] = field(default_factory=set)
    since: int = 0  # the first look, or the oldest transaction

    def add(self, costs: list[tuple[str, int, int]], now: int) -> None:
        """`costs`: (purpose, second, wei)."""
        self.known.update(purpose for purpose, _, _ in costs)
        self.spent += sorted((at, wei) for _, at, wei in costs)
        self.spent = [item for item in self.spent if item[0] > now - PERIOD_SECONDS]
        oldest = min((at for at, _ in self.spent), default=now)
        self.since = max(now - PERIOD_SECONDS, min(self.since or now, oldest))

    def wei(self) -> int:
        return sum(wei for _, wei in self.spent)

    def days_left(self, balance: int, now: int) -> int | None:
        """Whole days; None if nothing was spent, or less than a day is known."""
        spent, seconds = self.wei(), now - self.since
        is_known = spent and seconds >= DAY_SECONDS
        return balance * seconds // (spent * DAY_SECONDS) if is_known else None


@dataclass(slots=True)
class OwnAccount:
    """One task of the service. `figures` is the newest answer."""

    client: ChainClient
    contracts: Contracts
    account: Address
    posting: Address
    transactions: Path  # the file with the sends of `posting`
    clock: Clock
    figures: ChainView = field(init=False)
    warning: str = ""
    _use: GasUse = field(default_factory=GasUse)

    def __post_init__(self) -> None:
        none = Amount(0)
        self.figures = ChainView(
            checked_at=0,
            bond=none,
            retired_at=0,
            account=self.account,
            account_amount=none,
            account_gwei=0,
            posting=self.posting,
            posting_amount=none,
            posting_gwei=0,
            spent_gwei=0,
            days_left=None,
            coin=self.currency.coin,
        )

    @property
    def currency(self) -> Currency:
        return currency_of(self.contracts.deployment)

    @property
    def is_retired(self) -> bool:
        return self.figures.retired_at > 0

    async def run(self) -> None:
        warned = LogThrottle(log, self.clock)
        while True:
            try:
                await self.look()
            except Unavailable as error:
                # Not re-raised: `health` shows that the chain is away. The last figures stay.
                log.debug("own account: %s", error)
            if self.warning:
                warned.failed(self.warning)
            else:
                warned.recovered("the posting key has coins for gas again")
            every = self.contracts.deployment.constants().pay_every
            await self.clock.sleep(min(POLL_SECONDS_MAX, every / 2))

    async def look(self) -> None:
        """Raises Unavailable while the chain does not answer."""
        stakes, token = self.contracts.stakes, self.contracts.token
        now = int(self.clock.now())
        mined = await asyncio.to_thread(
            send_records.mined, self.transactions, self.posting, self._use.known
        )
        costs = [
            (
                purpose,
                receipt.logs[0].block_time if receipt.logs else now,
                receipt.gas_used * receipt.gas_price_wei,
            )
            for purpose, receipt in mined
        ]
        self._use.add(costs, now)
        coins = await self.client.balance(self.posting)
        days_left = self._use.days_left(coins, now)
        retired_at = await view(self.client, stakes.exited_at(self.account))
        after = self.contracts.deployment.constants().unbond_after
        bond = await view(self.client, stakes.bond_of(self.account))
        whole = self.contracts.deployment.constants().coordinator_bond
        self.figures = ChainView(
            checked_at=now,
            bond=bond,
            bond_lacks=Amount(0 if retired_at else whole - bond),
            retired_at=retired_at,
            bond_at=retired_at + after if retired_at else 0,
            accusations=await view(self.client, self.contracts.escrow.balance_of(self.posting)),
            account=self.account,
            account_amount=await view(self.client, token.balance_of(self.account)),
            account_gwei=await self.client.balance(self.account) // GWEI,
            posting=self.posting,
            posting_amount=await view(self.client, token.balance_of(self.posting)),
            posting_gwei=coins // GWEI,
            spent_gwei=self._use.wei() // GWEI,
            days_left=days_left,
            coin=self.currency.coin,
        )
        price = (await self.client.fees()).base_fee_wei
        self.warning = gas_warning(self.currency, self.posting, coins, days_left, price)


def gas_warning(
    currency: Currency, posting: Address, coins: int, days_left: int | None, base_fee_wei: int
) -> str:
    """ "" while there are enough coins. Amounts are in wei."""
    told = f"the posting key 0x{posting.hex()} has {currency.coins(coins)} for gas"
    least = GAS_LEAST * base_fee_wei
    if coins < least:
        return f"{told}, too few for the next payrolls: send it some"
    if days_left is not None and days_left < DAYS_WARNED:
        return f"{told}, enough for {days_left} days at the present use: send it some"
    return ""
