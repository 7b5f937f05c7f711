"""`quorate node leave`: closes the stake slots, takes the stake back, and collects the pay.

Each call does what is possible now and says what waits until when. The chain and the daemon hold
the state, so the command is typed again after a restart, and does no step twice.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from quorate_contracts.account.delivery import send_again
from quorate_contracts.account.goals import StakeSlot
from quorate_contracts.calls import Step
from quorate_node.cli.owner_desk import OwnerDesk
from quorate_node.cli.withdrawal import Wait, balance_calls, collect_all, is_collectable, pay_waits
from quorate_node.owner import stake_classes
from quorate_node.owner.account_state import AccountState
from quorate_node.owner.stake_release import close_step, possible_step, surplus
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds, usd


@dataclass(frozen=True, slots=True)
class JobsLeft:
    """What the daemon says still runs. `is_known` is false if no daemon answers.

    `until` is when the last job ends at the latest; 0 if none runs. `by_class` are the jobs of each
    pool, and `offered` its run slots.
    """

    is_known: bool
    jobs: int = 0
    duties: int = 0
    until: int = 0
    by_class: Mapping[Hash32, int] = field(default_factory=dict)
    offered: Mapping[Hash32, int] = field(default_factory=dict)


class Departure(Struct, frozen=True):
    """How far the provider has left. `calls` are for an owner's key that is kept elsewhere.

    `behind` is what may never come, so that leaving does not wait for it: pay that only its
    coordinator can bring on, and stake that this home cannot find.
    """

    done: tuple[str, ...]
    waits: tuple[Wait, ...]
    calls: tuple[str, ...]
    behind: tuple[Wait, ...]
    is_over: bool  # every stake slot is free, and all pay that the chain gives is collected
    wallet: Address
    tokens: Amount  # in the wallet now


async def leave(desk: OwnerDesk, jobs: JobsLeft) -> Departure:
    """Does what can be done now.

    It closes no slot while a job or a jury duty may run.
    """
    state = await desk.state()
    stake_classes.remember(desk.config.home, {slot.pool for slot in state.slots})
    problem = _jobs_wait(desk, jobs) if state.open_slots() or jobs.jobs else None
    closing = () if problem is not None else state.open_slots()
    if closing:
        # The next start must ask the chain for the slots again.
        desk.config.path(stake_classes.MARKER).unlink(missing_ok=True)
    return await _finish(desk, state, closing, [problem] if problem is not None else [])


async def free_surplus(desk: OwnerDesk, jobs: JobsLeft) -> Departure:
    """Closes the stake slots that no run slot uses, and takes back what is due.

    It closes none of a pool in which more jobs run than slots would be left.
    """
    state = await desk.state()
    stake_classes.remember(desk.config.home, {slot.pool for slot in state.slots})
    if not jobs.is_known:
        problem = _jobs_wait(desk, jobs)
        return await _finish(desk, state, (), [problem] if problem is not None else [])
    closing: list[StakeSlot] = []
    waits: list[Wait] = []
    for pool in sorted({slot.pool for slot in state.slots}):
        wanted = jobs.offered.get(pool, 0)
        extra = surplus(state, pool, wanted)
        if extra and (jobs.by_class.get(pool, 0) > wanted or jobs.duties):
            waits.append(Wait("jobs hold the stake", UnixSeconds(jobs.until)))
            continue
        closing += extra
    return await _finish(desk, state, closing, waits)


async def _finish(
    desk: OwnerDesk, state: AccountState, closing: Iterable[StakeSlot], waits: list[Wait]
) -> Departure:
    steps = [close_step(desk.contracts, slot) for slot in closing]
    steps += await _due_steps(desk, state)
    done, calls = [], []
    behind: list[Wait] = []
    if desk.keys.owner is None:
        calls = [step.call.text for step in steps] + await balance_calls(desk)
    elif steps or await is_collectable(desk):
        with desk.sender() as sender:
            for step in steps:
                await send_again(sender, step.purpose, step.call)
                done.append(f"sent {step.call.function.replace('_', ' ')}")
            collected, behind = await collect_all(desk, sender)
        done += collected
    behind += await pay_waits(desk)
    state = await desk.state() if done else state
    waits += _stake_waits(desk, state)
    if state.stake and not state.slots:
        text = (
            f"{usd(state.stake)} USD of stake are in pools that this home does not know: "
            "use the home in which they were staked"
        )
        behind.append(Wait(text))
    is_over = not (state.slots or waits or calls)
    return Departure(
        done=tuple(_counted(done)),
        waits=tuple(waits),
        calls=tuple(calls),
        behind=tuple(behind),
        is_over=is_over,
        wallet=state.account,
        tokens=state.tokens,
    )


async def _due_steps(desk: OwnerDesk, state: AccountState) -> list[Step]:
    steps = []
    for slot in state.closed_slots():
        if slot.back_at <= state.read_at:
            step = await possible_step(desk.client, desk.contracts, state.account, slot)
            steps += [step] if step is not None else []
    return steps


def _jobs_wait(desk: OwnerDesk, jobs: JobsLeft) -> Wait | None:
    """Returns why the slots stay open; None if nothing runs."""
    if not jobs.is_known:
        home = shlex.quote(str(desk.config.home))
        return Wait(
            "the slots stay open: only the daemon knows whether a job runs; start it with "
            f"`quorate node up --home {home}`"
        )
    if jobs.jobs:
        text = "a job still runs" if jobs.jobs == 1 else f"{jobs.jobs} jobs still run"
        return Wait(text, UnixSeconds(jobs.until))
    if jobs.duties:
        return Wait("a jury duty holds the stake")
    return None


def _stake_waits(desk: OwnerDesk, state: AccountState) -> list[Wait]:
    each = desk.contracts.deployment.constants().slot_stake
    waits: list[Wait] = []
    closed = state.closed_slots()
    for minute in sorted({slot.back_at // 60 for slot in closed}):
        group = [slot for slot in closed if slot.back_at // 60 == minute]
        noun = "a slot" if len(group) == 1 else f"{len(group)} slots"
        text = f"the stake of {noun} ({usd(len(group) * each)} USD)"
        waits.append(Wait(text, max(slot.back_at for slot in group)))
    return waits


def _counted(done: list[str]) -> list[str]:
    return [
        text if done.count(text) == 1 else f"{text} ({done.count(text)} times)"
        for text in dict.fromkeys(done)
    ]
