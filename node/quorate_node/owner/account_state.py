"""What the chain says about the owner's money: stake slots, tokens and coins.

The contract does not publish when a closed slot's stake comes back. It follows from the block in
which the slot was closed: the time of that block plus the deployment's unbonding time.
"""

from collections.abc import Iterable

from msgspec import Struct

from quorate_contracts.account.goals import StakeSlot
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import OPEN_BLOCK, SLOT_PAGE
from quorate_contracts.money_texts import currency_of
from quorate_node.owner.own_cases import OwnCase
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, BlockNumber, Hash32, UnixSeconds
from quorate_runtime.chain import ChainClient

SLOT_PAGES_MAX = 1024


class AccountState(Struct, frozen=True):
    """The owner's money on chain: tokens in millionths of a USD, coins in wei. `balance` is in
    Escrow. `read_at` 0 = not asked yet.
    """

    account: Address = ZERO_ADDRESS
    payout: Address = ZERO_ADDRESS
    operator: Address = ZERO_ADDRESS
    tokens: Amount = Amount(0)
    payout_tokens: Amount = Amount(0)
    coins: int = 0
    operator_coins: int = 0
    stake: Amount = Amount(0)
    balance: Amount = Amount(0)
    slots: tuple[StakeSlot, ...] = ()
    read_at: UnixSeconds = UnixSeconds(0)
    coin: str = "coins"  # what pays for gas
    chain: str = ""  # its name
    lacks: Amount = Amount(0)  # what was burned of the stake
    cases: tuple[OwnCase, ...] = ()  # in court, that are open

    def open_slots(self, pool: Hash32 | None = None) -> tuple[StakeSlot, ...]:
        """Returns the open stake slots, of one pool or of all."""
        return tuple(slot for slot in self.slots if not slot.back_at and pool in (None, slot.pool))

    def closed_slots(self) -> tuple[StakeSlot, ...]:
        """The first to come back first."""
        closed = (slot for slot in self.slots if slot.back_at)
        return tuple(sorted(closed, key=lambda slot: (slot.back_at, slot.place)))


async def read_account(
    client: ChainClient,
    contracts: Contracts,
    account: Address,
    operator: Address,
    pools: Iterable[Hash32],
) -> AccountState:
    """Finds stake slots in `pools` only. Raises Unavailable if the node does not answer."""
    head, stakes, token = await client.head(), contracts.stakes, contracts.token
    payout = await ask(client, stakes.payout_of(account))
    payout = account if payout == ZERO_ADDRESS else payout
    slots = [
        slot
        for pool in sorted(set(pools))
        for slot in await stake_slots(client, contracts, account, pool)
    ]
    stake = await ask(client, stakes.stake_of(account))
    whole = await ask(client, stakes.held(account)) * contracts.deployment.constants().slot_stake
    tokens = await ask(client, token.balance_of(account))
    currency = currency_of(contracts.deployment)
    return AccountState(
        account=account,
        payout=payout,
        operator=operator,
        tokens=tokens,
        payout_tokens=tokens if payout == account else await ask(client, token.balance_of(payout)),
        coins=await client.balance(account),
        operator_coins=await client.balance(operator),
        stake=stake,
        balance=await ask(client, contracts.escrow.balance_of(account)),
        slots=tuple(slots),
        read_at=UnixSeconds(head.time),
        coin=currency.coin,
        chain=currency.chain,
        lacks=Amount(max(0, whole - stake)),
    )


async def stake_slots(
    client: ChainClient, contracts: Contracts, account: Address, pool: Hash32
) -> list[StakeSlot]:
    """Returns an account's stake slots in a pool, open and closed ones."""
    length, found = await ask(client, contracts.stakes.slot_count(pool)), []
    times: dict[int, int] = {}
    for start in range(0, min(length, SLOT_PAGES_MAX * SLOT_PAGE), SLOT_PAGE):
        page = await ask(client, contracts.stakes.slot_page(pool, start))
        for number, slot in enumerate(page):
            if slot.owner != account:
                continue
            back_at = 0
            if slot.until_block != OPEN_BLOCK:
                closed = slot.until_block - 1
                if closed not in times:
                    times[closed] = await _time_of(client, BlockNumber(closed))
                back_at = times[closed] + contracts.deployment.constants().unbond_after
            found.append(StakeSlot(pool, start + number, slot.from_block, UnixSeconds(back_at)))
    return found


async def _time_of(client: ChainClient, number: BlockNumber) -> int:
    head = await client.block(number)
    if head is None:
        raise Unavailable(f"the chain node has no block {number}; use an archive node", 5.0)
    return head.time
