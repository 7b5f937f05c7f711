"""Reads the demo's results from the chain: gas, payments, burned stake, and that no money was lost
(I1).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import read_pair
from quorate_contracts.events import Event
from quorate_contracts.generated import court, escrow, jobs, stakes
from quorate_contracts.generated.contract_calls import Query
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient, RawLog

TRANSFER = keccak256(b"Transfer(address,address,uint256)")
ADDRESS_BYTES = len(ZERO_ADDRESS)
GAS_KINDS: dict[str, type] = {
    "payroll": escrow.Payroll,
    "redeem": escrow.Redeemed,
    "fund": jobs.Funded,
    "show": jobs.Shown,
    "pay": jobs.JobPaid,
    "case_open": court.CaseOpened,
    "case_decide": court.Decided,
}
"""A transaction of each kind, by the event that it has."""


@dataclass(frozen=True, slots=True)
class ChainHistory:
    """All events of the deployment in order, each with its transaction, and all token transfers."""

    happened: tuple[tuple[Event, Hash32], ...]
    transfers: tuple[tuple[Address, Address, int], ...]

    def of(self, kind: type[Event]) -> list[Event]:
        """Returns the events of one kind."""
        return [event for event, _ in self.happened if isinstance(event, kind)]

    def drawn(self) -> dict[Address, int]:
        """Returns what each account drew from its tabs or its balance, in token units."""
        found: dict[Address, int] = {}
        for event, _ in self.happened:
            if isinstance(event, escrow.Drawn):
                found[event.payee] = found.get(event.payee, 0) + event.amount
            elif isinstance(event, escrow.Withdrawn):
                found[event.account] = found.get(event.account, 0) + event.amount
        return found


async def read_chain_history(client: ChainClient, contracts: Contracts) -> ChainHistory:
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


async def read_gas(client: ChainClient, history: ChainHistory) -> dict[str, int]:
    """Reads the highest gas of each kind from transaction receipts; 0 for what did not happen."""

    async def highest(kind: type[Event]) -> int:
        receipts = [
            await client.receipt(where)
            for where in {where for event, where in history.happened if isinstance(event, kind)}
        ]
        return max((receipt.gas_used for receipt in receipts if receipt is not None), default=0)

    return {name: await highest(kind) for name, kind in GAS_KINDS.items()}


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

    async def total(queries: Iterable[Query[int]]) -> int:
        return sum([await ask(client, query, at) for query in queries])

    token = contracts.token
    minted = sum(amount for sender, _, amount in history.transfers if sender == ZERO_ADDRESS)
    holders = {receiver for _, receiver, _ in history.transfers}
    staked = await total(contracts.stakes.stake_of(each) for each in parties.providers)
    staked += await ask(client, contracts.stakes.bond_of(parties.coordinator), at)
    burned = sum(
        event.amount - event.reward
        for event in history.of(stakes.Burned)
        if isinstance(event, stakes.Burned)
    )
    accounts = set(_accounts(history)) | {*parties.providers, *parties.clients}
    locked = 0
    for payer, payee in _tabs(history, parties):
        tab = await ask(client, contracts.escrow.tab(payer, payee), at)
        locked += tab.locked - tab.drawn
    return [
        BalanceCheck(
            "all tokens minted = all balances",
            minted,
            await total(token.balance_of(each) for each in holders),
        ),
        BalanceCheck(
            "Stakes = stakes + bond + burned",
            await ask(client, token.balance_of(contracts.stakes.address), at),
            staked + burned,
        ),
        BalanceCheck(
            "Escrow = balances + tabs",
            await ask(client, token.balance_of(contracts.escrow.address), at),
            await total(contracts.escrow.balance_of(each) for each in sorted(accounts)) + locked,
        ),
    ]


def _accounts(history: ChainHistory) -> Iterator[Address]:
    """Yields every account that an event names; the budgets of funded orders are `Jobs`' own."""
    for event, _ in history.happened:
        if isinstance(event, escrow.PaidMany):
            yield from (read_pair(word)[0] for word in event.pays)
        elif isinstance(event, escrow.EVENTS) and is_dataclass(event):
            values = (getattr(event, field.name) for field in fields(event))
            yield from (
                Address(value)
                for value in values
                if isinstance(value, bytes) and len(value) == ADDRESS_BYTES
            )


def _tabs(history: ChainHistory, parties: MoneyHolders) -> set[tuple[Address, Address]]:
    """Whom a payroll paid stands in no event, so every party may have a tab of the coordinator."""
    found = {(parties.coordinator, each) for each in (*parties.providers, *parties.clients)}
    return found | {
        (event.payer, event.payee)
        for event in history.of(escrow.Locked)
        if isinstance(event, escrow.Locked)
    }


def total_amount(events: Iterable[Event]) -> Amount:
    """Returns the sum of the payrolls among events."""
    return Amount(sum(event.amount for event in events if isinstance(event, escrow.Payroll)))
