"""What the shell must do, as data. `key` makes each idempotent: doing it twice is doing it once.

`lane` says what goes one after the other; leases do not delay each other. Messages are unsigned
here; the shell signs them (RFC 6979, so the same message gives the same bytes).
"""

from dataclasses import dataclass

from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Accept, Commit, Decline, Reveal
from quorate_protocol.units import Address, Amount, ExitStatus, Hash32, Nonce, Sequence, UnixSeconds


@dataclass(frozen=True, slots=True)
class OfLease:
    """An effect of one lease: in the lease's lane, once per lease unless a subclass says
    otherwise.
    """

    lease: Hash32

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.lease.hex()}"

    @property
    def lane(self) -> str:
        """The lease's own lane."""
        return f"lease/{self.lease.hex()}"


@dataclass(frozen=True, slots=True)
class OfCase:
    """An effect of one case: in the chain's lane, once per case unless a subclass says
    otherwise.
    """

    case_id: Nonce

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.case_id}"

    @property
    def lane(self) -> str:
        """Transactions of one key go one after the other."""
        return "chain"


@dataclass(frozen=True, slots=True)
class SendAccept(OfLease):
    """To the coordinator, until it took it or `give_up_at`."""

    coordinator: Address
    accept: Accept
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class SendDecline(OfLease):
    """To the coordinator, until it took it or `give_up_at`."""

    coordinator: Address
    decline: Decline
    give_up_at: UnixSeconds

    @property
    def lane(self) -> str:
        """Beside the lease's: neither a coordinator nor an engine that is away keeps the other
        waiting.
        """
        return f"decline/{self.lease.hex()}"


@dataclass(frozen=True, slots=True)
class Fetch(OfLease):
    """Image and inputs into the content store, pinned for this lease, by `give_up_at`."""

    coordinator: Address
    spec: JobSpec
    sources: tuple[str, ...]
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class StartTask(OfLease):
    """Start the container."""

    spec: JobSpec
    host_class: Hash32


@dataclass(frozen=True, slots=True)
class WatchTask(OfLease):
    """Wait for the container's exit, and pass its log lines on."""

    coordinator: Address


@dataclass(frozen=True, slots=True)
class StopTask(OfLease):
    """End the container now."""

    @property
    def lane(self) -> str:
        """Beside the lane of its WatchTask, which only ends by it."""
        return f"stop/{self.lease.hex()}"


@dataclass(frozen=True, slots=True)
class PublishOutput(OfLease):
    """Collect the outputs, seal them under the salt's key, and put the ciphertext into the
    coordinator's staging store.

    A time-out, a memory kill and forbidden outputs give the empty directory.
    """

    coordinator: Address
    exit_status: ExitStatus
    salt: Hash32


@dataclass(frozen=True, slots=True)
class SendCommit(OfLease):
    """To the coordinator. `attempt` tells repeats apart, so that each is sent."""

    coordinator: Address
    commit: Commit
    attempt: int

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.lease.hex()}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class SendReveal(OfLease):
    """To the coordinator; `closed_at` tells the deliveries of one set signed again apart."""

    coordinator: Address
    reveal: Reveal
    closed_at: UnixSeconds

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.lease.hex()}/{self.closed_at}"


@dataclass(frozen=True, slots=True)
class RemoveTask(OfLease):
    """Remove container and mounts, release inputs and image."""


@dataclass(frozen=True, slots=True)
class Forget(OfLease):
    """Unpin what was kept for the lease; nobody can ask for it any more."""


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Sign the offer with this sequence number and send it to every coordinator; one that never
    holds withdraws those before it.
    """

    seq: Sequence
    expires: UnixSeconds

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.seq}"

    @property
    def lane(self) -> str:
        """Name of the queue."""
        return "offer"


@dataclass(frozen=True, slots=True)
class Reexecute(OfCase):
    """Repeat one execution of a case and report its digest."""

    index: int
    spec_hash: Hash32
    host_class: Hash32
    give_up_at: UnixSeconds

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.case_id}/{self.index}"

    @property
    def lane(self) -> str:
        """Name of the queue."""
        return f"case/{self.case_id}"


@dataclass(frozen=True, slots=True)
class SendVote(OfCase):
    """Vote in the court."""

    ballot: Hash32


@dataclass(frozen=True, slots=True)
class SendJuryReveal(OfCase):
    """Open the ballot in the court."""

    digests: tuple[Hash32, ...]
    salt: Hash32


@dataclass(frozen=True, slots=True)
class WithdrawCredit(OfCase):
    """Have the court pay this juror's credit out, once its case is decided."""


@dataclass(frozen=True, slots=True)
class SendClaim:
    """Claim what a final epoch credits."""

    coordinator: Address
    epoch: Sequence
    final: Amount

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.coordinator.hex()}/{self.epoch}"

    @property
    def lane(self) -> str:
        """Name of the queue."""
        return "chain"


LeaseEffect = (
    SendAccept
    | SendDecline
    | Fetch
    | StartTask
    | WatchTask
    | StopTask
    | PublishOutput
    | SendCommit
    | SendReveal
    | RemoveTask
    | Forget
)
CourtEffect = Reexecute | SendVote | SendJuryReveal
Effect = LeaseEffect | CourtEffect | SendOffer | SendClaim | WithdrawCredit
