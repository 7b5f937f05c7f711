"""Applies what the chain reports: registrations, slots, allocations, epochs, cases."""

from collections.abc import Callable
from typing import assert_never

from quorate_coordinator.core.accusations import Case
from quorate_coordinator.core.audit import bars, faults
from quorate_coordinator.core.entities import Client, HostList, PastKey, Provider
from quorate_coordinator.core.events import (
    ChainAccountIndexed,
    ChainAdvanced,
    ChainAllocationChanged,
    ChainCaseDecided,
    ChainCaseOpened,
    ChainEpochPosted,
    ChainJuryDrawn,
    ChainKeyRotated,
    ChainNetworkChanged,
    ChainNewestEpoch,
    ChainNote,
    ChainPayoutChanged,
    ChainProviderRegistered,
    ChainProviderSlashed,
    ChainReorganised,
    ChainSlotClosed,
    ChainSlotFreed,
    ChainSlotOpened,
    ChainSlotsClosed,
    ChainStateQueried,
    TransactionRefused,
)
from quorate_coordinator.core.holds import held_pay
from quorate_coordinator.core.money import epochs, ledger
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.rules.audit_draw import FOREVER, StakeSlot
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    BlockNumber,
    Hash32,
    Nonce,
    UnixSeconds,
)
from quorate_protocol.values import replace

BLOCKS_KEPT = 64
PAST_KEYS_KEPT = 8
# Words in the reason for which `Court` refuses a case:
NO_JURY = "owners"  # the class has too few owners for a jury
CASE_PAIR = 2  # executions of a case to which `TOO_YOUNG` applies
TOO_YOUNG = "allocation"  # the case names two, and a client had allocated for less than 7 days
ELSEWHERE = "named"  # another case has named one of its executions
TOO_LATE = "late"  # one of its executions is too old
LIST_SLOTS_MAX = (
    1 << 20
)  # slots in one class's list; a chain node that names a later slot is faulty


def on_block(context: StepContext, event: ChainAdvanced) -> None:
    """Applies a confirmed block. An older block changes nothing."""
    if event.block <= context.state.own.block:
        return
    context.change_own(block_time=event.block_time)
    for note in event.notes:
        _apply(context, note)
    context.change_own(block=event.block)
    context.state.blocks[event.block] = event.block_hash
    for old in [block for block in context.state.blocks if block <= event.block - BLOCKS_KEPT]:
        del context.state.blocks[old]


def on_reorganised(context: StepContext, event: ChainReorganised) -> None:
    """Goes back to the last block that both histories have. The shell then reads the new history
    from there.
    """
    for block in [block for block in context.state.blocks if block > event.kept]:
        del context.state.blocks[block]
    context.change_own(block=event.kept)


def on_state_queried(context: StepContext, event: ChainStateQueried) -> None:
    """Applies the chain's current state. The block up to which logs were read does not change."""
    for note in event.notes:
        _apply(context, note)


def _apply(context: StepContext, note: ChainNote) -> None:
    match note:
        case ChainProviderRegistered():
            _register(context, note)
        case ChainSlotOpened():
            _open_slot(context, note)
        case ChainSlotClosed():
            _close_slot(context, note)
        case ChainKeyRotated():
            _rotate(context, note)
        case ChainPayoutChanged(owner, payout):
            _change_provider(context, owner, payout=payout)
        case ChainNetworkChanged(owner, network):
            _change_provider(context, owner, network=network)
        case ChainSlotsClosed(owner, out_block):
            _close_slots(context, owner, out_block)
            _draw_if_exiting(context, owner)
        case ChainSlotFreed():
            _free_slot(context, note)
        case ChainProviderSlashed():
            _slashed(context, note)
        case ChainAccountIndexed(account, index):
            context.state.indices[account] = index
        case ChainAllocationChanged():
            _allocate(context, note)
        case ChainEpochPosted(number, root):
            epochs.on_posted(context, number, root)
        case ChainNewestEpoch(number, root):
            epochs.on_newest(context, number, root)
        case ChainCaseOpened():
            _case_opened(context, note)
        case ChainJuryDrawn(case_id, jurors):
            _change_case(context, case_id, jurors=jurors, phase="voting")
        case ChainCaseDecided():
            _case_decided(context, note)
        case _:
            assert_never(note)


def _allocate(context: StepContext, note: ChainAllocationChanged) -> None:
    """Records a client's allocation.

    Deletes a client that took everything back and never ordered. Otherwise one deposit, passed on
    from account to account, would fill the table.
    """
    account, escrowed = note.client, note.allocation if note.escrowed is None else note.escrowed
    client = context.state.clients.get(account) or Client(account)
    posted = client.posted if note.posted is None else note.posted
    fresh = replace(
        client,
        allocation=note.allocation,
        escrowed=escrowed,
        release_at=note.release_at,
        posted=posted,
    )
    context.state.clients[account] = fresh
    ledger.reconsider(context, account)
    if not escrowed and not client.charged and account not in context.state.nonces:
        del context.state.clients[account]


