"""The coordinator's effects: orders to the shell, each with an idempotency key.

The shell performs the effects of one lane in their order. Lanes do not wait for each other.
"""

from msgspec import Struct

from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    Order,
    Reveal,
    Session,
    Summary,
    Voucher,
)
from quorate_protocol.rules.epoch_tree import Node
from quorate_protocol.units import Address, Hash32, Sequence, UnixSeconds


class Send(Struct, frozen=True, tag=True):
    """Sends a frame to a provider. The shell drops it when it cannot deliver it by `expires`. What
    then happens follows from the deadline of the lease.
    """

    key: str
    peer: Address
    frame: frames.Frame
    expires: UnixSeconds

    @property
    def lane(self) -> str:
        """One lane for each provider and kind of frame. A Verdict that cannot be delivered must not
        delay a CommitSet, which has a deadline.
        """
        return f"peer-{self.peer.hex()}-{type(self.frame).__name__}"


class StoreSpec(Struct, frozen=True, tag=True):
    """Stores a job's spec in the content store, pinned. The shell encodes the spec when it performs
    the effect.
    """

    key: str
    job_id: Hash32

    @property
    def lane(self) -> str:
        """One of a few lanes, chosen by the last letter of the key, which ends with a hash.

        When the store is slow with one document, the others must not wait. One lane for each
        document would be too many: clients' uploads need the store's threads too.
        """
        return f"documents-{self.key[-1:]}"


class StoreReceipt(Struct, frozen=True, tag=True):
    """Stores the receipt of a job's verdict in the content store, pinned. The shell builds the
    receipt from the state when it performs the effect (docs/decisions/0007).
    """

    key: str
    job_id: Hash32
    verdict_seq: Sequence
    cid: str

    @property
    def lane(self) -> str:
        """One of a few lanes, as for `StoreSpec`."""
        return f"documents-{self.key[-1:]}"


class PaidVoucher(Struct, frozen=True):
    """A voucher and the session that allows the voucher's key to sign."""

    voucher: Envelope[Voucher]
    session: Envelope[Session]


class PostEpoch(Struct, frozen=True, tag=True):
    """Posts an epoch's Merkle-sum root to the chain, with the newest vouchers."""

    key: str
    number: int
    root: Node
    vouchers: tuple[PaidVoucher, ...]

    @property
    def lane(self) -> str:
        """One lane, so that the posting key sends one transaction after the other."""
        return "chain"


class Contradiction(Struct, frozen=True):
    """Another owner's execution of the same job, with another result. `index` and `blind` (a random
    value) open the `assignmentId`.
    """

    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]
    reveal: Reveal


class Evidence(Struct, frozen=True):
    """One execution named in a case. It has all that `Cases` checks, and the Reveal that the jury
    reads. `index` and `blind` (a random value) open the `assignmentId`.
    """

    order: Envelope[Order]
    session: Envelope[Session]
    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]
    reveal: Reveal
    contradiction: Contradiction

    @property
    def reveals(self) -> tuple[Reveal, ...]:
        """Returns what opens the case's claims over this execution."""
        return self.reveal, self.contradiction.reveal


class OpenCase(Struct, frozen=True, tag=True):
    """Opens a case on chain, with a bond."""

    key: str
    accused: Address
    host_class: Hash32
    executions: tuple[Evidence, ...]

    @property
    def lane(self) -> str:
        """A lane of its own: a case may wait for its bond, and neither pay nor a cheaper case must
        wait with it.
        """
        return self.key


class ProveEquivocation(Struct, frozen=True, tag=True):
    """Shows the chain two Commits that one provider signed for one assignment."""

    key: str
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

    @property
    def lane(self) -> str:
        """One lane, so that the archive writes one transaction after the other."""
        return "archive"


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
    | PostEpoch
    | OpenCase
    | ProveEquivocation
    | ArchiveRuns
    | AppendSummary
)
