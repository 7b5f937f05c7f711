"""Applies what the chain reports: registrations, slots, tabs, cases."""

from collections.abc import Callable, Iterable
from typing import assert_never

from quorate_coordinator.core.audit import faults
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.accusations import Case
from quorate_coordinator.core.model.entities import PastKey, PoolSlots, Provider
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import held_pay, payees, transactions
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.messages.stake_slot import FOREVER, StakeSlot
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, Amount, BlockNumber, Hash32
from quorate_protocol.values import replace

BLOCKS_KEPT = 64
PAST_KEYS_KEPT = 8
# slots in one class's list; a chain node that names a later slot is faulty
LIST_SLOTS_MAX = 1 << 20


def on_block(context: StepContext, event: ev.ChainAdvanced) -> None:
    """An older block changes nothing."""
    if event.block <= context.state.own.block:
        return
    context.change_own(block_time=event.block_time)
    for note in event.notes:
        _apply(context, note)
    context.change_own(block=event.block)
    context.state.blocks[event.block] = event.block_hash
    for old in [block for block in context.state.blocks if block <= event.block - BLOCKS_KEPT]:
        del context.state.blocks[old]


def on_reorganised(context: StepContext, event: ev.ChainReorganised) -> None:
    for block in [block for block in context.state.blocks if block > event.kept]:
        del context.state.blocks[block]
    context.change_own(block=event.kept)


def on_state_queried(context: StepContext, event: ev.ChainStateQueried) -> None:
    """The block up to which logs were read does not change."""
    for note in event.notes:
        _apply(context, note)


def _apply(context: StepContext, note: ev.ChainNote) -> None:
    match note:
        case ev.ChainProviderRegistered():
            _register(context, note)
        case ev.ChainSlotOpened():
            _open_slot(context, note)
        case ev.ChainSlotClosed():
            _close_slot(context, note)
        case ev.ChainKeyRotated():
            _rotate(context, note)
        case ev.ChainPayoutChanged(owner, payout):
            _change_provider(context, owner, payout=payout)
        case ev.ChainNetworkChanged(owner, network):
            _change_provider(context, owner, network=network)
        case ev.ChainSlotsClosed(owner, out_block):
            if owner == context.rules.coordinator:
                context.change_own(is_leaving=True)
            _close_slots(context, owner, out_block)
            _draw_if_exiting(context, owner)
        case ev.ChainSlotFreed():
            _free_slot(context, note)
        case ev.ChainTabChanged():
            transactions.on_tab(context, note)
        case ev.ChainBalanceChanged(amount, payroll_left, locks_left):
            context.change_own(balance=amount, payroll_left=payroll_left, locks_left=locks_left)
            payees.wake(context)
        case ev.ChainCaseOpened():
            _case_opened(context, note)
        case ev.ChainJuryDrawn(execution, jurors):
            _change_case(context, execution, jurors=jurors, phase="voting")
        case ev.ChainCaseDecided():
            _case_decided(context, note)
        case _:
            assert_never(note)


def _register(context: StepContext, note: ev.ChainProviderRegistered) -> None:
    known = context.state.providers.get(note.owner)
    number = len(context.state.providers)
    fresh = Provider(
        note.owner, number, note.operator_key, note.payout, note.network, is_on_probation=True
    )
    if known is not None:
        # a log that is read again has the first key
        key = known.operator_key if known.past_keys else note.operator_key
        fresh = replace(known, operator_key=key, payout=note.payout, network=note.network)
    context.state.providers[note.owner] = fresh


def _rotate(context: StepContext, note: ev.ChainKeyRotated) -> None:
    """After a reorganisation the same log may come again."""
    provider = context.state.providers.get(note.owner)
    if (
        provider is None
        or provider.operator_key == note.operator_key
        or any(past.until >= note.since for past in provider.past_keys)
    ):
        return
    past = (*provider.past_keys, PastKey(provider.operator_key, note.since))[-PAST_KEYS_KEPT:]
    offer = provider.offer
    if offer is not None and offer.expires == WITHDRAWN:
        offer = None  # receipts show a withdrawal under the key of the Ack's time
    context.state.providers[note.owner] = replace(provider, past_keys=past, offer=offer)
    _change_provider(context, note.owner, operator_key=note.operator_key)


def _change_provider(context: StepContext, owner: Address, **changes: object) -> None:
    provider = context.state.providers.get(owner)
    if provider is None:
        return  # a coordinator's key, which is not followed here
    context.state.providers[owner] = replace(provider, **changes)  # type: ignore[arg-type]
    _change_slots(context, owner, lambda slot: replace(slot, **changes))  # type: ignore[arg-type]


def _change_slots(
    context: StepContext, owner: Address, change: Callable[[StakeSlot], StakeSlot]
) -> None:
    for pool, hosts in list(context.state.pool_slots.items()):
        if any(slot.owner == owner for slot in hosts.slots):
            slots = tuple(change(slot) if slot.owner == owner else slot for slot in hosts.slots)
            _set_slots(context, pool, slots)


