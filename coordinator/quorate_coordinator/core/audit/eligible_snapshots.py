"""Stores the slots from which each job draws its auditors, and counts the jobs that need them.

400 slots take 130 KB and change only with the chain. So a snapshot names the lists of its pools,
and holds only the withdrawals of owners that are not drawn. Jobs with equal lists share it.
"""

from quorate_coordinator.core.model.entities import EligibleSnapshot, PoolSlots, SlotList
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.units import Hash32
from quorate_protocol.values import replace

SLOT_LISTS = "slot-lists"


def add_job(context: StepContext, pools: tuple[Hash32, ...], eligible: EligibleList) -> None:
    state = context.state
    known = state.eligible_snapshots.get(eligible.root)
    if known is not None:
        # Who withdrew since may have had no active slots before: then the list is the same.
        shown = {item.offer.message.provider: item for item in known.withdrawals}
        for item in state.market.withdrawals(pools):
            shown.setdefault(item.offer.message.provider, item)
        withdrawals = tuple(shown[owner] for owner in sorted(shown))
        state.eligible_snapshots[eligible.root] = replace(
            known, jobs=known.jobs + 1, withdrawals=withdrawals
        )
        return
    numbers = tuple(_list_number(context, pool) for pool in pools)
    for number in numbers:
        slot_list = state.slot_lists[number]
        state.slot_lists[number] = replace(slot_list, snapshots=slot_list.snapshots + 1)
    withdrawals = state.market.withdrawals(pools)
    state.eligible_snapshots[eligible.root] = EligibleSnapshot(
        numbers, state.own.block, withdrawals, 1
    )


def remove_job(context: StepContext, root: Hash32) -> None:
    state, snapshot = context.state, context.state.eligible_snapshots[root]
    if snapshot.jobs > 1:
        state.eligible_snapshots[root] = replace(snapshot, jobs=snapshot.jobs - 1)
        return
    del state.eligible_snapshots[root]
    for number in snapshot.list_numbers:
        slot_list = state.slot_lists[number]
        if slot_list.snapshots > 1:
            state.slot_lists[number] = replace(slot_list, snapshots=slot_list.snapshots - 1)
            continue
        del state.slot_lists[number]
        if state.newest_slot_lists.get(slot_list.pool) == number:
            del state.newest_slot_lists[slot_list.pool]


def _list_number(context: StepContext, pool: Hash32) -> int:
    state = context.state
    slots = (state.pool_slots.get(pool) or PoolSlots()).slots
    number = state.newest_slot_lists.get(pool)
    known = state.slot_lists.get(number) if number is not None else None
    if number is None or known is None or (known.slots is not slots and known.slots != slots):
        number, known = context.count(SLOT_LISTS), SlotList(pool, slots, 0)
        state.newest_slot_lists[pool] = number
    # After a restore the two are equal but not the same object. Storing the newer one makes the
    # next comparison fast.
    state.slot_lists[number] = replace(known, slots=slots)
    return number
