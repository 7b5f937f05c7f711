"""The coordinator's effects: orders to the shell, each with an idempotency key.

The shell performs the effects of one lane in their order. Lanes do not wait for each other.
"""

from typing import ClassVar

from msgspec import Struct

from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    CommitReceipt,
    Order,
    Reveal,
    Session,
    Summary,
    Voucher,
)
from quorate_protocol.rules.tabs import Pay
from quorate_protocol.units import Address, Amount, Hash32, Sequence, UnixSeconds


class _OwnLane(Struct, frozen=True):
    """An effect that waits for no other, and for which none waits."""

    key: str

    @property
    def lane(self) -> str:
        return self.key


class Send(Struct, frozen=True, tag=True):
    """Sends a frame. The shell drops it if it cannot deliver it by `expires`."""

    key: str
    peer: Address
    frame: frames.Frame
    expires: UnixSeconds

    @property
    def lane(self) -> str:
        """One for each kind of frame: a Verdict must not delay a CommitSet, which has a
        deadline.
        """
        return f"peer-{self.peer.hex()}-{type(self.frame).__name__}"


class _Document(Struct, frozen=True):
    key: str
    job_id: Hash32

    @property
    def lane(self) -> str:
        """One of a few, chosen by the last letter of the key, which ends with a hash.

        When the store is slow with one document, the others must not wait. One lane for each
        document would be too many: clients' uploads need the store's threads too.
        """
        return f"documents-{self.key[-1:]}"


class StoreSpec(_Document, frozen=True, tag=True):
    """Stores a job's spec, once a provider has accepted it; the shell encodes it then."""


class StoreReceipt(_Document, frozen=True, tag=True):
    """Stores a receipt, which the shell builds from the state (docs/decisions/0007)."""

    verdict_seq: Sequence
    cid: str


class CompareOutputs(Struct, frozen=True, tag=True):
    """Compares the outputs of two revealed executions, and then submits `OutputsCompared`.

    What cannot be compared by `until`, because a file is missing for example, differs.
    """

    key: str
    job_id: Hash32
    one: Hash32  # assignment hashes
    other: Hash32
    client: Address
    until: UnixSeconds

    @property
    def lane(self) -> str:
        """One for each client, so that nobody's large outputs delay those of others for long."""
        return f"compare-{self.client.hex()}"


class PaidVoucher(Struct, frozen=True):
    """A voucher and the session that allows the voucher's key to sign."""

    voucher: Envelope[Voucher]
    session: Envelope[Session]


class SendPayroll(Struct, frozen=True, tag=True):
    """Pays these cumulative sums from this coordinator's balance. `root` is that of the log."""

    key: str
    pays: tuple[Pay, ...]
    root: Hash32

    lane: ClassVar[str] = "payroll"


class SendRedeem(Struct, frozen=True, tag=True):
    """Redeems clients' vouchers into this coordinator's balance."""

    key: str
    vouchers: tuple[PaidVoucher, ...]
    root: Hash32

    lane: ClassVar[str] = "redeem"


class Lock(Struct, frozen=True):
    """What to lock for a provider beside what is locked."""

    payee: Address
    amount: Amount


class SendLocks(Struct, frozen=True, tag=True):
    """Locks guarantees for providers, from this coordinator's balance."""

    key: str
    locks: tuple[Lock, ...]

    lane: ClassVar[str] = "locks"


class SendGiveBack(_OwnLane, frozen=True, tag=True):
    """Frees so much of a client's tab for the client."""

    client: Address
    amount: Amount


class ShownRun(Struct, frozen=True):
    """One execution with all that contracts check. `index` and `blind` open the `assignmentId`."""

    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]
    receipt: Envelope[CommitReceipt]
    reveal: Reveal


class ShowExecution(_OwnLane, frozen=True, tag=True):
    """Shows `Jobs` an accepted execution of an order with an escrow of its own."""

    order: Order
    run: ShownRun


class PayOrder(_OwnLane, frozen=True, tag=True):
    """Has `Jobs` pay an order, once it takes no more evidence. `providers` are those that this
    coordinator shows, in ascending order; others may have been shown too.
    """

    order: Order
    providers: tuple[Address, ...]
    not_before: UnixSeconds

    @property
    def lane(self) -> str:
        """A lane of its own: it waits for days."""
        return self.key


class ReleaseOrder(_OwnLane, frozen=True, tag=True):
    """Has `Jobs` give the budget of an order back early, because nobody executed it."""

    order: Order


class Evidence(Struct, frozen=True):
    """The execution that a case names, and another owner's of the same job with another result."""

    order: Envelope[Order]
    session: Envelope[Session]
    run: ShownRun
    contradiction: ShownRun

    @property
    def reveals(self) -> tuple[Reveal, Reveal]:
        return self.run.reveal, self.contradiction.reveal


class OpenCase(_OwnLane, frozen=True, tag=True):
    """Opens a case on chain. `pay` is what each juror gets beside its gas."""

    execution: Evidence
    pay: Amount

    @property
    def lane(self) -> str:
        """A lane of its own: pay must not wait with it."""
        return self.key


class ProveEquivocation(_OwnLane, frozen=True, tag=True):
    """Shows the chain two Commits that one provider signed for one assignment."""

    assignment: Envelope[Assignment]
    one: Envelope[Commit]
    other: Envelope[Commit]

    @property
    def lane(self) -> str:
        """A lane of its own: it may wait for `acceptBy`, and pay must not wait with it."""
        return self.key


class ArchiveRuns(Struct, frozen=True, tag=True):
    """Writes these finished runs into the archive, and then submits `RunsArchived`."""

    key: str
    jobs: tuple[Hash32, ...]

    lane: ClassVar[str] = "archive"


class AppendSummary(Struct, frozen=True, tag=True):
    """Appends a signed line to the file of the public log. A repeat changes nothing."""

    key: str
    line: Envelope[Summary]

    @property
    def lane(self) -> str:
        """One of a few lanes, so that many lines are written in one transaction."""
        return f"log-{self.line.message.seq & 15}"


Effect = (
    Send
    | StoreSpec
    | StoreReceipt
    | CompareOutputs
    | SendPayroll
    | SendRedeem
    | SendLocks
    | SendGiveBack
    | ShowExecution
    | PayOrder
    | ReleaseOrder
    | OpenCase
    | ProveEquivocation
    | ArchiveRuns
    | AppendSummary
)
