"""Queries the chain's current state: logs do not report what a reorganisation removed, and a chain
node may withhold a log.
"""

from collections.abc import Iterable

from quorate_contracts.calls import view
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import LimitsOf
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.state import State
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain.client import BlockId, ChainClient

RETRY_SECONDS = 2.0


async def tab_of(
    chain: ChainClient,
    contracts: Contracts,
    payer: Address,
    payee: Address,
    block: BlockId = "latest",
) -> ev.ChainTabChanged:
    """Returns a tab. Raises Unavailable if the chain node answers nonsense."""
    tab = await view(chain, contracts.escrow.tab(payer, payee), block)
    if tab.locked >= 1 << 96 or tab.paid > tab.locked or tab.closes_at >= 1 << 64:
        said = f"locked {hex(tab.locked)[:40]}, paid {hex(tab.paid)[:40]}"
        raise Unavailable(f"the chain node says of 0x{payer.hex()}'s tab: {said}", RETRY_SECONDS)
    return ev.ChainTabChanged(payer, payee, tab.locked, tab.paid, tab.closes_at)


def left_of(limits: LimitsOf) -> tuple[Amount, Amount]:
    payroll, locks = limits.payroll - limits.paid, limits.locks - limits.moved
    return Amount(max(0, payroll)), Amount(max(0, locks))


async def tabs_of(
    chain: ChainClient,
    contracts: Contracts,
    coordinator: Address,
    payers: Iterable[Address],
    payees: Iterable[Address],
    block: BlockId = "latest",
) -> list[ev.ChainNote]:
    notes: list[ev.ChainNote] = [
        await tab_of(chain, contracts, payer, coordinator, block) for payer in payers
    ]
    notes += [await tab_of(chain, contracts, coordinator, payee, block) for payee in payees]
    balance = await view(chain, contracts.escrow.balance_of(coordinator), block)
    limits = await view(chain, contracts.escrow.limits_of(coordinator), block)
    return [*notes, ev.ChainBalanceChanged(balance, *left_of(limits))]


async def everything(
    chain: ChainClient, contracts: Contracts, coordinator: Address, state: State
) -> ev.ChainStateQueried:
    """It takes a request for each account: only at a start and after a reorganisation."""
    payees = dict.fromkeys((*state.payees.keys(), *state.providers.keys()))
    notes = await tabs_of(chain, contracts, coordinator, list(state.clients.keys()), payees)
    return ev.ChainStateQueried(tuple(notes))
