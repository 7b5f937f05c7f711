"""Repeats: two members of the accepted group execute a job again before another is faulted
(PROTOCOL §5 Faults).

The repeats are the last batch of a job. No beacon round draws it: its members are those whose
results agreed, in CommitSet order. A member that does not answer is replaced by the next one.
"""

from collections.abc import Sequence

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.audit import draw
from quorate_coordinator.core.audit.batches import drawn_leases, members_of
from quorate_coordinator.core.entities import BatchPlace, Job, Running
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.rules.confirmation import REPEATS, Repeat
from quorate_protocol.values import replace


def are_due(job: Job, outside: Sequence[Lease]) -> bool:
    """Whether somebody gave another result than the accepted group, and nobody repeated yet."""
    return not job.agreed and any(isinstance(lease.phase, leases.Revealed) for lease in outside)


def begin(context: StepContext, job: Job, group: Sequence[Lease]) -> Job:
    """Has two members of the group repeat the job. The verdict waits for them."""
    number = len(job.batches)
    rate = job.batches[0].commit_set.message.audit_ppm
    context.note(job.id, "confirming", "results differ: two of those that agree repeat the job")
    phase = Running(number, REPEATS, (), 0, None, (), rate, is_repeat=True)
    names = tuple(lease.assignment_hash for lease in group)
    return fill(context, context.put(job, phase=phase, agreed=names))


def fill(context: StepContext, job: Job) -> Job:
    """Assigns repeats to members until there are enough. When no member is left to ask, the batch
    wants only the places that it has.
    """
    drawn = drawn_leases(context, job)
    slots = [slot for batch in job.batches for slot in batch.slots]
    while isinstance(job.phase, Running) and len(job.phase.places) < job.phase.wanted:
        phase, first = job.phase, job.phase.next_attempt
        left = range(first, len(drawn))
        number = next((at for at in left if drawn[at].assignment_hash in job.agreed), None)
        if number is None:
            return context.put(job, phase=replace(phase, wanted=len(phase.places)))
        place = BatchPlace(slots[number], number, context.at, None)
        phase = replace(phase, places=(*phase.places, place), next_attempt=number + 1)
        job = draw.assign_place(context, context.put(job, phase=phase), place)
    return job


def results(context: StepContext, job: Job) -> list[Repeat]:
    """Returns the repeats of a job whose repeat batch was revealed; empty if there is none."""
    batch = job.repeat_batch
    if batch is None:
        return []
    drawn, places = drawn_leases(context, job), batch.commit_set.message.slots
    return [
        Repeat(leases.result_of(drawn[place]), leases.result_of(lease))
        for place, lease in zip(places, members_of(context, batch), strict=True)
    ]
