"""Frames between coordinator and provider, which travel over the `Peers` port.

Repeating a frame changes nothing and gives the same answer: `Ok`; a refusal travels as the port's
own error. Large data travels over HTTP (staging store, gateways), never in frames.
"""

from msgspec import Struct

from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import OfferEnvelope, check_version
from quorate_protocol.messages.signed import (
    Accept,
    Assignment,
    Commit,
    CommitReceipt,
    CommitSet,
    Decline,
    Heartbeat,
    Order,
    Reveal,
    Stop,
    Verdict,
    Voucher,
)
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ExitStatus, Hash32, Milliseconds

LOG_TEXT_MAX = 64 * 1024

# coordinator -> provider


class AssignmentSent(Struct, frozen=True, tag=True):
    """The coordinator asks the provider to run this execution."""

    assignment: Envelope[Assignment]
    spec: JobSpec
    sources: tuple[str, ...]  # base URLs of gateways with image, inputs and spec: `<base>/<cid>`


class ReceiptSent(Struct, frozen=True, tag=True):
    """The coordinator has stored commit and ciphertext."""

    receipt: Envelope[CommitReceipt]


class EscrowedOrder(Struct, frozen=True):
    """What an owner shows on chain beside its own messages, for pay by the order's own escrow."""

    order: Order
    index: int  # of the execution, as in `Assignment.assignment_id`


class CommitSetSent(Struct, frozen=True, tag=True):
    """The batch with this assignment is closed, so the provider may now reveal."""

    assignment_hash: Hash32
    commit_set: Envelope[CommitSet]
    escrowed: EscrowedOrder | None = None  # if the order has an escrow of its own


class VerdictSent(Struct, frozen=True, tag=True):
    """The coordinator's verdict on the job of this assignment."""

    assignment_hash: Hash32
    verdict: Envelope[Verdict]


class StopSent(Struct, frozen=True, tag=True):
    """The client stops the job now. A primary commits what it has, with its elapsed time."""

    assignment_hash: Hash32
    stop: Envelope[Stop]


class SecretsSent(Struct, frozen=True, tag=True):
    """The client's secrets for its rental, in a box that only the provider opens."""

    assignment_hash: Hash32
    box: bytes  # at most `rental_secrets.BOX_BYTES_MAX`


class StreamWanted(Struct, frozen=True, tag=True):
    """The client wants a stream to its rental: the provider dials `/v1/streams/<ticket>`."""

    assignment_hash: Hash32
    ticket: Hash32  # random; good for one connection


# provider -> coordinator


class OfferSent(Struct, frozen=True, tag=True):
    """The provider's new or refreshed offer."""

    offer: OfferEnvelope


class HeartbeatSent(Struct, frozen=True, tag=True):
    """The provider is alive and says which slots are free."""

    heartbeat: Envelope[Heartbeat]


class AcceptSent(Struct, frozen=True, tag=True):
    """The provider will run the assignment."""

    accept: Envelope[Accept]


class DeclineSent(Struct, frozen=True, tag=True):
    """The provider does not run the assignment, or not yet."""

    decline: Envelope[Decline]


class CommitSent(Struct, frozen=True, tag=True):
    """The provider commits to a result. It has uploaded the ciphertext before."""

    commit: Envelope[Commit]


class RevealSent(Struct, frozen=True, tag=True):
    """The provider opens its commitment."""

    reveal: Reveal


class LogsSent(Struct, frozen=True, tag=True):
    """What a program wrote, for the client. It is not part of the result and may be dropped."""

    assignment_hash: Hash32
    at: int  # position of the text in all that the program wrote, in bytes
    text: bytes  # at most LOG_TEXT_MAX


class Metered(Struct, frozen=True, tag=True):
    """How long a rental's container has run. The last one has its exit status."""

    assignment_hash: Hash32
    usage_ms: Milliseconds
    exit_status: ExitStatus | None = None


class AssignmentShown(Struct, frozen=True, tag=True):
    """The newest Assignment to this provider, which sends it back at each connection. The
    coordinator may have lost it, or another one with the same key signed it.
    """

    assignment: Envelope[Assignment]


# both directions


class AttestationSent(Struct, frozen=True, tag=True):
    """A message of a challenge of GPUs (PROTOCOL §10), whose form this module does not know."""

    body: bytes  # see `quorate_attestation.session_messages`


class VoucherSent(Struct, frozen=True, tag=True):
    """The coordinator's cumulative debt. At each connection the provider sends the newest one back,
    in case the coordinator has lost it.
    """

    voucher: Envelope[Voucher]


class Ok(Struct, frozen=True, tag=True):
    """The receiver has accepted the frame. A signed message in it is now stored durably."""


Frame = (
    AssignmentSent
    | ReceiptSent
    | CommitSetSent
    | VerdictSent
    | StopSent
    | SecretsSent
    | StreamWanted
    | OfferSent
    | HeartbeatSent
    | AcceptSent
    | DeclineSent
    | CommitSent
    | RevealSent
    | LogsSent
    | Metered
    | VoucherSent
    | AssignmentShown
    | AttestationSent
    | Ok
)


class _Carrier(Struct, frozen=True):
    frame: Frame


_WRITE = text_writer.writer_of(Frame)


def encode(frame: Frame) -> bytes:
    return text_writer.enclose("frame", _WRITE, frame)


def decode(data: bytes) -> Frame:
    """Raises `Refused` for any other bytes."""
    try:
        return canonical.decode(_Carrier, data, FRAME_BYTES_MAX).frame
    except Refused:
        _refuse_old_offer(data)
        raise


def _refuse_old_offer(data: bytes) -> None:
    tree = canonical.parse(data, FRAME_BYTES_MAX)
    frame = tree.get("frame") if isinstance(tree, dict) else None
    if isinstance(frame, dict) and frame.get("kind") == OfferSent.__name__:
        check_version(frame.get("offer"))
