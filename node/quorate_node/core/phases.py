"""One execution at its provider, phase by phase. One dataclass per phase, so that impossible
combinations cannot be built.

Accepted → Fetching → Starting → Running → Publishing → Committed → Receipted → Revealed → Done,
or one of the ends Declined and Lapsed. There is no phase for an
assignment that is still being thought about: the bid is pure and the answer is decided in the
step that takes the assignment.
"""

from msgspec import Struct

from quorate_protocol.messages.envelope import Envelope
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
from quorate_protocol.units import Address, ExitStatus, Hash32, Milliseconds, Outcome, UnixSeconds
from quorate_protocol.values import replace

FAULTED = (
    "its result was outvoted, or was not revealed in time: its pay is forfeited, and it "
    "counts as a fault"
)
LEFT_OUT = "it was not revealed in time, so that others were asked"


class Declined(Struct, frozen=True):
    """Answered with a signed Decline."""

    decline: Decline
    text: str
    forget_at: UnixSeconds = UnixSeconds(0)


class Accepted(Struct, frozen=True):
    """The Accept is being delivered; nothing runs before the coordinator took it."""


class Fetching(Struct, frozen=True):
    """Image and inputs are being fetched and verified."""


class Starting(Struct, frozen=True):
    """The container is being started; a restart finds out whether it was. `is_stopping`: to be
    ended as soon as it runs.
    """

    is_stopping: bool = False


class Running(Struct, frozen=True):
    """The container runs. `is_stopping`: the client's Stop was passed on; the exit that follows
    is the result.
    """

    started_at: UnixSeconds
    is_stopping: bool = False


class Publishing(Struct, frozen=True):
    """The task has exited. The daemon collects its outputs, seals them and uploads the
    ciphertext.

    The salt is chosen on entering this phase, so it is journaled before anything uses it. The same
    outputs and salt give the same ciphertext, so the whole may be repeated after a crash.
    """

    exit_status: ExitStatus
    usage_ms: Milliseconds
    salt: Hash32


class Committed(Struct, frozen=True):
    """The one Commit of this assignment; sent again at `resend_at` until a CommitReceipt
    arrives.
    """

    commit: Commit
    reveal: Reveal
    resend_at: UnixSeconds
    attempts: int = 1


class Receipted(Struct, frozen=True):
    """The coordinator owes this execution from here on."""

    commit: Commit
    reveal: Reveal
    receipt: Envelope[CommitReceipt]


class Revealed(Struct, frozen=True):
    """Opened to the coordinator for this CommitSet, and for none with other members."""

    commit: Commit
    reveal: Reveal
    commit_set: Envelope[CommitSet]


class Done(Struct, frozen=True):
    """The job ended with a verdict; the ciphertext is kept until `forget_at`, the execution
    itself ten minutes (see `provider.settled`).
    """

    commit: Commit
    verdict: Envelope[Verdict]
    forget_at: UnixSeconds


class Lapsed(Struct, frozen=True):
    """Ended without pay. A commit that was signed is kept, so that no other one can ever be
    signed for this assignment.

    `decline`: what tells the coordinator, where it would wait for a Commit that never comes.
    """

    why: str
    commit: Commit | None
    forget_at: UnixSeconds
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
)

PREPARING = (Accepted, Fetching, Starting)
ENDED = (Declined, Done, Lapsed)


class Execution(Struct, frozen=True):
    """One execution. `hash` is the digest of the whole Assignment; `accept` is None when it was
    declined.
    """

    assignment: Envelope[Assignment]
    hash: Hash32
    spec: JobSpec
    sources: tuple[str, ...]
    class_id: Hash32
    accept: Accept | None
    commit_by: UnixSeconds
    phase: Phase

    @property
    def coordinator(self) -> Address:
        """Whose assignment it is."""
        return self.assignment.message.coordinator

    @property
    def host_class(self) -> Hash32:
        """Whose run slot it takes."""
        return self.assignment.message.host_class

    @property
    def lease_id(self) -> str:
        """Name of its container."""
        return self.hash.hex()

    @property
    def occupies_slot(self) -> bool:
        """Takes a run slot until its commit (I2)."""
        return isinstance(self.phase, (*PREPARING, Running, Publishing))

    @property
    def is_ended(self) -> bool:
        """Only forgetting is left."""
        return isinstance(self.phase, ENDED)

    def commit(self) -> Commit | None:
        """The Commit that was signed, in whatever phase."""
        match self.phase:
            case Committed() | Receipted() | Revealed() | Done() | Lapsed():
                return self.phase.commit
            case _:
                return None

    def unpaid(self) -> str:
        """Why it has ended here without pay, on one line; "" when it has not, or that is not
        known here.
        """
        match self.phase:
            case Lapsed(why):
                return "".join(
                    letter if letter.isprintable() else "?" for letter in why
                )  # it may be a coordinator's words
            case Done(_, verdict) if self.hash in verdict.message.faulted:
                return FAULTED
            case Done(_, verdict) if (
                verdict.message.outcome is Outcome.ACCEPTED
                and self.hash not in verdict.message.group
            ):
                return LEFT_OUT
            case _:
                return ""

    def to(self, phase: Phase) -> "Execution":
        """The same execution in another phase."""
        return replace(self, phase=phase)
