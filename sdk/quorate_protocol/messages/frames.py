"""Frames between coordinator and provider: what travels over the `Peers` port, encoded by the
codec as a tagged union.

Every frame is idempotent: repeating one changes nothing and is answered the same. The answer is
`Ok`; a refusal travels as the port's own error. Bulk data never travels here but over HTTP
(staging store, gateways).
"""

from dataclasses import dataclass

from quorate_protocol.codec import text_writer, value_reader
from quorate_protocol.codec.quick import quicken
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


@dataclass(frozen=True, slots=True)
class AssignmentSent:
    """Run this. `sources` are gateway base URLs that hold image, inputs and spec
    (`<base>/<cid>`).
    """

    assignment: Envelope[Assignment]
    spec: JobSpec
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReceiptSent:
    """Commit and ciphertext are stored."""

    receipt: Envelope[CommitReceipt]


@dataclass(frozen=True, slots=True)
class CommitSetSent:
    """The batch with this assignment is closed: reveal."""

    assignment_hash: Hash32
    commit_set: Envelope[CommitSet]


@dataclass(frozen=True, slots=True)
class VerdictSent:
    """How the job of this assignment ended."""

    assignment_hash: Hash32
    verdict: Envelope[Verdict]


@dataclass(frozen=True, slots=True)
class StatementSent:
    """The coordinator's cumulative debt. A provider says the newest one back at each connection,
    to a coordinator that may have lost it.
    """

    statement: Envelope[Statement]


@dataclass(frozen=True, slots=True)
class StopSent:
    """End it now; a primary commits what it has, with its elapsed time."""

    assignment_hash: Hash32
    stop: Envelope[Stop]


# provider -> coordinator


@dataclass(frozen=True, slots=True)
class OfferSent:
    """A new or refreshed offer."""

    offer: OfferEnvelope


@dataclass(frozen=True, slots=True)
class HeartbeatSent:
    """Alive, with free slots."""

    heartbeat: Envelope[Heartbeat]


@dataclass(frozen=True, slots=True)
class AcceptSent:
    """Will run it."""

    accept: Envelope[Accept]


@dataclass(frozen=True, slots=True)
class DeclineSent:
    """Not now or not at all."""

    decline: Envelope[Decline]


@dataclass(frozen=True, slots=True)
class CommitSent:
    """Bound to a result; the ciphertext was uploaded to the staging store before."""

    commit: Envelope[Commit]


@dataclass(frozen=True, slots=True)
class RevealSent:
    """Opens the commitment."""

    reveal: Reveal


@dataclass(frozen=True, slots=True)
class LogsSent:
    """Log lines for the client; never part of the result, may be dropped."""

    assignment_hash: Hash32
    text: str


@dataclass(frozen=True, slots=True)
class Ok:
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


@dataclass(frozen=True, slots=True)
class _Carrier:
    frame: Frame


quicken(_Carrier)
_WRITE = text_writer.writer_of(Frame)


def encode(frame: Frame) -> bytes:
    """Canonical bytes of a frame."""
    return text_writer.enclose("frame", _WRITE, frame)


def decode(data: bytes) -> Frame:
    """A frame; `Refused` for anything else."""
    return value_reader.decode(_Carrier, data, FRAME_BYTES_MAX).frame
