"""A finished run as the archive keeps it: all that accounts may later ask for."""

from msgspec import Struct

from quorate_coordinator.core import views
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.state import State
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Ack
from quorate_protocol.messages.views import JobEvent, RunView
from quorate_protocol.units import Address, Amount, Hash32


class ArchivedLease(Struct, frozen=True):
    """One assignment. `output` is the digest of the ciphertext to which its provider committed."""

    assignment_hash: Hash32
    provider: Address
    output: Hash32 | None


class ArchivedRun(Struct, frozen=True):
    """A finished run. `run` is the view for its client. `session_key` acts for that client.

    `spec_hash` and `terms_hash` are the digests of its job spec and of its order's terms, which are
    kept only if the run `is_paid_for`.
    """

    run: RunView
    ack: Envelope[Ack]
    pool: Hash32  # of its primary
    session_key: Address
    leases: tuple[ArchivedLease, ...]
    lines: tuple[JobEvent, ...]
    fee: Amount  # the coordinator's part of the charge
    spec_hash: Hash32
    terms_hash: Hash32
    is_public: bool
    is_paid_for: bool

    @property
    def last_line(self) -> int:
        return self.lines[-1].seq if self.lines else 0

    def view(self, is_client: bool) -> RunView:
        return self.run if is_client else views.for_strangers(self.run)


def archived(state: State, job: Job) -> ArchivedRun:
    kept = tuple(
        ArchivedLease(lease.assignment_hash, lease.provider, committed_output(lease))
        for lease in (state.leases[digest] for digest in job.leases)
    )
    session_key = job.submission.session.message.session_key
    return ArchivedRun(
        run=views.run_view(state, job, True),
        ack=job.ack,
        pool=job.pool.id(),
        session_key=session_key,
        leases=kept,
        lines=state.events.get(job.id) or (),
        fee=job.split.fee,
        spec_hash=job.order.spec_hash,
        terms_hash=job.order.terms_hash,
        is_public=job.submission.spec.public,
        is_paid_for=job.is_paid_for,
    )


def committed_output(lease: Lease) -> Hash32 | None:
    phase = lease.phase
    if isinstance(phase, leases.WithCommit):
        return phase.commit.message.encrypted_output
    return None
