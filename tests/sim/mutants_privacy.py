"""Broken rules about who may read a run (PROTOCOL §4, Who may read a run)."""

from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.storage import run_access
from quorate_coordinator.storage.run_access import RunAccess, Share
from quorate_protocol.units import Address
from sim.mutants import Mutant, Patch, only

INTRUDED = only(lambda plan: plan.has_intruder)


def _anybody_reads(patch: Patch) -> None:
    patch.setattr(RunAccess, "_share_of", lambda access, job, account: Share.EVIDENCE)


def _executors_read_all(patch: Patch) -> None:
    share = RunAccess._share_of
    patch.setattr(
        RunAccess,
        "_share_of",
        lambda access, job, account: Share.ALL if share(access, job, account) else None,
    )


def _executors_read_early(patch: Patch) -> None:
    share = RunAccess._share_of

    def early(access: RunAccess, job: Job, account: Address | None) -> Share | None:
        found = share(access, job, account)
        has_executed = account is not None and access._has_executed(job, account)
        return found or (Share.EVIDENCE if has_executed else None)

    patch.setattr(RunAccess, "_share_of", early)


def _published_at_once(patch: Patch) -> None:
    patch.setattr(run_access, "is_published", lambda job: job.submission.spec.public)


MUTANTS = (
    Mutant("a stranger reads a private run", "4.63", _anybody_reads, INTRUDED),
    Mutant("an executor reads an output", "4.61", _executors_read_all, INTRUDED),
    Mutant("an executor reads a run before its end", "4.61", _executors_read_early, INTRUDED),
    Mutant("a public run is read before its end", "4.60", _published_at_once, INTRUDED),
)
