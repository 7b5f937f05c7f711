"""Finds how much a provider is trusted in the class of a job."""

from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.classes import job_class
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import Address, Hash32


def trust_of(context: StepContext, job: Job, owner: Address) -> Trust:
    trusts = context.state.trust.get(owner)
    return ((trusts.by_class.get(trust_class_of(job)) if trusts else None) or Trust()).at(
        context.at
    )


def trust_class_of(job: Job) -> Hash32:
    """One class for all executions, as the Ack has the root of one."""
    spec = job.submission.spec
    return job_class(spec.kind, spec.compare.comparator, job.pool.id())
