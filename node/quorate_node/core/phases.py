"""The phases of one execution at its provider.

Accepted → Fetching → Starting → Running → Publishing → Committed → Receipted → Revealed → Done, or
one of the ends Declined and Lapsed. A rental goes from Starting to Live, and then to Over. Each
phase is a class of its own, so no code can build an impossible combination. The step that takes an
Assignment also accepts or declines it, so no phase waits for that decision.
"""

from msgspec import Struct

from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.frames import EscrowedOrder
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import (
    Accept,
    Assignment,
    Commit,
    CommitReceipt,
    CommitSet,
    Decline,
    Reveal,
    Verdict,
)
from quorate_protocol.rules.receipts.repeat_batch import is_repeat
from quorate_protocol.units import Address, ExitStatus, Hash32, Milliseconds, Outcome, UnixSeconds
from quorate_protocol.values import replace

FAULTED = (
    "its result differs from the majority, or was not revealed in time: the provider loses the pay "
    "and gets a fault"
)
LEFT_OUT = "its result was not revealed in time, so other providers ran the job"
MISDATED = (
    "its CommitReceipt has a time that does not pay the whole run, or that lies ahead of this "
    "machine's clock"
)
UNCONFIRMED = "its result differs from the majority, and nobody confirmed that, so it is no fault"


class Declined(Struct, frozen=True, tag=True):
    """The provider answered with a signed Decline."""

    decline: Decline
    text: str
    forget_at: UnixSeconds = UnixSeconds(0)


class Accepted(Struct, frozen=True, tag=True):
    """The Accept is on its way. Nothing runs before the coordinator has taken it."""


class Fetching(Struct, frozen=True, tag=True):
    """The daemon fetches and verifies image and inputs."""


class Starting(Struct, frozen=True, tag=True):
    """The container starts, after a restart again. `is_stopping`: stop it as soon as it runs."""

    is_stopping: bool = False


class Running(Struct, frozen=True, tag=True):
    """The container runs.

    `is_stopping`: the client stopped it, and the exit that follows is the result.
    """

    started_at: UnixSeconds
    is_stopping: bool = False


class Publishing(Struct, frozen=True, tag=True):
    """The daemon collects, seals and uploads the outputs. The salt is journaled on entering the
    phase, so that a repeat gives the same ciphertext.
    """

    exit_status: ExitStatus
    usage_ms: Milliseconds
    salt: Hash32


class Committed(Struct, frozen=True, tag=True):
    """The one Commit is signed, and sent again at `resend_at` until the receipt comes."""

    commit: Commit
    reveal: Reveal
    resend_at: UnixSeconds
    attempts: int = 1
    is_misdated: bool = False  # the receipt's time keeps the result closed (PROTOCOL 4.18)


class Receipted(Struct, frozen=True, tag=True):
    """The coordinator has signed a receipt of the Commit, so it owes this execution its pay."""

    commit: Commit
    reveal: Reveal
    receipt: Envelope[CommitReceipt]


class Revealed(Struct, frozen=True, tag=True):
    """Revealed, never again for other members. `escrowed`: the order's own escrow."""

    commit: Commit
    reveal: Reveal
    commit_set: Envelope[CommitSet]
    receipt: Envelope[CommitReceipt] | None = None
    escrowed: EscrowedOrder | None = None


class Done(Struct, frozen=True, tag=True):
    """The job has a verdict. Kept for ten minutes; hash and ciphertext until `forget_at`."""

    commit: Commit
    verdict: Envelope[Verdict]
    forget_at: UnixSeconds
    commit_set: Envelope[CommitSet] | None = None


class Lapsed(Struct, frozen=True, tag=True):
    """Ended without pay. A signed Commit is kept, so that no other is signed. `decline` tells a
    waiting coordinator that none will come.
    """

    why: str
    commit: Commit | None
    forget_at: UnixSeconds
    decline: Decline | None = None


