"""What the shell must do: data with an idempotency key. Same lane in order, lanes side by side."""

from msgspec import Struct

from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Assignment, Commit, Order, Reveal, Session, Voucher
from quorate_protocol.rules.epoch_tree import Node
from quorate_protocol.units import Address, Hash32, Sequence, UnixSeconds


class Send(Struct, frozen=True, tag=True):
    """A frame to a provider; dropped when it cannot be delivered by `expires` (the lease's own
    deadline judges that).
    """

    key: str
    peer: Address
    frame: frames.Frame
    expires: UnixSeconds

    @property
    def lane(self) -> str:
        """One a provider and kind of frame: a verdict that cannot be delivered must not delay a
        CommitSet, which has a deadline.
        """
        return f"peer-{self.peer.hex()}-{type(self.frame).__name__}"


class StoreSpec(Struct, frozen=True, tag=True):
    """A job's spec into the content store, pinned; written when it is performed, from the job."""

    key: str
    job_id: Hash32

    @property
    def lane(self) -> str:
        """A few lanes, by the last sign of the key, which is a hash's: a store that takes its
        time with one document must not hold up all others. Not one lane each: uploads of clients
        need the store's threads too.
        """
        return f"documents-{self.key[-1:]}"


class StoreReceipt(Struct, frozen=True, tag=True):
    """The receipt of a job's verdict into the content store, pinned; written when it is
    performed, from the state (0007).
    """

    key: str
    job_id: Hash32
    verdict_seq: Sequence
    cid: str

    @property
    def lane(self) -> str:
        """As `StoreSpec`."""
        return f"documents-{self.key[-1:]}"


class PaidVoucher(Struct, frozen=True):
    """A voucher with the session that its key rests on."""

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
        """Chain transactions of the posting key go one after the other."""
        return "chain"


class Evidence(Struct, frozen=True):
    """One execution named in a case: everything that `Court.open_case` checks, and the reveal
    for the decision.
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
        """Beside postings: a case that waits for its bond must not hold up everybody's pay."""
        return "cases"


class ArchiveRuns(Struct, frozen=True, tag=True):
    """Write these runs, which are over, into the archive as the state has them, and say so by
    `RunsArchived`.
    """

    key: str
    jobs: tuple[Hash32, ...]

    @property
    def lane(self) -> str:
        """One transaction after the other."""
        return "archive"


Effect = Send | StoreSpec | StoreReceipt | PostEpoch | OpenCase | ArchiveRuns
