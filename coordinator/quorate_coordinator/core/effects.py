"""The coordinator's effects: what the shell must do, with an idempotency key.

Effects of one lane are performed in order, lanes side by side.
"""

from msgspec import Struct

from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Assignment, Commit, Order, Reveal, Session, Voucher
from quorate_protocol.rules.epoch_tree import Node
from quorate_protocol.units import Address, Hash32, Sequence, UnixSeconds


class Send(Struct, frozen=True, tag=True):
    """A frame to a provider. It is dropped when it cannot be delivered by `expires`; the deadline
    of its lease decides what follows.
    """

    key: str
    peer: Address
    frame: frames.Frame
    expires: UnixSeconds

    @property
    def lane(self) -> str:
        """One lane for each provider and kind of frame. A verdict that cannot be delivered must
        not delay a CommitSet, which has a deadline.
        """
        return f"peer-{self.peer.hex()}-{type(self.frame).__name__}"


class StoreSpec(Struct, frozen=True, tag=True):
    """Stores a job's spec in the content store, pinned. The spec is encoded when the effect is
    performed.
    """

    key: str
    job_id: Hash32

    @property
    def lane(self) -> str:
        """One of a few lanes, by the last letter of the key, which ends with a hash.

        A store that is slow with one document must not hold up all others. Nor may each document
        have a lane: clients' uploads need the store's threads too.
        """
        return f"documents-{self.key[-1:]}"


class StoreReceipt(Struct, frozen=True, tag=True):
    """Stores the receipt of a job's verdict in the content store, pinned. The receipt is built
    from the state when the effect is performed (docs/decisions/0007).
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
    """A voucher with the session that allows its key."""

    voucher: Envelope[Voucher]
    session: Envelope[Session]


class PostEpoch(Struct, frozen=True, tag=True):
    """Post a Merkle-sum root with the newest vouchers."""

    key: str
    number: int
    root: Node
    vouchers: tuple[PaidVoucher, ...]

    @property
    def lane(self) -> str:
        """One lane: transactions of the posting key go one after the other."""
        return "chain"


class Evidence(Struct, frozen=True):
    """One execution named in a case: all that `Court.open_case` checks, and the reveal for the
    jury.
    """

    order: Envelope[Order]
    session: Envelope[Session]
    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]
    reveal: Reveal


class OpenCase(Struct, frozen=True, tag=True):
    """Open a case on chain, with a bond."""

    key: str
    accused: Address
    host_class: Hash32
    executions: tuple[Evidence, ...]

    @property
    def lane(self) -> str:
        """A lane apart from postings: a case that waits for its bond must not hold up all pay."""
        return "cases"


class ArchiveRuns(Struct, frozen=True, tag=True):
    """Writes these finished runs into the archive, and then submits `RunsArchived`."""

    key: str
    jobs: tuple[Hash32, ...]

    @property
    def lane(self) -> str:
        """One lane: one transaction after the other."""
        return "archive"


Effect = Send | StoreSpec | StoreReceipt | PostEpoch | OpenCase | ArchiveRuns