def _register(context: StepContext, note: ChainProviderRegistered) -> None:
    known = context.state.providers.get(note.owner)
    fresh = Provider(
        note.owner, note.index, note.operator_key, note.payout, note.network, is_on_probation=True
    )
    if known is not None:
        key = (
            known.operator_key if known.past_keys else note.operator_key
        )  # a log that is read again has the first key
        fresh = replace(
            known, index=note.index, operator_key=key, payout=note.payout, network=note.network
        )
    context.state.providers[note.owner] = fresh
    context.state.indices[note.owner] = note.index


def _rotate(context: StepContext, note: ChainKeyRotated) -> None:
    """Records a new operator key. After a reorganisation the same log may come again."""
    provider = context.state.providers.get(note.owner)
    if (
        provider is None
        or provider.operator_key == note.operator_key
        or any(past.until >= note.since for past in provider.past_keys)
    ):
        return
    past = (*provider.past_keys, PastKey(provider.operator_key, note.since))[-PAST_KEYS_KEPT:]
    context.state.providers[note.owner] = replace(provider, past_keys=past)
    _change_provider(context, note.owner, operator_key=note.operator_key)


def _change_provider(context: StepContext, owner: Address, **changes: object) -> None:
    """Changes keys, payout or network in the provider and in each of its slots."""
    provider = context.state.providers.get(owner)
    if provider is None:
        return  # a coordinator's key, which is not followed here
    context.state.providers[owner] = replace(provider, **changes)  # type: ignore[arg-type]
    _change_slots(context, owner, lambda slot: replace(slot, **changes))  # type: ignore[arg-type]


def _change_slots(
    context: StepContext, owner: Address, change: Callable[[StakeSlot], StakeSlot]
) -> None:
    for host_class, hosts in list(context.state.hosts.items()):
        if any(slot.owner == owner for slot in hosts.slots):
            slots = tuple(change(slot) if slot.owner == owner else slot for slot in hosts.slots)
            context.state.hosts[host_class] = _list_with_owners(
                hosts, slots, context.state.own.block_time
            )


def _slashed(context: StepContext, note: ChainProviderSlashed) -> None:
    if note.owner in context.state.providers:
        _close_slots(context, note.owner, note.out_block)
        _freeze(context, note.owner, is_frozen=True)


def _close_slots(context: StepContext, owner: Address, out_block: BlockNumber) -> None:
    """Closes the slots that an owner had opened before a block, as `Stakes` does."""
    _change_slots(
        context,
        owner,
        lambda slot: _closed(slot, out_block) if slot.active_from <= out_block else slot,
    )


def _closed(slot: StakeSlot, until: BlockNumber) -> StakeSlot:
    """Returns the slot without the blocks from `until` on. It may have been closed before."""
    return replace(slot, active_until=min(slot.active_until, until))


def _open_slot(context: StepContext, note: ChainSlotOpened) -> None:
    provider = context.state.providers.get(note.owner)
    if provider is None or note.index >= LIST_SLOTS_MAX:
        return  # `Stakes` opens no slot without a registration
    before = context.state.hosts.get(note.host_class) or HostList()
    slots = list(before.slots)
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
    if provider.is_frozen:
        _end_freeze(context, note.owner)  # it has staked again after a slash
    if provider.is_on_probation:
        ledger.end_probation(context, note.owner)
    context.state.hosts[note.host_class] = _list_with_owners(
        before, tuple(slots), context.state.own.block_time
    )


def _no_slot(index: int) -> StakeSlot:
    """Returns a place of a list that nobody has."""
    nobody = (ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_HASH)
    return StakeSlot(index, *nobody, FOREVER, BlockNumber(0))


def _list_with_owners(before: HostList, slots: tuple[StakeSlot, ...], at: UnixSeconds) -> HostList:
    """Returns a class's list of stake slots with its owners that have an open slot. A new owner
    counts from `at`, the time of the newest block.
    """
    owners = {slot.owner for slot in slots if slot.active_until == FOREVER}
    return HostList(slots, {owner: before.since.get(owner, at) for owner in sorted(owners)})


def _close_slot(context: StepContext, note: ChainSlotClosed) -> None:
    """Closes a slot. If its opening was never reported, there is nothing to close."""
    before = context.state.hosts.get(note.host_class) or HostList()
    slots = list(before.slots)
    if note.index < len(slots):
        slots[note.index] = _closed(slots[note.index], note.active_until)
        context.state.hosts[note.host_class] = _list_with_owners(
            before, tuple(slots), context.state.own.block_time
        )
        _draw_if_exiting(context, slots[note.index].owner)


def _free_slot(context: StepContext, note: ChainSlotFreed) -> None:
    before = context.state.hosts.get(note.host_class) or HostList()
    if note.index < len(before.slots):
        slots = list(before.slots)
        slots[note.index] = _no_slot(note.index)
        context.state.hosts[note.host_class] = _list_with_owners(
            before, tuple(slots), context.state.own.block_time
        )


