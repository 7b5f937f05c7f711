"""The phases of one execution at its provider.

Accepted → Fetching → Starting → Running → Publishing → Committed → Receipted → Revealed → Done, or
one of the ends Declined and Lapsed. Each phase is a class of its own, so no code can build an
impossible combination. The step that takes an Assignment also accepts or declines it, so no phase
waits for that decision.
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
    """The daemon starts the container.

    After a restart the daemon starts it again, and so learns whether it runs. If `is_stopping`, the
    daemon stops the container as soon as it runs.
    """

    is_stopping: bool = False


class Running(Struct, frozen=True, tag=True):
    """The container runs.

    `is_stopping`: the client stopped it, and the exit that follows is the result.
    """

    started_at: UnixSeconds
    is_stopping: bool = False


class Publishing(Struct, frozen=True, tag=True):
    """The task has exited. The daemon collects its outputs, seals them and uploads the
    ciphertext.

    The salt is chosen on entering this phase, so it is journaled before anything uses it. The same
    outputs and salt give the same ciphertext, so the whole may be repeated after a crash.
    """

    exit_status: ExitStatus
    usage_ms: Milliseconds
    salt: Hash32


class Committed(Struct, frozen=True, tag=True):
    """The provider has signed the one Commit of this Assignment.

    It sends the Commit again at `resend_at`, until the coordinator's receipt comes.
    """

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
    """The provider revealed the result for this CommitSet.

    It never reveals the result for a set with other members. `escrowed`: its order has an escrow of
    its own, where its owner can show the execution.
    """

    commit: Commit
    reveal: Reveal
    commit_set: Envelope[CommitSet]
    receipt: Envelope[CommitReceipt] | None = None
    escrowed: EscrowedOrder | None = None


class Done(Struct, frozen=True, tag=True):
    """The job ended with a verdict.

    The core keeps the whole execution for ten minutes. Until `forget_at` it keeps the hash (see
    `ProviderCore.settled`), and the node keeps the ciphertext. `commit_set` is the one for which
    the provider revealed; None if it did not reveal.
    """

    commit: Commit
    verdict: Envelope[Verdict]
    forget_at: UnixSeconds
    commit_set: Envelope[CommitSet] | None = None


class Lapsed(Struct, frozen=True, tag=True):
    """The execution ended without pay.

    The core keeps a signed Commit, so that it never signs another one for this Assignment.
    `decline` is sent to a coordinator that waits for a Commit, to say that none will come.
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
    """One execution. Its identity is `assignment_hash`, the digest of the whole Assignment.

    `accept` is None when the Assignment was declined. The core chooses `gpus` when it accepts.
    """

    assignment: Envelope[Assignment]
    assignment_hash: Hash32
    spec: JobSpec
    sources: tuple[str, ...]
    class_id: Hash32
    accept: Accept | None
    commit_by: UnixSeconds
    phase: Phase
    gpus: tuple[str, ...] = ()  # UUIDs; no other lease has them until the Commit

    @property
    def coordinator(self) -> Address:
        """The coordinator that assigned it."""
        return self.assignment.message.coordinator

    @property
    def host_class(self) -> Hash32:
        """The host class whose run slot it takes."""
        return self.assignment.message.host_class

    @property
    def lease_id(self) -> str:
        """The name of its container: `assignment_hash` in hexadecimal, because executors take
        text.
        """
        return self.assignment_hash.hex()

    @property
    def occupies_slot(self) -> bool:
        """Whether the execution takes a run slot: it does until its Commit (I2)."""
        return isinstance(self.phase, (*PREPARING, Running, Publishing))

    @property
    def is_ended(self) -> bool:
        """Whether the execution has ended, so that the core only has to forget it later."""
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
        """Returns why it ended without pay, on one line.

        "" if it was paid, has not ended, or ended for a reason that this provider does not know.
        """
        match self.phase:
            case Lapsed(why):
                return "".join(
                    letter if letter.isprintable() else "?" for letter in why
                )  # the text may come from a coordinator
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
        """Returns the same execution in another phase."""
        return replace(self, phase=phase)
