"""What the shell must do, as data. `key` makes each idempotent: doing it twice is doing it once.

`lane` says what goes one after the other; leases do not delay each other. Messages are unsigned
here; the shell signs them (RFC 6979, so the same message gives the same bytes).
"""

from msgspec import Struct

from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Accept, Commit, Decline, Reveal
from quorate_protocol.units import Address, Amount, ExitStatus, Hash32, Nonce, Sequence, UnixSeconds


class OfLease(Struct, frozen=True):
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


class OfCase(Struct, frozen=True):
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


class SendAccept(OfLease, frozen=True):
    """To the coordinator, until it took it or `give_up_at`."""

    coordinator: Address
    accept: Accept
    give_up_at: UnixSeconds


class SendDecline(OfLease, frozen=True):
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


class Fetch(OfLease, frozen=True):
    """Image and inputs into the content store, pinned for this lease, by `give_up_at`."""

    coordinator: Address
    spec: JobSpec
    sources: tuple[str, ...]
    give_up_at: UnixSeconds


class StartTask(OfLease, frozen=True):
    """Start the container."""

    spec: JobSpec
    host_class: Hash32


class WatchTask(OfLease, frozen=True):
    """Wait for the container's exit, and pass its log lines on."""

    coordinator: Address


class StopTask(OfLease, frozen=True):
    """End the container now."""

    @property
    def lane(self) -> str:
        """Beside the lane of its WatchTask, which only ends by it."""
        return f"stop/{self.lease.hex()}"


class PublishOutput(OfLease, frozen=True):
    """Collect the outputs, seal them under the salt's key, and put the ciphertext into the
    coordinator's staging store.

    A time-out, a memory kill and forbidden outputs give the empty directory.
    """

    coordinator: Address
    exit_status: ExitStatus
    salt: Hash32


class SendCommit(OfLease, frozen=True):
    """To the coordinator. `attempt` tells repeats apart, so that each is sent."""

    coordinator: Address
    commit: Commit
    attempt: int

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.lease.hex()}/{self.attempt}"


class SendReveal(OfLease, frozen=True):
    """To the coordinator; `closed_at` tells the deliveries of one set signed again apart."""

    coordinator: Address
    reveal: Reveal
    closed_at: UnixSeconds

    @property
    def key(self) -> str:
        """Idempotency key."""
        return f"{type(self).__name__}/{self.lease.hex()}/{self.closed_at}"


class RemoveTask(OfLease, frozen=True):
    """Remove container and mounts, release inputs and image."""


class Forget(OfLease, frozen=True):
    """Unpin what was kept for the lease; nobody can ask for it any more."""


class SendOffer(Struct, frozen=True):
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


class Reexecute(OfCase, frozen=True):
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


class SendVote(OfCase, frozen=True):
    """Vote in the court."""

    ballot: Hash32


class SendJuryReveal(OfCase, frozen=True):
    """Open the ballot in the court."""

    digests: tuple[Hash32, ...]
    salt: Hash32


class WithdrawCredit(OfCase, frozen=True):
    """Have the court pay this juror's credit out, once its case is decided."""


class SendClaim(Struct, frozen=True):
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
