"""Tests the memory of eligible lists that draws use.

A list that differs by one provider costs a few bytes. A list that no draw needs is freed.
"""

from quorate_coordinator.core.audit import eligible_snapshots
from quorate_coordinator.core.entities import HostList
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.rules.eligible_list import EligibleList
from quorate_protocol.units import ZERO_HASH, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import HOST, Market, Party

SLOTS, LISTS, BYTES_MAX = 400, 50, 300


def test_lists_of_one_class_share_its_slots() -> None:
    market = Market(*(Party(number) for number in range(5)))
    state = market.core.state
    few = state.hosts[HOST.id()].slots
    whole = tuple(replace(few[index % 5], index=index) for index in range(SLOTS))
    with state.transaction():
        state.hosts[HOST.id()] = HostList(whole)
    context = StepContext(state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
    lists = [
        EligibleList([slot for slot in whole if slot.index != gone], SLOTS) for gone in range(LISTS)
    ]
    sizes = []
    for made in lists:
        with state.transaction():
            eligible_snapshots.add_job(context, HOST.id(), made)
            eligible_snapshots.add_job(context, HOST.id(), made)
        sizes.append(len(market.core.snapshot()))
    assert (len(state.eligible_snapshots), len(state.slot_lists)) == (LISTS, 1)
    assert sizes[-1] - sizes[0] < LISTS * BYTES_MAX, "a frame writes its slots down once more"
    market.core.restore(market.core.snapshot())
    state.market._lists.clear()
    for made in lists:
        found = state.market.list_of(made.root)
        assert (found.root, found.slots, found.length) == (made.root, made.slots, SLOTS)
    with state.transaction():
        eligible_snapshots.add_job(context, HOST.id(), EligibleList((), SLOTS))
    assert len(state.slot_lists) == 1, "equal, if not the same, after a restore"
    with state.transaction():
        state.hosts[HOST.id()] = HostList(whole[:-1])
        eligible_snapshots.add_job(context, HOST.id(), EligibleList(whole[:-1], SLOTS - 1))
    assert len(state.slot_lists) == 2, "the chain changed the list"
    with state.transaction():
        for made in (*lists, *lists, EligibleList((), SLOTS), EligibleList(whole[:-1], SLOTS - 1)):
            eligible_snapshots.remove_job(context, made.root)
    assert (
        not len(state.eligible_snapshots)
        and not len(state.slot_lists)
        and not len(state.newest_slot_lists)
    )
