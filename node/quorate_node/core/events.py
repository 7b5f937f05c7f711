"""The provider core's events: what happened, as data.

Events come from coordinators (`...Received`), from the chain (`Chain...`) and from the daemon
itself. The daemon recovers the key that signed a message (`signer`). The core decides whether that
key may send it.
"""

from typing import Protocol

from msgspec import Struct

from quorate_node.core.terms import Terms
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.frames import EscrowedOrder
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import (
    Assignment,
    CommitReceipt,
    CommitSet,
    Stop,
    Verdict,
    Voucher,
)
from quorate_protocol.units import (
    Address,
    Amount,
    ExitStatus,
    Hash32,
    Milliseconds,
    Seconds,
    Sequence,
    UnixSeconds,
)

STORE_ROOM_UNKNOWN = 1 << 62  # bytes

# -------------------------------------------------------------------------------- from coordinators


class AssignmentReceived(Struct, frozen=True, tag=True):
    """A coordinator assigns a job. `is_rotating`: the operator key is being changed. `store_room`:
    bytes. `cuda_requirement`: of the image, if it was read before.
    """

    assignment: Envelope[Assignment]
    spec: JobSpec
    sources: tuple[str, ...]
    signer: Address
    is_rotating: bool = False
    store_room: int = STORE_ROOM_UNKNOWN
    cuda_requirement: str = ""


class CommitReceiptReceived(Struct, frozen=True, tag=True):
    """The coordinator has stored the Commit and its ciphertext."""

    receipt: Envelope[CommitReceipt]
    signer: Address


class CommitSetReceived(Struct, frozen=True, tag=True):
    """The coordinator signed the list of the batch's Commits. `escrowed`: what it says of an order
    with an escrow of its own.
    """

    assignment_hash: Hash32
    commit_set: Envelope[CommitSet]
    signer: Address
    escrowed: EscrowedOrder | None = None


class VerdictReceived(Struct, frozen=True, tag=True):
    """The coordinator signed the verdict on the job of this lease."""

    assignment_hash: Hash32
    verdict: Envelope[Verdict]
    signer: Address


class StopReceived(Struct, frozen=True, tag=True):
    """The client stopped the job; the coordinator confirms that its session signed that."""

    assignment_hash: Hash32
    stop: Envelope[Stop]
    coordinator: Address


class VoucherReceived(Struct, frozen=True, tag=True):
    """A coordinator's cumulative debt to this provider."""

    coordinator: Address
    voucher: Envelope[Voucher]
    signer: Address


# ------------------------------------------------------------------------- from the daemon itself


class AcceptDelivered(Struct, frozen=True, tag=True):
    """The coordinator took the Accept."""

    assignment_hash: Hash32


class InputsFetched(Struct, frozen=True, tag=True):
    """Image and inputs are verified and on this machine. `rate`: bytes a second that came in
    meanwhile; 0 if they were too few to tell.
    """

    assignment_hash: Hash32
    rate: int = 0


class TaskStarted(Struct, frozen=True, tag=True):
    """The container runs, or has already run."""

    assignment_hash: Hash32


class TaskFailed(Struct, frozen=True, tag=True):
    """The task has no result (machine, source, coordinator). `is_impossible`: on every machine."""

    assignment_hash: Hash32
    why: str
    is_impossible: bool = False


class TaskExited(Struct, frozen=True, tag=True):
    """`status` is the exit status of PROTOCOL §3; `usage_ms` is the run time."""

    assignment_hash: Hash32
    status: ExitStatus
    usage_ms: Milliseconds


class MeterAnswered(Struct, frozen=True, tag=True):
    """The coordinator took a meter of a rental, or ends the rental by its `refusal`."""

    assignment_hash: Hash32
    usage_ms: Milliseconds
    refusal: str = ""


class OutputPublished(Struct, frozen=True, tag=True):
    """The staging store holds the sealed output. `ciphertext` is the digest of its CID."""

    assignment_hash: Hash32
    output_digest: Hash32
    ciphertext: Hash32


class ReceiptChecked(Struct, frozen=True, tag=True):
    """The receipt of Verdict `seq` holds and pays so much, without the audit fund's part."""

    assignment_hash: Hash32
    seq: Sequence
    pay: Amount


class Tick(Struct, frozen=True, tag=True):
    """A moment of time: the core does what is due at the input's `at`."""


class OfferDue(Struct, frozen=True, tag=True):
    """The offer must be signed again with the next sequence number, or withdrawn while draining."""


