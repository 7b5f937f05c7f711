"""What happened, as the provider's machine takes it: messages of coordinators and of the chain,
and reports of the own shell.

Signed messages carry the key that signed (`signer`), recovered by the shell; whether that key
may say so is decided in the step.
"""

from msgspec import Struct

from quorate_node.core.terms import Terms
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import (
    Assignment,
    CommitReceipt,
    CommitSet,
    Statement,
    Stop,
    Verdict,
)
from quorate_protocol.units import (
    Address,
    Amount,
    ExitStatus,
    Hash32,
    Milliseconds,
    Nonce,
    Sequence,
    UnixSeconds,
)

STORE_ROOM_UNKNOWN = 1 << 62  # bytes

# -------------------------------------------------------------------------------- from coordinators


class AssignmentReceived(Struct, frozen=True):
    """Run this. `is_rotating`: the operator key is being changed, so a new one could not be
    answered under one key to the end.

    `store_room`: bytes that the content store can take in and keep.
    """

    assignment: Envelope[Assignment]
    spec: JobSpec
    sources: tuple[str, ...]
    signer: Address
    is_rotating: bool = False
    store_room: int = STORE_ROOM_UNKNOWN


class CommitReceiptReceived(Struct, frozen=True):
    """Commit and ciphertext are stored."""

    receipt: Envelope[CommitReceipt]
    signer: Address


class CommitSetReceived(Struct, frozen=True):
    """Its batch is closed."""

    lease: Hash32
    commit_set: Envelope[CommitSet]
    signer: Address


class VerdictReceived(Struct, frozen=True):
    """Its job has ended."""

    lease: Hash32
    verdict: Envelope[Verdict]
    signer: Address


class StopReceived(Struct, frozen=True):
    """The client ended it; the coordinator vouches for the session by passing it on."""

    lease: Hash32
    stop: Envelope[Stop]
    coordinator: Address


class StatementReceived(Struct, frozen=True):
    """A coordinator's cumulative debt."""

    coordinator: Address
    statement: Envelope[Statement]
    signer: Address


# ------------------------------------------------------------------------------- from the own shell


class AcceptDelivered(Struct, frozen=True):
    """The coordinator took the Accept."""

    lease: Hash32


class Fetched(Struct, frozen=True):
    """Image and inputs are verified and on this machine."""

    lease: Hash32


class Started(Struct, frozen=True):
    """The container runs, or has run already."""

    lease: Hash32


class Failed(Struct, frozen=True):
    """This machine or its sources failed: never a result. Also what the coordinator refused for
    good (`why` is its code).
    """

    lease: Hash32
    why: str


class Exited(Struct, frozen=True):
    """The task ended by itself, by its limits or by a stop; PROTOCOL §3 status."""

    lease: Hash32
    status: ExitStatus
    usage_ms: Milliseconds


class OutputPublished(Struct, frozen=True):
    """The staging store holds the sealed output. `ciphertext` is the digest of its CID."""

    lease: Hash32
    output_digest: Hash32
    ciphertext: Hash32


class Tick(Struct, frozen=True):
    """Time has come to the input's `at`."""


class OfferDue(Struct, frozen=True):
    """The offer is to be signed anew with the next sequence number: withdrawn while draining."""


class DrainRequested(Struct, frozen=True):
    """The owner wants no new work (`is_on`), or wants it again."""

    is_on: bool


class Configured(Struct, frozen=True):
    """The owner's terms from now on. Journaled, so that what was decided under other terms
    replays as it was.
    """

    terms: Terms


# ----------------------------------------------------------------------------------- from the chain


class CaseExecution(Struct, frozen=True):
    """One execution named in a case: what a juror repeats. `spec_hash` is the CID digest of the
    job spec.
    """

    spec_hash: Hash32
    host_class: Hash32


class CaseOpened(Struct, frozen=True):
    """A case was opened; what its jury will have to repeat. Only host classes offered here are
    of interest.
    """

    case_id: Nonce
    accused: Address
    executions: tuple[CaseExecution, ...]


class JuryDrawn(Struct, frozen=True):
    """A jury was drawn, or its empty seats were drawn again."""

    case_id: Nonce
    jurors: tuple[Address, ...]
    vote_by: UnixSeconds


class Reexecuted(Struct, frozen=True):
    """One execution of a case was repeated; the result digest, zero when inputs or image cannot
    be had.
    """

    case_id: Nonce
    index: int
    digest: Hash32


class VoteConfirmed(Struct, frozen=True):
    """The vote is on chain."""

    case_id: Nonce


class VotingEnded(Struct, frozen=True):
    """Every juror voted, or the window has passed: ballots may be opened until `reveal_by`."""

    case_id: Nonce
    reveal_by: UnixSeconds


class CaseDecided(Struct, frozen=True):
    """The court has decided, or the case is void."""

    case_id: Nonce


class EpochFinal(Struct, frozen=True):
    """The newest final epoch of a coordinator credits this provider with `final` cumulative."""

    coordinator: Address
    epoch: Sequence
    final: Amount


class ClaimConfirmed(Struct, frozen=True):
    """The chain has paid up to `amount` cumulative."""

    coordinator: Address
    amount: Amount


LeaseEvent = (
    AcceptDelivered
    | Fetched
    | Started
    | Failed
    | Exited
    | OutputPublished
    | CommitSetReceived
    | VerdictReceived
    | StopReceived
)
ExecutionEvent = LeaseEvent | CommitReceiptReceived | Tick
OwnEvent = OfferDue | DrainRequested | Configured | EpochFinal | ClaimConfirmed
JuryEvent = Reexecuted | VoteConfirmed | VotingEnded | CaseDecided
Event = (
    AssignmentReceived
    | CommitReceiptReceived
    | CommitSetReceived
    | VerdictReceived
    | StopReceived
    | StatementReceived
    | AcceptDelivered
    | Fetched
    | Started
    | Failed
    | Exited
    | OutputPublished
    | Tick
    | OfferDue
    | DrainRequested
    | Configured
    | CaseOpened
    | JuryDrawn
    | Reexecuted
    | VoteConfirmed
    | VotingEnded
    | CaseDecided
    | EpochFinal
    | ClaimConfirmed
)