class Live(Struct, frozen=True, tag=True):
    """The container of a rental runs. Run times since its start: in the newest meter, in the newest
    that the coordinator took, and in the newest that its vouchers cover.
    """

    started_at: UnixSeconds
    metered_ms: Milliseconds = Milliseconds(0)
    answered_ms: Milliseconds = Milliseconds(0)
    covered_ms: Milliseconds = Milliseconds(0)
    is_stopping: bool = False
    gives_way_at: UnixSeconds = UnixSeconds(0)  # 0 = its owner does not need the machine
    gives_way_to: str = ""


class Over(Struct, frozen=True, tag=True):
    """A rental that ran has ended: with `exit_status`, by a Decline, or by its coordinator."""

    why: str
    usage_ms: Milliseconds
    forget_at: UnixSeconds
    exit_status: ExitStatus | None = None
    decline: Decline | None = None


Phase = (
    Declined
    | Accepted
    | Fetching
    | Starting
    | Running
    | Publishing
    | Committed
    | Receipted
    | Revealed
    | Done
    | Lapsed
    | Live
    | Over
)

PREPARING = (Accepted, Fetching, Starting)
ENDED = (Declined, Done, Lapsed, Over)


class Execution(Struct, frozen=True):
    """One execution, named by `assignment_hash`. `accept` is None when it was declined."""

    assignment: Envelope[Assignment]
    assignment_hash: Hash32
    spec: JobSpec
    sources: tuple[str, ...]
    class_id: Hash32
    accept: Accept | None
    commit_by: UnixSeconds
    phase: Phase
    gpus: tuple[str, ...] = ()  # UUIDs; no other lease has them until the Commit
    fetched_at: UnixSeconds = UnixSeconds(0)  # when image and inputs were here; 0 before
    has_slot: bool = True  # False: it waits for the run slot of a spot rental (PROTOCOL 12.42)

    @property
    def coordinator(self) -> Address:
        return self.assignment.message.coordinator

    @property
    def pool(self) -> Hash32:
        return self.assignment.message.pool

    @property
    def lease_id(self) -> str:
        """The name of its container: `assignment_hash` in hexadecimal, because executors take
        text.
        """
        return self.assignment_hash.hex()

    @property
    def is_rental(self) -> bool:
        return self.spec.kind.is_rental

    @property
    def occupies_slot(self) -> bool:
        """Whether the execution takes a run slot: it does until its Commit (I2)."""
        return self.has_slot and self.is_under_way

    @property
    def is_under_way(self) -> bool:
        return isinstance(self.phase, (*PREPARING, Running, Publishing, Live))

    @property
    def is_ended(self) -> bool:
        return isinstance(self.phase, ENDED)

    def commit(self) -> Commit | None:
        """Returns the signed Commit, or None if this provider has signed none."""
        match self.phase:
            case Committed() | Receipted() | Revealed() | Done() | Lapsed():
                return self.phase.commit
            case _:
                return None

    def closed(self) -> str:
        """Returns why the provider does not reveal its result; "" if nothing is wrong."""
        is_misdated = isinstance(self.phase, Committed) and self.phase.is_misdated
        return MISDATED if is_misdated else ""

    def unpaid(self) -> str:
        """Why it ended without pay, in one line; "" if it was paid, runs, or that is unknown."""
        match self.phase:
            case Lapsed(why):
                # The text may come from a coordinator.
                return "".join(letter if letter.isprintable() else "?" for letter in why)
            case Done(_, verdict) if self.assignment_hash in verdict.message.faulted:
                return FAULTED
            case Done(_, verdict, _, commit_set) if (
                verdict.message.outcome is Outcome.ACCEPTED
                and self.assignment_hash not in verdict.message.group
            ):
                if commit_set is None:
                    return LEFT_OUT
                return "" if is_repeat(commit_set.message) else UNCONFIRMED
            case _:
                return ""

    def to(self, phase: Phase) -> "Execution":
        return replace(self, phase=phase)