class GpusRead(Struct, frozen=True, tag=True):
    """The driver names all GPUs that it has. The core gives up leases of those that are gone.
    Those that are kept back get no new lease, and spot rentals give way to their owner's use.
    """

    uuids: tuple[str, ...]  # of GPUs and of their partitions
    kept_back: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()  # of those kept back: by their owner


class StoreRead(Struct, frozen=True, tag=True):
    """How many more bytes the content store can keep now."""

    room: int


class DrainRequested(Struct, frozen=True, tag=True):
    """The owner wants no new work, or wants work again."""

    is_on: bool


class ScheduleRead(Struct, frozen=True, tag=True):
    """Whether the owner's schedule lets new work in now."""

    is_open: bool


class EvictRequested(Struct, frozen=True, tag=True):
    """The owner ends a rental, whatever its terms."""

    assignment_hash: Hash32
    why: str


class Configured(Struct, frozen=True, tag=True):
    """The owner's terms from now on.

    The journal keeps them, so that a replay repeats earlier decisions under earlier terms.
    """

    terms: Terms


# ----------------------------------------------------------------------------------- from the chain


class TabSeen(Struct, frozen=True, tag=True):
    """The tab of a coordinator for this provider, as final blocks show it."""

    coordinator: Address
    locked: Amount
    paid: Amount
    closes_at: UnixSeconds


class OrderFunded(Struct, frozen=True, tag=True):
    """Final blocks show the escrow of this lease's order, so the coordinator does not owe its
    pay.
    """

    assignment_hash: Hash32


class ChainCaseOpened(Struct, frozen=True, tag=True):
    """A jury repeats one execution, named by its Assignment's digest. `case_id` is the hash of its
    Filing, `pay` that of one juror.
    """

    execution: Hash32
    case_id: Hash32
    accused: Address
    spec_hash: Hash32
    pool: Hash32
    class_id: Hash32  # determinism class of the results that differ
    max_duration: Seconds = Seconds(0)
    pay: Amount = Amount(0)


class ChainJuryDrawn(Struct, frozen=True, tag=True):
    """`jurors` has all of the case so far; `vote_by` is 0 while the draw goes on."""

    execution: Hash32
    jurors: tuple[Address, ...]
    vote_by: UnixSeconds


class Vote(Struct, frozen=True):
    """A juror's ballot."""

    juror: Address
    ballot: Hash32


class ChainVoted(Struct, frozen=True, tag=True):
    """A juror's ballot is on chain. Who opens a ballot names all ballots, in their order."""

    execution: Hash32
    vote: Vote


class Reexecuted(Struct, frozen=True, tag=True):
    """This juror repeated the job of a case.

    `digest` is the result digest; zero when the inputs or the image are not available.
    """

    case_id: Hash32
    digest: Hash32


class VoteConfirmed(Struct, frozen=True, tag=True):
    """This juror's vote is on chain."""

    case_id: Hash32


class ChainVotingEnded(Struct, frozen=True, tag=True):
    """Every juror voted, or the voting window passed. Ballots may be opened until `reveal_by`."""

    execution: Hash32
    reveal_by: UnixSeconds


class ChainCaseDecided(Struct, frozen=True, tag=True):
    """The court decided the case, or it ended without a decision."""

    execution: Hash32


LeaseEvent = (
    AcceptDelivered
    | InputsFetched
    | TaskStarted
    | TaskFailed
    | TaskExited
    | MeterAnswered
    | OutputPublished
    | CommitSetReceived
    | VerdictReceived
    | StopReceived
)
ExecutionEvent = LeaseEvent | CommitReceiptReceived | Tick
OwnEvent = OfferDue | StoreRead | DrainRequested | Configured
MoneyEvent = VoucherReceived | TabSeen | ReceiptChecked | OrderFunded
JuryEvent = Reexecuted | VoteConfirmed | ChainVotingEnded | ChainCaseDecided
Event = (
    AssignmentReceived
    | ExecutionEvent
    | OwnEvent
    | MoneyEvent
    | JuryEvent
    | GpusRead
    | ScheduleRead
    | EvictRequested
    | ChainCaseOpened
    | ChainJuryDrawn
    | ChainVoted
)


class EventSink(Protocol):
    """Where the daemon's parts report events: the actor."""

    async def submit(self, event: Event) -> object:
        """Returns when the journal has it. Raises Refused as the core does."""
