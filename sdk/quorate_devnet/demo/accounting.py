"""Reads the demo's results from the chain: gas, payments, slashes, and that no money was lost
(I1).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quorate_contracts.bindings import events
from quorate_contracts.bindings.calls import Query
from quorate_contracts.deploy import Contracts
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.units import ZERO_ADDRESS, Address, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient, RawLog

TRANSFER = keccak256(b"Transfer(address,address,uint256)")


@dataclass(frozen=True, slots=True)
class Gas:
    """Gas of one transaction of each kind; the highest if there were several."""

    post: int
    claim: int
    case_open: int
    case_decide: int


@dataclass(frozen=True, slots=True)
class ChainHistory:
    """All events of the deployment in order, each with its transaction, and all token transfers."""

    happened: tuple[tuple[events.Event, Hash32], ...]
    transfers: tuple[tuple[Address, Address, int], ...]

    def of(self, kind: type[events.Event]) -> list[events.Event]:
        """Returns the events of one kind."""
        return [event for event, _ in self.happened if isinstance(event, kind)]

    def paid(self) -> dict[Address, int]:
        """Returns what each provider claimed, in token units."""
        balances: dict[Address, int] = {}
        for event, _ in self.happened:
            if isinstance(event, events.Claimed):
                balances[event.account] = balances.get(event.account, 0) + event.amount
        return balances


async def read_chain_history(client: ChainClient, contracts: Contracts) -> ChainHistory:
    """Reads all logs of the deployment so far."""
    head = await client.head()
    logs = await client.logs(BlockNumber(0), head.number, tuple(contracts.deployment.names()))
    found = ((contracts.event(log.address, log.topics, log.data), log.transaction) for log in logs)
    return ChainHistory(
        tuple((event, where) for event, where in found if event is not None),
        tuple(_transfers(contracts, logs)),
    )


def _transfers(
    contracts: Contracts, logs: Sequence[RawLog]
) -> Iterable[tuple[Address, Address, int]]:
    for log in logs:
        if log.address == contracts.token.address and log.topics[0] == TRANSFER:
            sender, receiver = (Address(topic[12:]) for topic in log.topics[1:3])
            yield sender, receiver, int.from_bytes(log.data, "big")


async def read_gas(client: ChainClient, history: ChainHistory) -> Gas:
    """Reads gas from transaction receipts; 0 for what did not happen."""

    async def highest(kind: type[events.Event]) -> int:
        receipts = [
            await client.receipt(where)
            for where in {where for event, where in history.happened if isinstance(event, kind)}
        ]
        return max((receipt.gas_used for receipt in receipts if receipt is not None), default=0)

    return Gas(
        await highest(events.EpochPosted),
        await highest(events.Claimed),
        await highest(events.CaseOpened),
        await highest(events.Decided),
    )


@dataclass(frozen=True, slots=True)
class BalanceCheck:
    """One balance check: a contract's tokens against what it owes by its own records."""

    what: str
    tokens: int
    accounted: int

    @property
    def holds(self) -> bool:
        """Returns whether both sums are equal to the last unit."""
        return self.tokens == self.accounted


@dataclass(frozen=True, slots=True)
class MoneyHolders:
    """Accounts that may hold money in the contracts."""

    coordinator: Address
    providers: tuple[Address, ...]
    clients: tuple[Address, ...]


async def check_balances(
    client: ChainClient, contracts: Contracts, history: ChainHistory, parties: MoneyHolders
) -> list[BalanceCheck]:
    """Checks invariant I1 on chain at one block: for each contract, and for all tokens ever
    minted.
    """
    at = (await client.head()).number

    async def ask(query: Query[int]) -> int:
        return query.decode(await client.call(query.to, query.data, block=at))

    async def total(queries: Iterable[Query[int]]) -> int:
        return sum([await ask(query) for query in queries])

    token = contracts.token
    stakes = contracts.stakes
    escrow = contracts.escrow
    court = contracts.court
    minted = sum(amount for sender, _, amount in history.transfers if sender == ZERO_ADDRESS)
    holders = {receiver for _, receiver, _ in history.transfers}
    staked = await total(stakes.stake_of(each) for each in parties.providers) + await ask(
        stakes.bond_of(parties.coordinator)
    )
    deposits = await total(escrow.free_of(each) for each in parties.clients)
    for each in parties.clients:
        query = escrow.allocation(each, parties.coordinator)
        held = query.decode(await client.call(query.to, query.data, block=at))
        deposits += held.allocated - held.charged
    pool_query = escrow.pool(parties.coordinator)
    pool = pool_query.decode(await client.call(pool_query.to, pool_query.data, block=at))
    credited = {
        event.account for event in history.of(events.Credited) if isinstance(event, events.Credited)
    }
    credits = await total(court.credit_of(each) for each in credited)
    owed_by_court = _open_bonds(history) + credits + await ask(court.burned())
    return [
        BalanceCheck(
            "all tokens minted = all balances",
            minted,
            await total(token.balance_of(each) for each in holders),
        ),
        BalanceCheck("Stakes = stakes + bond", await ask(token.balance_of(stakes.address)), staked),
        BalanceCheck(
            "Escrow = deposits + allocations + pool",
            await ask(token.balance_of(escrow.address)),
            deposits + pool.charged - pool.paid,
        ),
        BalanceCheck(
            "Court = open bonds + credits + burned",
            await ask(token.balance_of(court.address)),
            owed_by_court,
        ),
    ]


def _open_bonds(history: ChainHistory) -> int:
    decided = {
        event.case_id for event in history.of(events.Decided) if isinstance(event, events.Decided)
    }
    opened = [
        event for event in history.of(events.CaseOpened) if isinstance(event, events.CaseOpened)
    ]
    return sum(event.bond for event in opened if event.case_id not in decided)
