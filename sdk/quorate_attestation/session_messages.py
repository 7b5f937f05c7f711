"""The messages of a challenge between provider, coordinator and drawn verifiers.

They travel inside the frame `AttestationSent`. Provider and drawn verifiers have no connection to
each other, so the coordinator passes their messages on. It can delay or drop them. It cannot change
a nonce or a root: each verifier compares the proof with what it sent and received.
"""

from msgspec import Struct

from quorate_attestation.challenge import (
    STAGES,
    ChallengeOpened,
    GpuClaim,
    SampleOpened,
    StageCommitted,
    StageOpened,
)
from quorate_protocol.codec import canonical
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code
from quorate_protocol.units import Address, Hash32, Round, Small

MESSAGE_BYTES_MAX = FRAME_BYTES_MAX // 2 - 1024  # a frame carries a message as hex
DETAIL_MAX = 500  # characters of a refusal's detail
ADDRESSES_MAX = 4


class AttestationAsked(Struct, frozen=True, tag=True):
    """Provider to coordinator: it wants its GPUs, or its CPU, challenged in this period."""

    peer_key: Hash32  # as in its offer
    gpus: tuple[GpuClaim, ...]


class VerificationAsked(Struct, frozen=True, tag=True):
    """Coordinator to a drawn provider: will it verify? Its answer Ok means that it will."""

    provider: Address  # that is to be challenged
    beacon_round: Round


class ChallengeSent(Struct, frozen=True, tag=True):
    """Coordinator to provider and drawn verifiers: the challenge begins."""

    challenge: ChallengeOpened
    gateways: tuple[str, ...]  # base URLs of the provider's gateway, which serves the proofs


class NonceSent(Struct, frozen=True, tag=True):
    """Verifier to provider: its nonce for a stage, or for the sample (stage 3). The answer comes
    after the provider has it, and so shows the round trip.
    """

    challenge: Hash32
    place: Small  # of the verifier in the challenge
    stage: Small
    nonce: Hash32

    def opened(self) -> StageOpened | SampleOpened:
        if self.stage == STAGES:
            return SampleOpened(self.challenge, self.nonce)
        return StageOpened(self.challenge, self.stage, self.nonce)


class RootsSent(Struct, frozen=True, tag=True):
    """Provider to all verifiers: the roots of one stage of one GPU."""

    committed: StageCommitted


class ProofSent(Struct, frozen=True, tag=True):
    """Provider to all verifiers: its gateway serves the proof of one GPU."""

    challenge: Hash32
    gpu: Small
    cid: str


class RecordSent(Struct, frozen=True, tag=True):
    """Verifier to provider: its signed record of one GPU."""

    record: Envelope[AttestationRecord]


class RefusalSent(Struct, frozen=True, tag=True):
    """Verifier to provider: it signs no record of this challenge."""

    challenge: Hash32
    place: Small
    code: Code
    detail: str  # at most DETAIL_MAX characters


Message = (
    AttestationAsked
    | VerificationAsked
    | ChallengeSent
    | NonceSent
    | RootsSent
    | ProofSent
    | RecordSent
    | RefusalSent
)


class SessionMessage(Struct, frozen=True):
    """What travels: one message with the name of its kind."""

    message: Message


def encode(message: Message) -> bytes:
    return canonical.encode(SessionMessage(message))


def decode(data: bytes) -> Message:
    """Raises `Refused` for bytes that are not canonical."""
    return canonical.decode(SessionMessage, data, MESSAGE_BYTES_MAX).message


def challenge_of(message: Message) -> Hash32 | None:
    """None if the message begins one."""
    match message:
        case NonceSent() | ProofSent() | RefusalSent():
            return message.challenge
        case RootsSent(committed):
            return committed.challenge
        case RecordSent(record):
            return record.message.challenge
        case ChallengeSent(challenge):
            return challenge.digest()
        case _:
            return None
