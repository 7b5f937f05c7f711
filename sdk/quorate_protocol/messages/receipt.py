"""The receipt: all signed evidence of one job, addressed by its content (PROTOCOL §3, §7).

A signature or a hash inside the body covers every byte of it, except `taken_from_chain`. So anyone
can check a receipt without the network; see `rules.receipt_checks`.
"""

from quorate_protocol import cids
from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import (
    Accept,
    Ack,
    Assignment,
    Commit,
    CommitSet,
    Order,
    Reveal,
    Session,
    Stop,
    Verdict,
    Witness,
)
from quorate_protocol.readable import Readable
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.rules.eligible_list import ShownSlot
from quorate_protocol.units import Address, Hash32, Round

RECEIPT_BYTES_MAX = 4 << 20


class ExecutionEvidence(Readable, frozen=True):
    """All signed messages of one committed execution."""

    index: int  # counts every assignment of the job, lapsed and declined ones too
    assignment: Envelope[Assignment]
    accept: Envelope[Accept]
    commit: Envelope[Commit]
    reveal: Reveal | None  # None when the provider did not reveal
    operator_key: Address  # taken from the chain


class BeaconEvidence(Readable, frozen=True):
    """One beacon round that decided a draw."""

    round: Round
    signature: bytes  # 48-byte compressed G1 point


class RegisteredProvider(Readable, frozen=True):
    """The provider of one execution, as it was registered when it got the assignment."""

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32


class TakenFromChain(Readable, frozen=True):
    """Facts that only the chain can prove. `quorate verify` compares them when it is online."""

    block: int  # number of the block whose stake slots count
    list_length: int  # length of the host class's list of stake slots
    parties: tuple[RegisteredProvider, ...]  # in order of the executions


class Receipt(Readable, frozen=True):
    """The body of a receipt.

    `slots` has each index of the eligible list that the tries of the draws met, up to the last
    auditor. Each index is there once, in order, with its proof. So the size of a receipt grows with
    the number of tries and with the logarithm of the list (docs/decisions/0007).
    """

    chain_id: int
    stakes: Address  # the contract `Stakes`
    beacon_key: bytes  # 96-byte compressed G2 point
    timing: Timing
    coordinator_key: Address
    spec: JobSpec
    session: Envelope[Session]
    order: Envelope[Order]
    ack: Envelope[Ack]
    batches: tuple[Envelope[CommitSet], ...]  # in order of their numbers
    beacons: tuple[BeaconEvidence, ...]
    executions: tuple[ExecutionEvidence, ...]  # in CommitSet order over all batches
    witness: Envelope[Witness] | None
    verdict: Envelope[Verdict]
    slots: tuple[ShownSlot, ...]
    taken_from_chain: TakenFromChain
    stop: Envelope[Stop] | None = None  # the client's, when it ended the job
    version: int = 1

    def encode(self) -> bytes:
        """Canonical bytes of the body."""
        return text_writer.encode(self)

    def cid(self) -> str:
        """CID of the canonical bytes (v1, raw)."""
        return cids.document_cid(self.encode())


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
        """Whether every check is good."""
        return bool(self.checks) and all(check.is_good for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.is_good)


def document(receipt: Receipt) -> bytes:
    """Bytes of a receipt's file `{body, cid}`."""
    return canonical.canonical({"body": canonical.to_json(receipt), "cid": receipt.cid()})
