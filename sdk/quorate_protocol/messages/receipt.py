"""The receipt: all signed evidence of one job, addressed by its content (PROTOCOL §3, §7).

The Verdict has the hash of everything else in the body. So nobody but the coordinator can change a
receipt, and anyone can check it without the network; see `rules.receipts`.
"""

from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.messages.beacon_rounds import Timing
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.document import Document
from quorate_protocol.messages.eligible_list import ShownSlot
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.messages.signed import (
    Accept,
    Ack,
    Assignment,
    Commit,
    CommitReceipt,
    CommitSet,
    Decline,
    Order,
    Reveal,
    Session,
    SignedOffer,
    Stop,
    Verdict,
    Witness,
)
from quorate_protocol.readable import Readable
from quorate_protocol.units import Address, Hash32, Round, Small

RECEIPT_BYTES_MAX = 4 << 20
VERSION = 1


class ExecutionEvidence(Readable, frozen=True):
    """All signed messages of one committed execution."""

    index: int  # counts every assignment of the job, lapsed and declined ones too
    assignment: Envelope[Assignment]
    accept: Envelope[Accept]
    commit: Envelope[Commit]
    commit_receipt: Envelope[CommitReceipt]
    reveal: Reveal | None  # None when the provider did not reveal
    operator_key: Address  # taken from the chain


text_writer.keep(ExecutionEvidence, 256)  # a body is written twice: without its Verdict, and with


class SkipEvidence(Readable, frozen=True):
    """A try of a draw whose provider did not run the execution."""

    batch: Small  # number of the batch that the draw was for
    attempt: Small  # number of the try
    index: int  # counts every assignment of the job
    blind: Hash32  # opens `Assignment.assignment_id`
    assignment: Envelope[Assignment]
    decline: Envelope[Decline] | None  # None: the provider was silent until acceptBy, or later
    operator_key: Address  # taken from the chain


class WithdrawalEvidence(Readable, frozen=True):
    """An owner with active stake slots signed itself away: its newest offer expires at 0."""

    offer: Envelope[SignedOffer]
    operator_key: Address  # taken from the chain


class BeaconEvidence(Readable, frozen=True):
    """One beacon round that decided a draw."""

    round: Round
    signature: bytes  # 48-byte compressed G1 point


class Distance(Readable, frozen=True):
    """How far the outputs of two executions are apart. They differ, with the same exit status."""

    one: Small  # number of the first execution that has the one result
    other: Small  # and of the first that has the other; larger than `one`
    ppb: int | None  # None: no tolerance lets them agree


class RegisteredProvider(Readable, frozen=True):
    """The provider of one execution, as it was registered when it got the assignment."""

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32


class TakenFromChain(Readable, frozen=True):
    """Facts that only the chain can prove. `quorate verify` compares them when it is online."""

    block: int  # number of the block whose stake slots count
    block_hash: Hash32  # of that block
    list_lengths: tuple[int, ...]  # lengths of the pools' lists of stake slots, in their order
    parties: tuple[RegisteredProvider, ...]  # in order of the executions

    @property
    def list_length(self) -> int:
        """Of the joined lists, by which each draw divides."""
        return sum(self.list_lengths)


class Evidence(Document, frozen=True):
    """The body of a receipt without its Verdict. `Verdict.evidence_hash` is its digest.

    `withdrawals` name each owner of an active slot that is not drawn from, so that a reader with
    the chain can build the eligible list again. `slots` has each index of the list that the tries
    of the draws met, up to the last auditor, or all tries of a draw that found too few. Each index
    is there once, in order, with its proof. So the size of a receipt grows with the number of tries
    and with the logarithm of the list (docs/decisions/0007). The job spec is not in it;
    `Order.spec_hash` names it.
    """

    chain_id: int
    stakes: Address  # the contract `Stakes`
    beacon_key: bytes  # 96-byte compressed G2 point
    timing: Timing
    coordinator_key: Address
    pools: tuple[Pool, ...]  # in order of their ids, which give `Ack.pool`
    image: Hash32  # digest of the image, see `job_spec.image_digest`
    profile: Hash32  # digest of the determinism profile of the job spec
    session: Envelope[Session]
    order: Envelope[Order]
    ack: Envelope[Ack]
    batches: tuple[Envelope[CommitSet], ...]  # in order of their numbers
    # those of the batches' draws, in order, and that of the draw that found nobody
    beacons: tuple[BeaconEvidence, ...]
    executions: tuple[ExecutionEvidence, ...]  # in CommitSet order over all batches
    compare: Compare  # the spec's
    distances: tuple[Distance, ...]  # `agreement.pairs_to_compare`; none where it is exact
    skips: tuple[SkipEvidence, ...]  # in order of batches and tries
    # Round of the last draw, which found nobody; zero if there is none. `beacons` lacks it if the
    # coordinator says that it did not appear.
    exhausted_by: Round
    witness: Envelope[Witness] | None
    withdrawals: tuple[WithdrawalEvidence, ...]  # in order of their owners
    slots: tuple[ShownSlot, ...]
    taken_from_chain: TakenFromChain
    stop: Envelope[Stop] | None  # the client's; only in the receipt of a job that it ended
    version: int


class Receipt(Evidence, frozen=True):
    """The body of a receipt: the evidence and the coordinator's Verdict on it."""

    verdict: Envelope[Verdict]

    def evidence(self) -> Evidence:
        return Evidence(*_values(self))  # type: ignore[arg-type]


def decided(evidence: Evidence, verdict: Envelope[Verdict]) -> Receipt:
    return Receipt(*_values(evidence), verdict)  # type: ignore[call-arg, arg-type]


def _values(evidence: Evidence) -> list[object]:
    return [getattr(evidence, name) for name in Evidence.__struct_fields__]


class Check(Readable, frozen=True):
    """The result of one named check."""

    name: str
    is_good: bool
    detail: str = ""


class Report(Readable, frozen=True):
    """The results of all checks of one receipt."""

    checks: tuple[Check, ...]
    chain_checked: bool = False  # no check of this package reads the chain

    @property
    def valid(self) -> bool:
        return bool(self.checks) and all(check.is_good for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.is_good)


def document(receipt: Receipt) -> bytes:
    return canonical.canonical({"body": canonical.to_json(receipt), "cid": receipt.cid()})
