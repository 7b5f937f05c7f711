"""Advances cases on chain: proves the beacon round, draws the jury, acts after deadlines, and opens
the accused's reveals.

Anyone may do this; the coordinator does it for the cases that it opened. Every transaction has a
purpose, so it repeats none after a restart.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.court import Case as ChainCase
from quorate_contracts.bindings.court import CaseId, Phase
from quorate_contracts.deploy import Contracts
from quorate_coordinator.core.accusations import Case
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_protocol.limits import BY_NAME
from quorate_protocol.ports import Beacon, Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Round
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
SEND_SECONDS = 60.0
STEPS_MAX = 64


@dataclass(slots=True)
class CourtDriver:
    """One task of the service, which advances this coordinator's cases."""

    client: ChainClient
    contracts: Contracts
    core: CoordinatorCore
    sender: Sender
    beacon: Beacon
    clock: Clock
    withdrawn: set[CaseId] = field(default_factory=set)
    steps: dict[CaseId, asyncio.Task[None]] = field(default_factory=dict)  # at most one for a case

    async def run(self) -> None:
        """Looks at the cases once a second until cancelled."""
        try:
            while True:
                await self.look()
                await self.clock.sleep(POLL_SECONDS)
        finally:
            for step in self.steps.values():
                step.cancel()
            await asyncio.gather(*self.steps.values(), return_exceptions=True)

    async def look(self) -> None:
        """Starts at most one step in each case of this coordinator, the cheapest case first, and
        waits at most a second for them. A step that takes longer goes on, so that no case waits for
        a slow or a dear one.
        """
        due = [case for case in self.core.state.cases.values() if case.executions]
        for case in sorted(due, key=_longest_runs):
            number = CaseId(case.case_id or 0)
            if number and number not in self.steps and len(self.steps) < STEPS_MAX:
                self.steps[number] = asyncio.create_task(self._step(case, number))
        if self.steps:
            await asyncio.wait(self.steps.values(), timeout=POLL_SECONDS)
        for number in [number for number, step in self.steps.items() if step.done()]:
            self.steps.pop(number).result()

    async def _step(self, case: Case, number: CaseId) -> None:
        if case.is_convicted is not None:
            await self._withdraw_once(number)
            return
        try:
            await self._move(case, number)
        except Unfunded as error:
            log.warning(
                "case %d: the posting key needs coins for gas: %s", number, error
            )  # not re-raised: the next look tries again
        except Refused as refused:
            # Not re-raised: another sender was faster, or by the block's clock it is too early. The
            # next look decides.
            log.info("case %d: %s", number, refused)
        except Unavailable as error:
            log.warning("case %d waits for the chain: %s", number, error)

    async def _withdraw_once(self, number: CaseId) -> None:
        """Withdraws the bond and the costs that the court owes the accuser."""
        if number in self.withdrawn:
            return
        account = self.sender.address
        query = self.contracts.court.credit_of(account)
        try:
            if query.decode(await self.client.call(query.to, query.data)):
                await self._send(f"case-{number}-withdraw", self.contracts.court.withdraw(account))
            self.withdrawn.add(number)
        except (Refused, Unavailable) as error:
            # Not re-raised: two cases decided at once share one credit, which is withdrawn once.
            log.info("case %d: %s", number, error)

    async def _move(self, case: Case, number: CaseId) -> None:
        query = self.contracts.court.case(number)
        state = query.decode(await self.client.call(query.to, query.data))
        now = (await self.client.head()).time
        match state.phase:
            case Phase.DRAWING:
                await self._draw(number, state, now)
            case Phase.VOTING if now > state.deadline:
                await self._send(
                    f"case-{number}-advance-{state.deadline}", self.contracts.court.advance(number)
                )
            case Phase.REVEALING | Phase.DECIDING if (
                state.phase is Phase.DECIDING or now > state.deadline
            ):
                # A juror that voted and does not reveal does not delay the case: the others'
                # answers decide.
                await self._send(
                    f"case-{number}-decide",
                    self.contracts.court.decide(
                        number, [reveal for item in case.executions for reveal in item.reveals]
                    ),
                )
            case _:
                pass

    async def _draw(self, number: CaseId, state: ChainCase, now: int) -> None:
        found = await self.beacon.round(state.round)
        if found is None:
            # If the first round never appears, giving it up would burn our bond. Only a redraw is
            # given up; the jurors that voted then go on.
            if state.is_redrawn and now > self._missing_from(state.round):
                await self._send(
                    f"case-{number}-advance-round-{state.round}",
                    self.contracts.court.advance(number),
                )
            return
        proven = self.contracts.beacon.randomness(state.round)
        if proven.decode(await self.client.call(proven.to, proven.data)) == bytes(32):
            await self._send(f"beacon-{state.round}", self.contracts.beacon.submit(found))
        await self._send(
            f"case-{number}-draw-{state.round}", self.contracts.court.draw_jury(number)
        )

    def _missing_from(self, number: Round) -> int:
        """When the court stops waiting for a round, in unix seconds."""
        deployment = self.contracts.deployment
        info = deployment.beacon_info()
        return (
            info.genesis_time
            + (number - 1) * info.period
            + BY_NAME[deployment.limits].jury_beacon_missing
        )

    async def _send(self, purpose: str, call: Call) -> None:
        await self.sender.send(
            purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
        )


def _longest_runs(case: Case) -> int:
    """Returns what the executions of a case cost at most, in amount units times an hour."""
    assignments = [item.assignment.message for item in case.executions]
    return sum(each.price_per_hour * each.max_duration for each in assignments)
