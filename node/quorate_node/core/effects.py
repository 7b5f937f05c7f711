"""What the shell must do, as data. `key` makes each idempotent: doing it twice is doing it once.

`lane` says what must not wait for each other: messages to one coordinator keep their order, leases do not delay each other.
Messages are unsigned here; the shell signs them (RFC 6979, so the same message gives the same bytes).
"""

from dataclasses import dataclass

from quorate_protocol.job import JobSpec
from quorate_protocol.messages import Accept, Commit, Decline, Reveal
from quorate_protocol.units import (
    Address,
    Amount,
    ExitStatus,
    Hash32,
    Nonce,
    Sequence,
    UnixSeconds,
)


@dataclass(frozen=True, slots=True)
class SendAccept:
    """To the coordinator, until it took it or `give_up_at`."""

    lease: Hash32
    coordinator: Address
    accept: Accept
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class SendDecline:
    """To the coordinator, until it took it or `give_up_at`."""

    lease: Hash32
    coordinator: Address
    decline: Decline
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Fetch:
    """Image and inputs into the content store, pinned for this lease, by `give_up_at`."""

    lease: Hash32
    coordinator: Address
    spec: JobSpec
    sources: tuple[str, ...]
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start the container."""

    lease: Hash32
    spec: JobSpec
    host_class: Hash32


@dataclass(frozen=True, slots=True)
class WatchTask:
    """Wait for the container's exit, and pass its log lines on."""

    lease: Hash32
    coordinator: Address


@dataclass(frozen=True, slots=True)
class StopTask:
    """End the container now."""

    lease: Hash32


@dataclass(frozen=True, slots=True)
class Collect:
    """Take the outputs into the content store; the empty directory for a time-out, a memory kill and forbidden outputs."""

    lease: Hash32
    coordinator: Address
    exit_status: ExitStatus


@dataclass(frozen=True, slots=True)
class Seal:
    """Encrypt the output under the salt's key and keep the ciphertext in the content store."""

    lease: Hash32
    output_digest: Hash32
    salt: Hash32


@dataclass(frozen=True, slots=True)
class Upload:
    """Put the ciphertext into the coordinator's staging store, by `give_up_at`."""

    lease: Hash32
    coordinator: Address
    ciphertext: Hash32
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class SendCommit:
    """To the coordinator. `attempt` tells repeats apart, so that each is sent."""

    lease: Hash32
    coordinator: Address
    commit: Commit
    attempt: int


@dataclass(frozen=True, slots=True)
class SendReveal:
    """To the coordinator; `closed_at` tells the deliveries of one set signed again apart."""

    lease: Hash32
    coordinator: Address
    reveal: Reveal
    closed_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class RemoveTask:
    """Remove container and mounts, release inputs and image."""

    lease: Hash32


@dataclass(frozen=True, slots=True)
class Forget:
    """Unpin what was kept for the lease; nobody can ask for it any more."""

    lease: Hash32


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Sign the offer with this sequence number and send it to every coordinator."""

    seq: Sequence
    expires: UnixSeconds


@dataclass(frozen=True, slots=True)
class Reexecute:
    """Repeat one execution of a case and report its digest."""

    case_id: Nonce
    index: int
    spec_hash: Hash32
    host_class: Hash32
    give_up_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class SendVote:
    """Vote in the court."""

    case_id: Nonce
    ballot: Hash32


@dataclass(frozen=True, slots=True)
class SendJuryReveal:
    """Open the ballot in the court."""

    case_id: Nonce
    digests: tuple[Hash32, ...]
    salt: Hash32


@dataclass(frozen=True, slots=True)
class SendClaim:
    """Claim what a final epoch credits."""

    coordinator: Address
    epoch: Sequence
    final: Amount


LeaseEffect = (
    SendAccept
    | SendDecline
    | Fetch
    | StartTask
    | WatchTask
    | StopTask
    | Collect
    | Seal
    | Upload
    | SendCommit
    | SendReveal
    | RemoveTask
    | Forget
)
CourtEffect = Reexecute | SendVote | SendJuryReveal
Effect = LeaseEffect | CourtEffect | SendOffer | SendClaim


def key(effect: Effect) -> str:
    """Idempotency key."""
    name = type(effect).__name__
    match effect:
        case SendOffer():
            return f"{name}/{effect.seq}"
        case SendClaim():
            return f"{name}/{effect.coordinator.hex()}/{effect.epoch}"
        case Reexecute():
            return f"{name}/{effect.case_id}/{effect.index}"
        case SendVote() | SendJuryReveal():
            return f"{name}/{effect.case_id}"
        case SendCommit():
            return f"{name}/{effect.lease.hex()}/{effect.attempt}"
        case SendReveal():
            return f"{name}/{effect.lease.hex()}/{effect.closed_at}"
        case _:
            return f"{name}/{effect.lease.hex()}"


def lane(effect: Effect) -> str:
    """Effects of one lane are done one after the other."""
    match effect:
        case SendOffer():
            return "offer"
        case SendClaim() | SendVote() | SendJuryReveal():
            return "chain"
        case Reexecute():
            return f"case/{effect.case_id}"
        case StopTask():
            return f"stop/{effect.lease.hex()}"  # beside the lane of its WatchTask, which only ends by it
        case _:
            return f"lease/{effect.lease.hex()}"
