"""Follows on chain what the provider is paid: by the tabs of coordinators, and by funded orders.

It redeems vouchers, draws the credit, and turns the evidence of funded orders into pay where their
coordinators do not. The operator key sends the transactions and pays the gas; `Jobs` pays into the
owner's balance in Escrow. What is left to do follows from files, chain and newest vouchers, so it
is done also after any time offline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from quorate_contracts.calls import Step, ask, simulate
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import Tab
from quorate_node.core import events
from quorate_node.core.debts import Debt
from quorate_node.core.events import EventSink
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.funded_orders import (
    FundedExecution,
    State,
    forget,
    is_secured,
    is_worthless,
    kept,
    pay_step,
    read_escrow,
    read_job,
    show_step,
    standing,
)
from quorate_node.owner.senders import OperatorSender
from quorate_node.owner.tab_payments import draw_step, redeem_step, seen
from quorate_protocol.limits import DAY, USD
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules import tabs
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, UnixSeconds, usd
from quorate_runtime.chain import ChainClient
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.log_throttle import LogThrottle

LOOK_SECONDS_MAX = 60.0
LOOKS_PER_PAYROLL = 10  # a devnet's daemon looks each second
LOOKS_PER_SHOW = 5  # here too
DRAW_LEAST = Amount(5 * USD)  # many times the gas
KEY_IS_VALID = 2**48 - 1  # the last second of a key that is not replaced

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PayWatch:
    """Two tasks of the daemon. `folder` has the evidence of funded orders."""

    core: ProviderCore
    actor: EventSink
    contracts: Contracts
    client: ChainClient
    sender: OperatorSender
    folder: Path
    clock: Clock

    async def follow_tabs(self) -> None:
        pause = self.core.terms.limits.pay_every / LOOKS_PER_PAYROLL
        await self._repeat(self.look_at_tabs, pause, "tabs are followed again")

    async def follow_funded(self) -> None:
        pause = self.core.terms.limits.show_after / LOOKS_PER_SHOW
        await self._repeat(self.look_at_funded, pause, "funded orders are settled again")

    async def _repeat(self, look: Callable[[], Awaitable[str]], pause: float, again: str) -> None:
        """Calls `look`, which returns what keeps something waiting, until cancelled."""
        trouble = LogThrottle(log, self.clock)
        while True:
            problem = await look()
            if problem:
                trouble.failed(problem)
            else:
                trouble.recovered(again)
            await self.clock.sleep(min(LOOK_SECONDS_MAX, pause))

    async def look_at_tabs(self) -> str:
        """A tab that cannot be read keeps none of the others waiting."""
        problem = ""
        for coordinator in {*self.core.terms.statement_keys, *self.core.debts.keys()}:
            try:
                await self.look_at_tab(coordinator)
            except (Unavailable, Refused) as error:
                # Not re-raised: the chain may come back, or the operator get coins for gas.
                problem = f"the tab of coordinator 0x{coordinator.hex()[:10]} waits: {error}"
        return problem

    async def look_at_funded(self) -> str:
        problem = ""
        try:
            for execution in await asyncio.to_thread(kept, self.folder):
                try:
                    await self.look_at_execution(execution)
                except (Unavailable, Refused) as error:
                    # Not re-raised: the chain may come back, or the operator get coins for gas.
                    problem = f"the funded job 0x{execution.lease.hex()[:12]} waits: {error}"
        except (Refused, OSError) as error:
            return str(error)  # not re-raised: the owner may restore the file
        return problem

    async def look_at_tab(self, coordinator: Address) -> None:
        """Reads one tab in final blocks, and does what is due."""
        core, limits = self.core, self.core.terms.limits
        head = await self.client.head()
        block = head.final(limits.chain_depth)
        query = self.contracts.escrow.tab(coordinator, core.terms.provider)
        debt, found = core.debt(coordinator), seen(await ask(self.client, query, block))
        if found != debt.tab or not debt.is_tab_known:
            event = events.TabSeen(coordinator, found.locked, found.paid, found.closes_at)
            await self.actor.submit(event)
        tab = await ask(self.client, query)  # what was sent a minute ago is not sent again
        await self._redeem(coordinator, core.debt(coordinator), tab, UnixSeconds(head.time))
        is_fast = limits.pay_every < DAY
        if tab.paid - tab.drawn >= (1 if is_fast else DRAW_LEAST):
            step = draw_step(self.contracts, core.terms.provider, coordinator, tab)
            await self._send(step, f"drew {usd(tab.paid - tab.drawn)} USD")
        await self._check_key(coordinator, block)

    async def _check_key(self, coordinator: Address, block: BlockNumber) -> None:
        served = self.core.terms.statement_keys.get(coordinator)
        query = self.contracts.stakes.operator_key(coordinator)
        if served is not None and await ask(self.client, query, block) != served:
            raise Refused(
                Code.WRONG_SIGNER,
                "its statement key was replaced, so nothing that it sends is taken: start this "
                "daemon again",
            )

    async def _redeem(self, coordinator: Address, debt: Debt, tab: Tab, now: UnixSeconds) -> None:
        """After a week, or once its tab closes or its key was replaced."""
        limits, voucher = self.core.terms.limits, debt.voucher
        if voucher is None or debt.vouched <= tab.paid:
            return
        key = signer(self.core.terms.domain, voucher, recover)
        _, until = await ask(self.client, self.contracts.stakes.key_range(coordinator, key))
        key_ends = UnixSeconds(0 if until == KEY_IS_VALID else until)
        if key_ends and now > tabs.counts_until(key_ends, True, limits):
            return  # the chain takes it no more
        least = Amount(1) if limits.pay_every < DAY else tabs.REDEEM_LEAST
        if tabs.is_redeem_due(seen(tab), debt.waiting(key_ends), now, least, limits):
            step = redeem_step(self.contracts, voucher, tab)
            await self._send(
                step, f"redeemed the voucher of coordinator 0x{coordinator.hex()[:10]}"
            )

    async def look_at_execution(self, execution: FundedExecution) -> None:
        """Only final blocks end the coordinator's debt."""
        limits, head = self.core.terms.limits, await self.client.head()
        now, block = head.time, head.final(limits.chain_depth)
        name = f"job 0x{execution.lease.hex()[:12]}"
        final = await read_escrow(self.client, self.contracts, execution, block)
        found = await read_job(self.client, self.contracts, execution)
        if is_secured(execution, final, limits) and self._counts(execution.lease):
            await self.actor.submit(events.OrderFunded(execution.lease))
        now_at = standing(execution, found, now, limits)
        if now_at.state is State.SHOWABLE and now >= now_at.at:
            step = show_step(self.contracts, execution)
            await self._send(step, f"sent {step.call.text} for {name}")
        elif now_at.state is State.PAYABLE:
            step = pay_step(self.contracts, execution, found.shown)
            await self._send(step, f"sent {step.call.text} for {name}")
        elif final.is_over == found.job.is_over and is_worthless(
            execution, now_at.state, now, limits
        ):
            log.info("%s: %s", name, now_at.state)
            await asyncio.to_thread(forget, self.folder, execution)

    def _counts(self, lease: Hash32) -> bool:
        """Whether the core still takes the pay for a debt of the coordinator."""
        pay = self.core.pays.get(lease)
        return lease in self.core.executions if pay is None else not pay.is_escrowed

    async def _send(self, step: Step, what: str) -> None:
        """Only a step that the chain takes now, so that a transaction rarely reverts."""
        await simulate(self.client, step.call, self.sender.address)
        await self.sender.send(step.purpose, step.call)
        log.info("%s", what)
