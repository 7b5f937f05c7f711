"""Tests the memory of eligible lists that draws use.

A list that differs by one withdrawal costs the bytes of that. A list that no draw needs is freed.
"""

from quorate_coordinator.core.audit import eligible_snapshots
from quorate_coordinator.core.model.entities import PoolSlots
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.units import ZERO_HASH, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import CPUS, Market, Party

SLOTS, OWNERS, BYTES_MAX = 400, 5, 300


def test_lists_of_one_class_share_its_slots() -> None:
    market = Market(*(Party(number) for number in range(OWNERS)))
    state = market.core.state
    few = state.pool_slots[CPUS.id()].slots
    whole = tuple(replace(few[index % OWNERS], index=index) for index in range(SLOTS))
    with state.transaction():
        state.pool_slots[CPUS.id()] = PoolSlots(whole)
    context = StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
    lists, sizes = [], []
    for owner in market.parties:  # one after the other withdraws
        with state.transaction():
            provider = state.providers[owner]
            assert provider.offer is not None
            gone = replace(provider.offer, expires=UnixSeconds(0))
            state.providers[owner] = replace(provider, offer=gone)
            made = state.market.eligible(CPUS.id())
            eligible_snapshots.add_job(context, (CPUS.id(),), made)
            eligible_snapshots.add_job(context, (CPUS.id(),), made)
        lists.append(made)
        sizes.append(len(market.core.snapshot()))
    assert [len(made.slots) for made in lists] == [320, 240, 160, 80, 0]
    assert (len(state.eligible_snapshots), len(state.slot_lists)) == (OWNERS, 1)
    assert sizes[-1] - sizes[0] < (1 + 2 + 3 + 4 + 5) * BYTES_MAX, "slots are written once"
    market.core.restore(market.core.snapshot())
    state.market._lists.clear()
    for made in lists:
        found = state.market.list_of(made.root)
        assert (found.root, found.slots, found.length) == (made.root, made.slots, SLOTS)
    with state.transaction():
        eligible_snapshots.add_job(context, (CPUS.id(),), lists[-1])
    assert len(state.slot_lists) == 1, "equal, if not the same, after a restore"
    with state.transaction():
        state.pool_slots[CPUS.id()] = PoolSlots(whole[:-1])
        shorter = state.market.eligible(CPUS.id())
        eligible_snapshots.add_job(context, (CPUS.id(),), shorter)
    assert len(state.slot_lists) == 2, "the chain changed the list"
    with state.transaction():
        for made in (*lists, *lists, lists[-1], shorter):
            eligible_snapshots.remove_job(context, made.root)
    assert (
        not len(state.eligible_snapshots)
        and not len(state.slot_lists)
        and not len(state.newest_slot_lists)
    )
