"""Messages of a challenge and attestation documents have one form, and refuse any other."""

import pytest

from quorate_attestation import attestation_document, session_messages
from quorate_attestation.attestation_document import AttestationDocument, GpuEvidence
from quorate_attestation.challenge import STAGES, SampleOpened, StageCommitted, StageOpened
from quorate_attestation.session_messages import (
    AttestationAsked,
    ChallengeSent,
    Message,
    NonceSent,
    ProofSent,
    RecordSent,
    RefusalSent,
    RootsSent,
    VerificationAsked,
)
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Round, Signature, Small
from quorate_protocol.values import replace
from support.attestation.challenges import account, challenge, nonce, nonces
from support.attestation.scene import Scene, claims, open_challenge

OPENED = challenge(gpus=2)
DIGEST = OPENED.digest()


def record() -> Envelope[AttestationRecord]:
    scene = Scene(open_challenge(claims()))
    scene.run()
    return scene.record(0, 0)


def every_message() -> tuple[Message, ...]:
    return (
        AttestationAsked(nonce(1), OPENED.gpus),
        VerificationAsked(account(1), Round(9)),
        ChallengeSent(OPENED, ("http://127.0.0.1:7710",)),
        NonceSent(DIGEST, Small(0), Small(1), nonce(1)),
        RootsSent(StageCommitted(DIGEST, Small(0), Small(0), nonces(3, "a"), nonces(2, "b"))),
        ProofSent(DIGEST, Small(0), document_cid(b"proof")),
        RecordSent(record()),
        RefusalSent(DIGEST, Small(0), Code.BAD_AMOUNT, "too slow"),
    )


def test_messages_survive_the_way_through_a_frame() -> None:
    messages = every_message()
    assert {type(message) for message in messages} == set(Message.__args__)
    for message in messages:
        frame = frames.encode(frames.AttestationSent(session_messages.encode(message)))
        back = frames.decode(frame)
        assert isinstance(back, frames.AttestationSent)
        assert session_messages.decode(back.body) == message


def test_a_message_names_its_challenge() -> None:
    named = [session_messages.challenge_of(message) for message in every_message()]
    assert named[:2] == [None, None]
    assert set(named[2:6]) | {named[7]} == {DIGEST}
    assert named[6] == record().message.challenge


def test_a_nonce_of_the_last_stage_opens_the_sample() -> None:
    sent = NonceSent(DIGEST, Small(0), Small(STAGES), nonce(1))
    assert sent.opened() == SampleOpened(DIGEST, nonce(1))
    assert replace(sent, stage=Small(1)).opened() == StageOpened(DIGEST, Small(1), nonce(1))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"message":{"kind":"Nothing"}}', b"\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        session_messages.decode(data)
    with pytest.raises(Refused):
        attestation_document.decode(data)


@pytest.mark.rule("10.20")
def test_an_attestation_document_has_records_of_one_challenge() -> None:
    one = GpuEvidence("GPU-0", document_cid(b"proof"), (record(),))
    document = AttestationDocument((one,))
    assert attestation_document.decode(document.encode()) == document
    other = Envelope(
        replace(one.records[0].message, challenge=nonce(1)), Signature(one.records[0].sig)
    )
    bad = {
        Code.MALFORMED: [
            AttestationDocument(()),
            AttestationDocument((one, one)),
            AttestationDocument((replace(one, records=()),)),
            AttestationDocument((one,), version=2),
        ],
        Code.STALE: [AttestationDocument((replace(one, records=(one.records[0], other)),))],
    }
    for code, documents in bad.items():
        for item in documents:
            with pytest.raises(Refused) as refused:
                attestation_document.decode(item.encode())
            assert refused.value.code is code
