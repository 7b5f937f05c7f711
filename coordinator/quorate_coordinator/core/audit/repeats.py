"""Repeats: two members of the accepted group execute a job again before another is faulted
(PROTOCOL §5 Faults).

No beacon round draws a batch of repeats: its members are those whose results agreed, in CommitSet
order. The next one replaces a member that does not answer or contradicts itself.
"""

from collections.abc import Sequence

from quorate_coordinator.core.audit import draw
from quorate_coordinator.core.audit.batches import committed_leases
from quorate_coordinator.core.model.entities import BatchPlace, Job, Running
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger
from quorate_protocol.rules import settlement
from quorate_protocol.rules.confirmation import Repeat
from quorate_protocol.values import replace


def begin(context: StepContext, job: Job, group: Sequence[Lease], wanted: int) -> Job:
    """Asks members that were not asked before. The same job comes back if there are none."""
    asked, number = job.agreed[: job.asked], len(job.batches)
    names = (lease.assignment_hash for lease in group)
    left = tuple(name for name in names if name not in asked)
    if not left:
        return job
    rate = job.batches[0].commit_set.message.audit_ppm
    phase = Running(
        batch=number,
        wanted=wanted,
        places=(),
        next_attempt=0,
        beacon=None,
        skipped=(),
        audit_ppm=rate,
        is_repeat=True,
    )
    begun = fill(context, context.put(job, phase=phase, agreed=(*asked, *left)))
    if isinstance(begun.phase, Running) and not begun.phase.wanted:
        return context.put(begun, phase=job.phase)  # no answer and no deadline would come
    context.note(job.id, "confirming", "results differ: some of those that agree repeat the job")
    return begun


def fill(context: StepContext, job: Job) -> Job:
    """When no member is left to ask, the batch wants only the places that it has."""
    members = [lease.assignment_hash for lease in committed_leases(context, job)]
    slots = [slot for batch in job.batches for slot in batch.slots]
    while isinstance(job.phase, Running) and len(job.phase.places) < job.phase.wanted:
        phase = job.phase
        if job.asked == len(job.agreed):
            return context.put(job, phase=replace(phase, wanted=len(phase.places)))
        number = members.index(job.agreed[job.asked])
        place = BatchPlace(slots[number], number, context.at, None)
        phase = replace(phase, places=(*phase.places, place))
        job = context.put(job, phase=phase, asked=job.asked + 1)
        job = draw.assign_place(context, job, place)
    return job


def results(context: StepContext, job: Job) -> list[Repeat]:
    return settlement.repeats_in(ledger.ran(context, job, committed_leases(context, job)))