def _draw_if_exiting(context: StepContext, owner: Address) -> None:
    """Has a provider's held jobs drawn now if it has closed its last slot. Closing the last slot
    means that the provider exits.
    """
    slots = (slot for hosts in context.state.hosts.values() for slot in hosts.slots)
    if all(slot.active_until != FOREVER for slot in slots if slot.owner == owner):
        for job in held_pay.held_jobs_of(context, owner):
            held_pay.draw_at_provider_exit(context, job)


def _case_opened(context: StepContext, note: ChainCaseOpened) -> None:
    """Records an opened case and freezes the accused: it gets no new work. The core recognises its
    own case by the executions that the case names.

    If another account opened the case, the coordinator publishes its evidence on the named
    executions. Otherwise an accomplice of the accused could name executions and let the case end
    without evidence, after the days in which they can be named.
    """
    if any(case.case_id == note.case_id for case in context.state.cases.values()):
        return  # the same log again, after a reorganisation
    waiting = (
        case
        for case in context.state.cases.values()
        if case.accused == note.accused and case.case_id is None
    )
    ours = next(
        (
            case
            for case in waiting
            if set(_executions_named(context, case)) == set(note.assignments)
        ),
        None,
    )
    if ours is None:
        known = faults.known_evidence(context, note.assignments, note.contradictions)
        jobs = (
            tuple(context.state.leases[digest].job_id for digest in note.assignments)
            if known
            else ()
        )
        ours = Case(f"foreign-{note.case_id}", note.accused, jobs, known)
    context.state.cases[ours.key] = replace(
        ours, case_id=note.case_id, phase="drawing", is_convicted=None
    )
    _freeze(context, note.accused, is_frozen=True)


def _executions_named(context: StepContext, case: Case) -> list[Hash32]:
    return [context.digest(item.assignment.message) for item in case.executions]


def _case_decided(context: StepContext, note: ChainCaseDecided) -> None:
    case = _change_case(
        context, note.case_id, is_convicted=note.is_convicted, slashed=note.slashed, phase="decided"
    )
    if case is None:
        return
    if note.is_convicted:
        faults.mark_judged(context, case)
    else:
        _end_freeze(context, case.accused)
    for job_id in case.jobs:
        result = (
            f"convicted, {note.slashed} micro-USD slashed" if note.is_convicted else "not convicted"
        )
        if (
            job_id in context.state.jobs
        ):  # the log may come again after a reorganisation, when the job is archived
            context.note(job_id, "judged", f"case {note.case_id}: {result}")
    faults.forget_old_cases(context)
    if case.accused in context.state.providers:
        faults.open_case_if_due(context, case.accused)


def _change_case(context: StepContext, case_id: Nonce, **changes: object) -> Case | None:
    case = next((item for item in context.state.cases.values() if item.case_id == case_id), None)
    if case is None:
        return None
    changed: Case = replace(case, **changes)  # type: ignore[arg-type]
    context.state.cases[case.key] = changed
    return changed


def _freeze(context: StepContext, owner: Address, is_frozen: bool) -> None:
    provider = context.state.providers.get(owner)
    if provider is not None:
        context.state.providers[provider.owner] = replace(provider, is_frozen=is_frozen)


def _end_freeze(context: StepContext, owner: Address) -> None:
    """Gives a provider work again, unless another case against it is open or it is barred."""
    provider = context.state.providers.get(owner)
    if provider is not None and context.at < provider.barred_until:
        return
    if all(
        case.is_convicted is not None
        for case in context.state.cases.values()
        if case.accused == owner
    ):
        _freeze(context, owner, is_frozen=False)


def on_refused(context: StepContext, event: TransactionRefused) -> None:
    """Applies that the chain will never take a transaction. An epoch is built again. A case is
    given up, and its provider keeps its strikes.
    """
    if event.purpose.startswith("epoch-"):
        epochs.on_refused(context, event.purpose)
    case = context.state.cases.get(event.purpose)
    if (
        case is not None and case.case_id is None and case.is_convicted is None
    ):  # only once: a newer case may be open by now
        context.state.cases[case.key] = replace(
            case, phase=f"refused: {event.reason[:200]}", is_convicted=False
        )
        if NO_JURY in event.reason or TOO_LATE in event.reason.split():
            bars.bar(context, case.accused)
        _end_freeze(context, case.accused)
        is_young = TOO_YOUNG in event.reason and len(case.executions) == CASE_PAIR
        if is_young or ELSEWHERE in event.reason:
            _free_faults_for_another_case(context, case, is_young)


def _free_faults_for_another_case(context: StepContext, case: Case, is_young: bool) -> None:
    """Lets the faults of a refused case be named in another one.

    A client's time since its first allocation was fixed when the execution was assigned. So waiting
    does not help, but a third fault does. If another case names a fault, that fault is free again,
    or judged, when that case ends.
    """
    faults.free_faults(context, case, is_young)
    if is_young:
        why = (
            "refused: a client had first allocated too shortly before; a third fault of the "
            "provider is needed"
        )
        for job_id in case.jobs:
            if job_id in context.state.jobs:
                context.note(job_id, "case", why)
        faults.open_case_if_due(context, case.accused)
