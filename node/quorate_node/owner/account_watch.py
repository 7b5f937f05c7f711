"""Asks the chain for the owner's money: now and then, and when the owner asks for the status.

It also notices stake that is missing while the provider is on offer, for example after a burn.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from quorate_contracts.deploy import Contracts
from quorate_contracts.open_cases import OpenCases
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.account_state import AccountState, read_account
from quorate_node.owner.own_cases import own_cases
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.health import Board

LOOK_SECONDS = 600.0
FRESH_SECONDS = 2.0  # an answer so old is shown again
ASK_SECONDS = 3.0  # the status does not wait longer for the chain

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AccountWatch:
    """The newest `AccountState`. `needs_stake`: the provider is on offer and does not leave."""

    core: ProviderCore
    client: ChainClient
    contracts: Contracts
    operator: Callable[[], Address]
    board: Board
    needs_stake: Callable[[], bool]
    clock: Clock
    newest: AccountState = AccountState()
    _asked_at: float = 0.0
    _cases: OpenCases = field(init=False)

    def __post_init__(self) -> None:
        self._cases = OpenCases.of(self.client, self.contracts, self.core.terms.provider)

    async def run(self) -> None:
        while True:
            await self.refresh()
            await self.clock.sleep(LOOK_SECONDS)

    async def refresh(self) -> AccountState:
        """If the chain does not answer soon, returns the last answer."""
        if self.clock.now() - self._asked_at < FRESH_SECONDS:
            return self.newest
        try:
            async with asyncio.timeout(ASK_SECONDS):
                self.newest = await self._read()
        except (Unavailable, Refused, TimeoutError) as error:
            # Not re-raised: the health monitor reports the chain, and the status shows the age.
            log.debug("the balances are not known now: %s", error)
            return self.newest
        self._asked_at = self.clock.now()
        self._check_stake()
        return self.newest

    async def _read(self) -> AccountState:
        terms = self.core.terms
        found = await read_account(
            self.client,
            self.contracts,
            terms.provider,
            self.operator(),
            [slot.pool.id() for slot in terms.slots],
        )
        cases = await self._cases.look()
        return replace(found, cases=own_cases(cases, terms.provider, self.contracts.deployment))

    def _check_stake(self) -> None:
        """Before the first offer the registration does that."""
        if not self.needs_stake():
            return
        lacking = sum(
            max(0, int(slot.count) - len(self.newest.open_slots(slot.pool.id())))
            for slot in self.core.terms.slots
        )
        text = f"{lacking} run slots have no open stake slot; start the provider again to stake"
        self.board.put("stake", text if lacking else "")
