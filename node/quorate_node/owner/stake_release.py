"""Closes stake slots and takes their stake back once the unbonding time is over.

Each step has its own purpose, so a command that was killed does no step twice. The chain says what
is left to do.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts.account.delivery import send_again
from quorate_contracts.account.goals import StakeSlot
from quorate_contracts.calls import Step, simulate
from quorate_contracts.deploy import Contracts
from quorate_node.base.dates import date_text
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.account_state import AccountState, stake_slots
from quorate_node.owner.senders import owner_sender
from quorate_node.owner.stake_classes import remembered
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32, usd
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.log_throttle import LogThrottle

LOOKS_PER_UNBONDING = 12  # a devnet's daemon looks each 15 seconds
LOOK_MOST_SECONDS = 180.0
LOOK_LEAST_SECONDS = 1.0
BUSY_SECONDS = 5.0

log = logging.getLogger(__name__)


def close_step(contracts: Contracts, slot: StakeSlot) -> Step:
    call = contracts.stakes.close_slot(slot.pool, slot.place)
    return Step(f"close/{_name(contracts, slot)}", call)


def take_back_step(contracts: Contracts, slot: StakeSlot) -> Step:
    call = contracts.stakes.unbond_slot(slot.pool, slot.place)
    return Step(f"unbond/{_name(contracts, slot)}", call)


def _name(contracts: Contracts, slot: StakeSlot) -> str:
    place = f"{slot.pool.hex()[:16]}/{slot.place}/{slot.from_block}"
    return f"{contracts.deployment.stakes.hex()[:8]}/{place}"


async def possible_step(
    client: ChainClient, contracts: Contracts, account: Address, slot: StakeSlot
) -> Step | None:
    """None while it must wait. A burnt slot looks closed, but its owner has still to close it."""
    for step in (take_back_step(contracts, slot), close_step(contracts, slot)):
        try:
            await simulate(client, step.call, account)
        except Refused:
            continue  # not re-raised: it is the contract's answer
        return step
    return None


def surplus(state: AccountState, pool: Hash32, wanted: int) -> tuple[StakeSlot, ...]:
    """The newest first. Pure."""
    opened = sorted(state.open_slots(pool), key=lambda slot: (slot.from_block, slot.place))
    return tuple(reversed(opened[wanted:]))


def look_pause(closed: Iterable[StakeSlot], now: int, unbond_after: int) -> float:
    """Seconds to the next look, short also while none is closed: a command may close slots. `now`
    is the chain's. Pure.
    """
    usual = min(LOOK_MOST_SECONDS, unbond_after / LOOKS_PER_UNBONDING)
    waits = (float(slot.back_at - now) for slot in closed if slot.back_at > now)
    return max(LOOK_LEAST_SECONDS, min((*waits, usual)))


def slot_news(
    before: AccountState | None, after: AccountState, slot_stake: Amount, now: float
) -> list[str]:
    """A line for each slot that was closed, or whose stake came back. Pure."""
    if before is None:
        return []
    left = {(slot.pool, slot.place, slot.from_block): slot for slot in after.slots}
    lines = []
    for slot in before.slots:
        found = left.get((slot.pool, slot.place, slot.from_block))
        if found is None:
            lines.append(f"stake is back: {usd(slot_stake)} USD")
        elif found.back_at and not slot.back_at:
            date = date_text(found.back_at, now)
            lines.append(f"stake slot closed: its {usd(slot_stake)} USD come back at {date}")
    return lines


@dataclass(slots=True)
class StakeRelease:
    """Frees the stake of CPU slots that the owner gave up, and takes back that of every closed
    slot. GPU slots stay open: a GPU may come back, and its stake would be locked for weeks.
    """

    core: ProviderCore
    client: ChainClient
    contracts: Contracts
    owner: Signer | None
    home: Path
    cpu: tuple[Hash32, int]  # its pool, and how many stake slots the owner wants there
    clock: Clock
    _told: str = ""
    _before: AccountState | None = None
    _trouble: LogThrottle = field(init=False)

    def __post_init__(self) -> None:
        self._trouble = LogThrottle(log, self.clock)

    async def run(self) -> None:
        while True:
            try:
                pause = await self.look()
                self._trouble.recovered("stake is released again")
            except (Unavailable, Refused) as error:
                # Not re-raised: the chain may come back, a command ends.
                self._trouble.failed(f"stake cannot be released yet: {error}")
                pause = BUSY_SECONDS
            await self.clock.sleep(pause)

    async def look(self) -> float:
        """Returns the seconds until the next look."""
        pool, wanted = self.cpu
        account, classes = self.core.terms.provider, {pool, *remembered(self.home)}
        classes |= {slot.pool.id() for slot in self.core.terms.slots}
        slots: list[StakeSlot] = []
        for item in sorted(classes):
            slots += await stake_slots(self.client, self.contracts, account, item)
        state = AccountState(account, slots=tuple(slots))
        constants = self.contracts.deployment.constants()
        for line in slot_news(self._before, state, constants.slot_stake, self.clock.now()):
            log.info("%s", line)
        self._before = state
        extra = () if self._is_busy(wanted) else surplus(state, pool, wanted)
        steps = [close_step(self.contracts, slot) for slot in extra]
        head = await self.client.head()
        for slot in state.closed_slots():
            if slot.back_at <= head.time:
                step = await possible_step(self.client, self.contracts, account, slot)
                steps += [step] if step else []
        await self._send(steps)
        if steps and self.owner is not None:
            return LOOK_LEAST_SECONDS
        return look_pause(state.closed_slots(), head.time, constants.unbond_after)

    def _is_busy(self, wanted: int) -> bool:
        """Whether more leases run than slots would be left."""
        running = sum(1 for item in self.core.live() if item.pool == self.cpu[0])
        return running > wanted

    async def _send(self, steps: Iterable[Step]) -> None:
        steps = tuple(steps)
        if not steps:
            return
        if self.owner is None:
            self._tell_owner(steps)
            return
        deployment = self.contracts.deployment
        with owner_sender(self.home, self.client, self.owner, self.clock, deployment) as sender:
            for step in steps:
                await send_again(sender, step.purpose, step.call)
                log.info("stake: sent %s", step.call.name)
                await asyncio.sleep(0)

    def _tell_owner(self, steps: tuple[Step, ...]) -> None:
        calls = "; ".join(step.call.name for step in steps)
        if calls != self._told:
            log.warning(
                "stake can be freed: with the key of 0x%s call %s of 0x%s",
                self.core.terms.provider.hex(),
                calls,
                self.contracts.stakes.address.hex(),
            )
        self._told = calls
