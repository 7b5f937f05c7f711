"""The provider core's effects: what the daemon around the core must do, as data.

`key` makes each effect idempotent: the daemon may perform it twice. It performs the effects of one
`lane` one after the other, and those of other lanes meanwhile. Messages are unsigned here. The
daemon signs them (by RFC 6979, so the same message gives the same bytes).
"""

from msgspec import Struct

from quorate_node.core.events import Vote
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Accept, Commit, Decline, Order, Reveal
from quorate_protocol.units import Address, ExitStatus, Hash32, Milliseconds, Sequence, UnixSeconds


class OfLease(Struct, frozen=True):
    """An effect performed once per lease, in the lease's own lane."""

    assignment_hash: Hash32

    @property
    def key(self) -> str:
        return f"{type(self).__name__}/{self.assignment_hash.hex()}"

    @property
    def lane(self) -> str:
        return f"lease/{self.assignment_hash.hex()}"


class OfCase(Struct, frozen=True):
    """An effect performed once per court case, in the chain's lane."""

    case_id: Hash32

    @property
    def key(self) -> str:
        return f"{type(self).__name__}/{self.case_id.hex()}"

    @property
    def lane(self) -> str:
        """The daemon sends transactions of one key one after the other."""
        return "chain"


class SendAccept(OfLease, frozen=True, tag=True):
    """Send the Accept until the coordinator takes it, or until `give_up_at`."""

    coordinator: Address
    accept: Accept
    give_up_at: UnixSeconds


class SendDecline(OfLease, frozen=True, tag=True):
    """Send the Decline until the coordinator takes it, or until `give_up_at`."""

    coordinator: Address
    decline: Decline
    give_up_at: UnixSeconds

    @property
    def lane(self) -> str:
        """A lane beside the lease's own: Decline and engine do not wait for each other."""
        return f"decline/{self.assignment_hash.hex()}"


class FetchInputs(OfLease, frozen=True, tag=True):
    """Fetch image and inputs into the content store and pin them, by `give_up_at`."""

    coordinator: Address
    spec: JobSpec
    sources: tuple[str, ...]
    give_up_at: UnixSeconds


class StartTask(OfLease, frozen=True, tag=True):
    """Start the container, with exactly these GPUs."""

    spec: JobSpec
    pool: Hash32
    gpus: tuple[str, ...] = ()  # UUIDs


class WatchTask(OfLease, frozen=True, tag=True):
    """Wait for the container's exit, and send its log lines to the coordinator."""

    coordinator: Address


class StopTask(OfLease, frozen=True, tag=True):
    """End the container now."""

    @property
    def lane(self) -> str:
        """A lane beside that of WatchTask, which ends only when the task stops."""
        return f"stop/{self.assignment_hash.hex()}"


class PublishOutput(OfLease, frozen=True, tag=True):
    """Collect, seal, upload. Time-out, memory kill, forbidden outputs: the empty directory."""

    coordinator: Address
    exit_status: ExitStatus
    salt: Hash32


class SendCommit(OfLease, frozen=True, tag=True):
    """Send the Commit. `attempt` makes each repeat a new effect."""

    coordinator: Address
    commit: Commit
    attempt: int

    @property
    def key(self) -> str:
        return f"{type(self).__name__}/{self.assignment_hash.hex()}/{self.attempt}"


class SendMeter(OfLease, frozen=True, tag=True):
    """Say how long a rental's container has run. A later one takes its place."""

    coordinator: Address
    usage_ms: Milliseconds
    exit_status: ExitStatus | None = None

    @property
    def key(self) -> str:
        last = "" if self.exit_status is None else "/last"
        return f"{type(self).__name__}/{self.assignment_hash.hex()}/{self.usage_ms}{last}"

    @property
    def lane(self) -> str:
        """A lane beside that of WatchTask."""
        return f"meter/{self.assignment_hash.hex()}"


class KeepEvidence(OfLease, frozen=True, tag=True):
    """Keep what was signed about an execution with an escrow of its own, before the Reveal, so that
    its owner can show it on chain.
    """

    coordinator: Address
    order: Order
    index: int
    blind: Hash32


class SendReveal(OfLease, frozen=True, tag=True):
    """Send the Reveal. `closed_at` makes it new when the coordinator signs the same set again."""

    coordinator: Address
    reveal: Reveal
    closed_at: UnixSeconds

    @property
    def key(self) -> str:
        return f"{type(self).__name__}/{self.assignment_hash.hex()}/{self.closed_at}"


class RemoveTask(OfLease, frozen=True, tag=True):
    """Remove container and mounts, and unpin inputs and image."""


class ForgetLease(OfLease, frozen=True, tag=True):
    """Remove what is left of the lease, because no coordinator can ask for it any more."""


class SendOffer(Struct, frozen=True, tag=True):
    """Sign the offer with this sequence number and send it to every coordinator.

    If `expires` is WITHDRAWN, the provider has no offer any more.
    """

    seq: Sequence
    expires: UnixSeconds

    @property
    def key(self) -> str:
        return f"{type(self).__name__}/{self.seq}"

    @property
    def lane(self) -> str:
        return "offer"


class Reexecute(OfCase, frozen=True, tag=True):
    """Repeat the job of a case, and report its result digest."""

    spec_hash: Hash32
    pool: Hash32
    class_id: Hash32
    give_up_at: UnixSeconds
    gpus: tuple[str, ...] = ()  # UUIDs

    @property
    def lane(self) -> str:
        return f"case/{self.case_id.hex()}"


class SendVote(OfCase, frozen=True, tag=True):
    """Send the ballot to the court. `jurors` are all that were drawn for the case."""

    execution: Hash32
    jurors: tuple[Address, ...]
    ballot: Hash32


class SendJuryReveal(OfCase, frozen=True, tag=True):
    """Reveal the ballot's digest and salt to the court. `votes` are all of the case, in order."""

    execution: Hash32
    votes: tuple[Vote, ...]
    digest: Hash32
    salt: Hash32


LeaseEffect = (
    SendAccept
    | SendDecline
    | FetchInputs
    | StartTask
    | WatchTask
    | StopTask
    | PublishOutput
    | SendCommit
    | SendMeter
    | KeepEvidence
    | SendReveal
    | RemoveTask
    | ForgetLease
)
CourtEffect = Reexecute | SendVote | SendJuryReveal
Effect = LeaseEffect | CourtEffect | SendOffer
