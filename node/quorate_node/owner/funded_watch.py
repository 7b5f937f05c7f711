"""Turns the evidence of funded orders into pay, where their coordinators do not.

The operator key sends the transactions and pays the gas. `Jobs` pays into the owner's balance in
Escrow. What is left to do follows from the files and the chain.
"""

import asyncio
import logging
from pathlib import Path

from quorate_contracts.calls import Step, simulate
from quorate_contracts.deploy import Contracts
from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.frame_handler import EventSink
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
from quorate_node.owner.operator_sender import OperatorSender
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.log_throttle import LogThrottle

LOOK_SECONDS_MAX = 60.0
LOOKS_PER_SHOW = 5  # a devnet's daemon looks each second

log = logging.getLogger(__name__)


class FundedWatch:
    """The task of the daemon for the files in `folder`."""

    def __init__(
        self,
        core: ProviderCore,
        actor: EventSink,
        contracts: Contracts,
        client: ChainClient,
        operator_sender: OperatorSender,
        folder: Path,
        clock: Clock,
    ) -> None:
        self._core, self._actor, self._contracts = core, actor, contracts
        self._client, self._sender = client, operator_sender
        self._folder, self._clock = folder, clock
        self._trouble = LogThrottle(log, clock)

    async def run(self) -> None:
        pause = min(LOOK_SECONDS_MAX, self._core.terms.limits.show_after / LOOKS_PER_SHOW)
        while True:
            try:
                problem = await self.look_at_all()
            except (Refused, OSError) as error:
                problem = str(error)  # not re-raised: the owner may restore the file
            if problem:
                self._trouble.failed(problem)
            else:
                self._trouble.recovered("funded orders are settled again")
            await self._clock.sleep(pause)

    async def look_at_all(self) -> str:
        """Returns what keeps one of them waiting. Raises Refused if a file is damaged."""
        problem = ""
        for execution in await asyncio.to_thread(kept, self._folder):
            try:
                await self.look(execution)
            except (Unavailable, Refused) as error:
                # Not re-raised: the chain may come back, or the operator get coins for gas.
                problem = f"the funded job 0x{execution.lease.hex()[:12]} waits: {error}"
        return problem

    async def look(self, execution: FundedExecution) -> None:
        """Only final blocks end the coordinator's debt."""
        limits, head = self._core.terms.limits, await self._client.head()
        now, block = head.time, head.final(limits.chain_depth)
        final = await read_escrow(self._client, self._contracts, execution, block)
        found = await read_job(self._client, self._contracts, execution)
        if is_secured(execution, final, limits) and self._counts(execution.lease):
            await self._actor.submit(events.OrderFunded(execution.lease))
        now_at = standing(execution, found, now, limits)
        if now_at.state is State.SHOWABLE and now >= now_at.at:
            await self._send(show_step(self._contracts, execution), execution)
        elif now_at.state is State.PAYABLE:
            await self._send(pay_step(self._contracts, execution, found.shown), execution)
        elif final.is_over == found.job.is_over and is_worthless(
            execution, now_at.state, now, limits
        ):
            log.info("job 0x%s: %s", execution.lease.hex()[:12], now_at.state)
            await asyncio.to_thread(forget, self._folder, execution)

    def _counts(self, lease: Hash32) -> bool:
        """Whether the core still takes the pay for a debt of the coordinator."""
        pay = self._core.pays.get(lease)
        return lease in self._core.executions if pay is None else not pay.is_escrowed

    async def _send(self, step: Step, execution: FundedExecution) -> None:
        """Only a step that the chain takes now, so that a transaction rarely reverts."""
        await simulate(self._client, step.call, self._sender.address)
        await self._sender.send(step.purpose, step.call)
        log.info("sent %s for job 0x%s", step.call.text, execution.lease.hex()[:12])
