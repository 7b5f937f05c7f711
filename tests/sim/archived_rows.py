"""What the simulated coordinator keeps of jobs that are over, and what it answers to a poll."""

from dataclasses import dataclass

from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Job
from quorate_protocol.messages.views import AccountView, JobEvent, RunView


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """The rows of a job in the archive."""

    job: Job
    leases: tuple[leases.Lease, ...]
    lines: tuple[JobEvent, ...]


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """What a client reads in one poll: the answers of several API calls at one time."""

    events: tuple[JobEvent, ...]
    runs: tuple[RunView, ...]
    account: AccountView
