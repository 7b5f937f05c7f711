"""Frames between coordinator and provider: what travels over the `Peers` port, encoded by the
codec as a tagged union.

Every frame is idempotent: repeating one changes nothing and is answered the same. The answer is
`Ok`; a refusal travels as the port's own error. Bulk data never travels here but over HTTP
(staging store, gateways).
"""

from msgspec import Struct

from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import (
    Accept,
    Assignment,
    Commit,
    CommitReceipt,
    CommitSet,
    Decline,
    Heartbeat,
    Reveal,
    Statement,
    Stop,
    Verdict,
)
from quorate_protocol.units import Hash32

LOG_TEXT_MAX = 64 * 1024

# coordinator -> provider


class AssignmentSent(Struct, frozen=True, tag=True):
    """Run this. `sources` are gateway base URLs that hold image, inputs and spec
    (`<base>/<cid>`).
    """

    assignment: Envelope[Assignment]
    spec: JobSpec
    sources: tuple[str, ...]


class ReceiptSent(Struct, frozen=True, tag=True):
    """Commit and ciphertext are stored."""

    receipt: Envelope[CommitReceipt]


class CommitSetSent(Struct, frozen=True, tag=True):
    """The batch with this assignment is closed: reveal."""

    assignment_hash: Hash32
    commit_set: Envelope[CommitSet]


class VerdictSent(Struct, frozen=True, tag=True):
    """How the job of this assignment ended."""

    assignment_hash: Hash32
    verdict: Envelope[Verdict]


class StatementSent(Struct, frozen=True, tag=True):
    """The coordinator's cumulative debt. A provider says the newest one back at each connection,
    to a coordinator that may have lost it.
    """

    statement: Envelope[Statement]


class StopSent(Struct, frozen=True, tag=True):
    """End it now; a primary commits what it has, with its elapsed time."""

    assignment_hash: Hash32
    stop: Envelope[Stop]


# provider -> coordinator


class OfferSent(Struct, frozen=True, tag=True):
    """A new or refreshed offer."""

    offer: OfferEnvelope


class HeartbeatSent(Struct, frozen=True, tag=True):
    """Alive, with free slots."""

    heartbeat: Envelope[Heartbeat]


class AcceptSent(Struct, frozen=True, tag=True):
    """Will run it."""

    accept: Envelope[Accept]


class DeclineSent(Struct, frozen=True, tag=True):
    """Not now or not at all."""

    decline: Envelope[Decline]


class CommitSent(Struct, frozen=True, tag=True):
    """Bound to a result; the ciphertext was uploaded to the staging store before."""

    commit: Envelope[Commit]


class RevealSent(Struct, frozen=True, tag=True):
    """Opens the commitment."""

    reveal: Reveal


class LogsSent(Struct, frozen=True, tag=True):
    """Log lines for the client; never part of the result, may be dropped."""

    assignment_hash: Hash32
    text: str


class Ok(Struct, frozen=True, tag=True):
    """Taken note of, durably where the frame is a message of the protocol."""


Frame = (
    AssignmentSent
    | ReceiptSent
    | CommitSetSent
    | VerdictSent
    | StatementSent
    | StopSent
    | OfferSent
    | HeartbeatSent
    | AcceptSent
    | DeclineSent
    | CommitSent
    | RevealSent
    | LogsSent
    | Ok
)


class _Carrier(Struct, frozen=True):
    frame: Frame


_WRITE = text_writer.writer_of(Frame)


def encode(frame: Frame) -> bytes:
    """Canonical bytes of a frame."""
    return text_writer.enclose("frame", _WRITE, frame)


def decode(data: bytes) -> Frame:
    """A frame; `Refused` for anything else."""
    return canonical.decode(_Carrier, data, FRAME_BYTES_MAX).frame
