"""Which outputs of a job must be compared before its verdict (PROTOCOL §5 Batches).

Under the comparator `exact` none. Otherwise the shell opens each two that differ, and reports how
far they are apart.
"""

from quorate_coordinator.core.audit.batches import committed_leases
from quorate_coordinator.core.model.effects import CompareOutputs
from quorate_coordinator.core.model.entities import Comparison, Job
from quorate_coordinator.core.model.events import OutputsCompared
from quorate_coordinator.core.model.lease import Lease, Revealed
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import HOUR
from quorate_protocol.messages.signed import Reveal
from quorate_protocol.rules.agreement import pairs_to_compare
from quorate_protocol.units import Hash32, UnixSeconds

PATIENCE_SECONDS = HOUR  # for what the machine lacks now: a file, space, a process


def ask(context: StepContext, job: Job) -> Job:
    """Orders the comparisons that a verdict on the revealed executions still needs."""
    if job.is_exact:
        return job
    known = {(item.one, item.other) for item in job.comparisons}
    members = committed_leases(context, job)
    pairs = (
        (members[one].assignment_hash, members[other].assignment_hash)
        for one, other in pairs_to_compare([_reveal_of(lease) for lease in members])
    )
    fresh = [pair for pair in pairs if pair not in known]
    for one, other in fresh:
        key, until = f"compare-{one.hex()}-{other.hex()}", context.at + PATIENCE_SECONDS
        effect = CompareOutputs(key, job.id, one, other, job.order.client, UnixSeconds(until))
        context.emit(effect)
    asked = tuple(Comparison(*pair) for pair in fresh)
    return context.put(job, comparisons=(*job.comparisons, *asked)) if asked else job


def is_waiting(job: Job) -> bool:
    return not all(item.is_known for item in job.comparisons)


def is_wanted(job: Job, one: Hash32, other: Hash32) -> bool:
    return Comparison(one, other) in job.comparisons


def note(context: StepContext, event: OutputsCompared) -> Job | None:
    """Returns the job, or None if nobody waits for this: after a crash the shell reports twice."""
    job, pair = context.state.jobs.get(event.job_id), (event.one, event.other)
    if job is None or not is_wanted(job, *pair):
        return None
    found = {Comparison(*pair): Comparison(*pair, is_known=True, ppb=event.ppb)}
    return context.put(job, comparisons=tuple(found.get(item, item) for item in job.comparisons))


def _reveal_of(lease: Lease) -> Reveal | None:
    return lease.phase.reveal if isinstance(lease.phase, Revealed) else None