def _close_slots(context: StepContext, owner: Address, out_block: BlockNumber) -> None:
    _change_slots(
        context,
        owner,
        lambda slot: _closed(slot, out_block) if slot.active_from <= out_block else slot,
    )


def _closed(slot: StakeSlot, until: BlockNumber) -> StakeSlot:
    return replace(slot, active_until=min(slot.active_until, until))


def _open_slot(context: StepContext, note: ev.ChainSlotOpened) -> None:
    provider = context.state.providers.get(note.owner)
    if provider is None or note.index >= LIST_SLOTS_MAX:
        return  # `Stakes` opens no slot without a registration
    slots = _slots(context, note.pool)
    while len(slots) <= note.index:
        slots.append(_no_slot(len(slots)))
    slots[note.index] = StakeSlot(
        note.index,
        note.owner,
        provider.operator_key,
        provider.payout,
        provider.network,
        note.active_from,
    )
    if provider.is_on_probation:
        payees.end_probation(context, note.owner)
    payees.wake(context)
    _set_slots(context, note.pool, slots)


def _no_slot(index: int) -> StakeSlot:
    nobody = (ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_HASH)
    return StakeSlot(index, *nobody, FOREVER, BlockNumber(0))


def _slots(context: StepContext, pool: Hash32) -> list[StakeSlot]:
    return list((context.state.pool_slots.get(pool) or PoolSlots()).slots)


def _set_slots(context: StepContext, pool: Hash32, slots: Iterable[StakeSlot]) -> None:
    """An owner that has opened its first slot counts from the time of the newest block."""
    slots, at = tuple(slots), context.state.own.block_time
    since = (context.state.pool_slots.get(pool) or PoolSlots()).since
    owners = {slot.owner for slot in slots if slot.active_until == FOREVER}
    context.state.pool_slots[pool] = PoolSlots(
        slots, {owner: since.get(owner, at) for owner in sorted(owners)}
    )


def _close_slot(context: StepContext, note: ev.ChainSlotClosed) -> None:
    slots = _slots(context, note.pool)
    if note.index < len(slots):
        slots[note.index] = _closed(slots[note.index], note.active_until)
        _set_slots(context, note.pool, slots)
        _draw_if_exiting(context, slots[note.index].owner)


def _free_slot(context: StepContext, note: ev.ChainSlotFreed) -> None:
    slots = _slots(context, note.pool)
    if note.index < len(slots):
        slots[note.index] = _no_slot(note.index)
        _set_slots(context, note.pool, slots)


def _draw_if_exiting(context: StepContext, owner: Address) -> None:
    """Closing the last slot means that the provider exits, so its held jobs are drawn now."""
    slots = (slot for hosts in context.state.pool_slots.values() for slot in hosts.slots)
    if all(slot.active_until != FOREVER for slot in slots if slot.owner == owner):
        for job in held_pay.held_jobs_of(context, owner):
            held_pay.draw_at_provider_exit(context, job)


def _case_opened(context: StepContext, note: ev.ChainCaseOpened) -> None:
    """Of another account's case it keeps what it knows: the decision needs both Reveals."""
    known = context.state.cases.get(note.execution)
    if known is not None and known.case_id == note.case_id:
        return  # the same log again, after a reorganisation
    if known is None or known.is_convicted is not None:
        job_id, evidence = faults.known_evidence(context, note.execution, note.contradiction)
        known = Case(note.execution, note.accused, job_id, evidence, opened_at=context.at)
    context.state.cases[note.execution] = replace(known, case_id=note.case_id, phase="drawing")


def _case_decided(context: StepContext, note: ev.ChainCaseDecided) -> None:
    case = _change_case(
        context, note.execution, is_convicted=note.is_convicted, taken=note.taken, phase="decided"
    )
    if case is None:
        return
    if note.is_convicted and case.accused in context.state.providers:
        held_pay.reexecute_all(context, case.accused)
    result = f"convicted, {note.taken} micro-USD taken" if note.is_convicted else "not convicted"
    job = context.state.jobs.get(case.job_id) if case.job_id is not None else None
    if job is not None:  # it may have been archived meanwhile
        context.note(job.id, "judged", f"its case: {result}")
    faults.forget_old_cases(context)


def _change_case(context: StepContext, execution: Hash32, **changes: object) -> Case | None:
    case = context.state.cases.get(execution)
    if case is None:
        return None
    changed: Case = replace(case, **changes)  # type: ignore[arg-type]
    context.state.cases[execution] = changed
    return changed


def on_confirmed(context: StepContext, event: ev.TransactionConfirmed) -> None:
    for note in event.notes:
        _apply(context, note)
    transactions.on_confirmed(context, event)


def on_refused(context: StepContext, event: ev.TransactionRefused) -> None:
    """The chain will never take it. A case is given up, and its provider keeps its strikes."""
    transactions.on_refused(context, event)
    for case in list(context.state.cases.values()):
        if case.key == event.purpose and case.case_id is None:
            context.state.cases[case.execution] = replace(
                case, phase=f"refused: {event.reason[:200]}", is_convicted=False, burned=Amount(0)
            )
