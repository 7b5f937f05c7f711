"""Notes on which leases a provider works, as its heartbeats say (PROTOCOL §3, Offers)."""

from quorate_coordinator.core.audit.assignment import step_lease
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Job, open_leases
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import HEARTBEAT_LEASES_MAX
from quorate_protocol.messages.signed import Heartbeat
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import WorkStage

_PREPARING = (WorkStage.FETCHING, WorkStage.STARTING)


def check_count(beat: Heartbeat) -> None:
    """Raises Refused if a heartbeat names too many leases."""
    if len(beat.leases) > HEARTBEAT_LEASES_MAX:
        raise Refused(
            Code.OVERSIZE,
            f"heartbeat.leases: {len(beat.leases)} are named, at most {HEARTBEAT_LEASES_MAX} are "
            "taken",
        )


def on_heartbeat(context: StepContext, beat: Heartbeat) -> None:
    """Notes the leases that a heartbeat names. Leases that are not the provider's, or that have
    committed or ended, change nothing.
    """
    for item in beat.leases:
        lease = context.state.leases.get(item.assignment_hash)
        if lease is None or lease.provider != beat.provider:
            continue
        if not isinstance(lease.phase, leases.Accepted):
            continue
        step_lease(context, lease, leases.ProgressReported(item.stage is WorkStage.FETCHING))
        job = context.state.jobs[lease.job_id]
        if not job.is_started and item.stage not in _PREPARING:
            context.put(job, is_started=True)


def hear_again(context: StepContext, job: Job) -> None:
    """Counts the silence about a job's leases from now on, because this coordinator was away."""
    for digest in open_leases(job):
        lease = context.state.leases[digest]
        if isinstance(lease.phase, leases.Accepted):
            step_lease(context, lease, leases.ProgressReported(is_fetching=False))
