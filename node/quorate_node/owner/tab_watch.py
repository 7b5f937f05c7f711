"""Asks the chain for the tabs of the coordinators, redeems their vouchers and draws the credit.

The operator key sends the transactions and pays the gas. What is left to do follows from the chain
and the newest vouchers, so it is done also after any time offline.
"""

import logging

from quorate_contracts.calls import Step, ask, simulate
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import Tab
from quorate_node.core import events
from quorate_node.core.debts import Debt
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.frame_handler import EventSink
from quorate_node.owner.operator_sender import OperatorSender
from quorate_node.owner.tab_payments import draw_step, redeem_step, seen
from quorate_protocol.limits import DAY, USD
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules import tabs
from quorate_protocol.units import Address, Amount, BlockNumber, UnixSeconds, usd
from quorate_runtime.chain import ChainClient
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.log_throttle import LogThrottle

LOOK_SECONDS_MAX = 60.0
LOOKS_PER_PAYROLL = 10  # a devnet's daemon looks each second
DRAW_LEAST = Amount(5 * USD)  # many times the gas
KEY_IS_VALID = 2**48 - 1  # the last second of a key that is not replaced

log = logging.getLogger(__name__)


class TabWatch:
    """The task of the daemon that follows the tabs."""

    def __init__(
        self,
        core: ProviderCore,
        actor: EventSink,
        contracts: Contracts,
        client: ChainClient,
        operator_sender: OperatorSender,
        clock: Clock,
    ) -> None:
        self._core, self._actor, self._contracts = core, actor, contracts
        self._client, self._sender, self._clock = client, operator_sender, clock
        self._trouble = LogThrottle(log, clock)

    async def run(self) -> None:
        """Looks at each tab again and again, until cancelled."""
        pause = min(LOOK_SECONDS_MAX, self._core.terms.limits.pay_every / LOOKS_PER_PAYROLL)
        while True:
            await self.look_at_all()
            await self._clock.sleep(pause)

    async def look_at_all(self) -> None:
        """A tab that cannot be read keeps none of the others waiting."""
        problem = ""
        for coordinator in {*self._core.terms.statement_keys, *self._core.debts.keys()}:
            try:
                await self.look(coordinator)
            except (Unavailable, Refused) as error:
                # Not re-raised: the chain may come back, or the operator get coins for gas.
                problem = f"the tab of coordinator 0x{coordinator.hex()[:10]} waits: {error}"
        if problem:
            self._trouble.failed(problem)
        else:
            self._trouble.recovered("tabs are followed again")

    async def look(self, coordinator: Address) -> None:
        """Reads one tab in final blocks, and does what is due."""
        core, limits = self._core, self._core.terms.limits
        head = await self._client.head()
        block = head.final(limits.chain_depth)
        query = self._contracts.escrow.tab(coordinator, core.terms.provider)
        debt, found = core.debt(coordinator), seen(await ask(self._client, query, block))
        if found != debt.tab or not debt.is_tab_known:
            event = events.TabSeen(coordinator, found.locked, found.paid, found.closes_at)
            await self._actor.submit(event)
        tab = await ask(self._client, query)  # what was sent a minute ago is not sent again
        await self._redeem(coordinator, core.debt(coordinator), tab, head.time)
        is_fast = limits.pay_every < DAY
        if tab.paid - tab.drawn >= (1 if is_fast else DRAW_LEAST):
            step = draw_step(self._contracts, core.terms.provider, coordinator, tab)
            await self._send(step, f"drew {usd(tab.paid - tab.drawn)} USD")
        await self._check_key(coordinator, block)

    async def _check_key(self, coordinator: Address, block: BlockNumber) -> None:
        served = self._core.terms.statement_keys.get(coordinator)
        query = self._contracts.stakes.operator_key(coordinator)
        if served is not None and await ask(self._client, query, block) != served:
            raise Refused(
                Code.WRONG_SIGNER,
                "its statement key was replaced, so nothing that it sends is taken: start this "
                "daemon again",
            )

    async def _redeem(self, coordinator: Address, debt: Debt, tab: Tab, time: int) -> None:
        """After a week, or once its tab closes or its key was replaced."""
        now, limits = UnixSeconds(time), self._core.terms.limits
        if debt.voucher is None or debt.vouched <= tab.paid:
            return
        key_ends = await self._key_ends(coordinator, debt)
        if key_ends and now > tabs.counts_until(key_ends, True, limits):
            return  # the chain takes it no more
        least = Amount(1) if limits.pay_every < DAY else tabs.REDEEM_LEAST
        if tabs.is_redeem_due(seen(tab), debt.waiting(key_ends), now, least, limits):
            step = redeem_step(self._contracts, debt.voucher, tab)
            await self._send(
                step, f"redeemed the voucher of coordinator 0x{coordinator.hex()[:10]}"
            )

    async def _key_ends(self, coordinator: Address, debt: Debt) -> UnixSeconds:
        """0 while the key that signed the voucher is valid."""
        assert debt.voucher is not None, "only a voucher has a key"
        key = signer(self._core.terms.domain, debt.voucher, recover)
        _, until = await ask(self._client, self._contracts.stakes.key_range(coordinator, key))
        return UnixSeconds(0 if until == KEY_IS_VALID else until)

    async def _send(self, step: Step, what: str) -> None:
        await simulate(self._client, step.call, self._sender.address)
        await self._sender.send(step.purpose, step.call)
        log.info("%s", what)
