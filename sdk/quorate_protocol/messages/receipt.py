"""The receipt: all signed evidence of one job, addressed by its content (PROTOCOL §3, §7).

A signature or hash inside the body covers every byte of it, except `taken_from_chain`. Everyone can
check a receipt without asking anybody; see `rules.receipt_checks`.
"""

from msgspec import Struct

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
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.rules.eligible import ShownSlot
from quorate_protocol.units import Address, Hash32, Round

RECEIPT_BYTES_MAX = 4 << 20


class ExecutionEvidence(Struct, frozen=True):
    """Everything signed for one committed execution. `operator_key` is taken from the chain."""

    index: int
    assignment: Envelope[Assignment]
    accept: Envelope[Accept]
    commit: Envelope[Commit]
    reveal: Reveal | None
    operator_key: Address


class BeaconEvidence(Struct, frozen=True):
    """One round that decided a draw."""

    round: Round
    signature: bytes


class Party(Struct, frozen=True):
    """Who stands behind one execution, as registered when it was placed."""

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32


class TakenFromChain(Struct, frozen=True):
    """What only the chain can vouch for; `quorate verify` compares it when online. `parties` in
    order of the executions.
    """

    block: int
    list_length: int
    parties: tuple[Party, ...]


class Receipt(Struct, frozen=True):
    """The body. `batches` in order; executions in CommitSet order over all batches.

    `slots`: what every try of a draw met, up to the last one taken; each index of the list once,
    in order, with its proof. So the size of a receipt grows with the tries and the logarithm of
    the list (docs/decisions/0007).
    """

    chain_id: int
    stakes: Address
    beacon_key: bytes
    timing: Timing
    coordinator_key: Address
    spec: JobSpec
    session: Envelope[Session]
    order: Envelope[Order]
    ack: Envelope[Ack]
    batches: tuple[Envelope[CommitSet], ...]
    beacons: tuple[BeaconEvidence, ...]
    executions: tuple[ExecutionEvidence, ...]
    witness: Envelope[Witness] | None
    verdict: Envelope[Verdict]
    slots: tuple[ShownSlot, ...]
    taken_from_chain: TakenFromChain
    stop: Envelope[Stop] | None = None  # the client's, when it ended the job
    version: int = 1

    def encode(self) -> bytes:
        """Canonical bytes."""
        return text_writer.encode(self)

    def cid(self) -> str:
        """CIDv1 raw of the canonical bytes."""
        return cids.document_cid(self.encode())


class Check(Struct, frozen=True):
    """One named check and how it went."""

    name: str
    is_good: bool
    detail: str = ""


class Report(Struct, frozen=True):
    """All checks; valid when every one is good. `chain_checked` is false: nothing here asks the
    chain.
    """

    checks: tuple[Check, ...]
    chain_checked: bool = False

    @property
    def valid(self) -> bool:
        """True when every check is good."""
        return bool(self.checks) and all(check.is_good for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.is_good)


def document(receipt: Receipt) -> bytes:
    """The file `{body, cid}`."""
    return canonical.canonical({"body": canonical.to_json(receipt), "cid": receipt.cid()})
