"""False receipts of fast jobs: every signature is good, and the draw is not what the Ack fixed."""

from collections.abc import Iterator

from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import DRAW_TRIES
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import BeaconEvidence, Receipt
from quorate_protocol.messages.signed import Witness
from quorate_protocol.rules import audit_draw
from quorate_protocol.units import ZERO_HASH, Address, Label, Outcome, Round, Small, VerifyTier
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from sim.parties import DOMAIN, beacon_signature, key

ROUNDS_SEARCHED = 64


def is_fast(tier: VerifyTier, rule: Label) -> bool:
    """Whether the beacon draws the first execution too."""
    return tier is VerifyTier.QUORUM_2_FAST and rule is Label.QUORUM_2


def forgeries(body: Receipt, eligible: EligibleList) -> Iterator[tuple[str, Receipt]]:
    """Pairs (what is wrong, false receipt) made from a real one that two owners agreed on."""
    message, witness = body.batches[0].message, body.witness
    if body.verdict.message.outcome is not Outcome.ACCEPTED or len(message.slots) != 2:
        return
    assert witness is not None, "5.165: a fast receipt without a witness"
    unseen = replace(message, witness_hash=ZERO_HASH)
    yield (
        "a fast job whose Ack nobody countersigned",
        replace(body, witness=None, batches=(seal(DOMAIN, unseen, _STATEMENT), *body.batches[1:])),
    )
    primary = replace(witness.message, commit_hash=body.executions[0].commit.digest(DOMAIN))
    yield "a witness of a commit in a fast job", _witnessed(body, primary)
    alone = replace(message, slots=message.slots[1:])
    yield "a fast job with a matched execution", _closed(body, alone)
    others = range(message.beacon_round - ROUNDS_SEARCHED, message.beacon_round)
    for number in others:
        forged = _drawn_by(body, eligible, Round(number))
        if forged is not None:
            yield "a fast job drawn by a round that was known at its Ack", forged
            return


def _drawn_by(body: Receipt, eligible: EligibleList, number: Round) -> Receipt | None:
    """The same executions as if another round had drawn them, with the client's help; None if it
    does not draw them.
    """
    message, witness = body.batches[0].message, body.witness
    assert witness is not None
    signature = beacon_signature(number)
    seed = audit_draw.seed(sha256(signature), message.job_id, message.secret, 0)
    ran = [item.assignment.message.provider for item in body.executions[:2]]
    found = list(audit_draw.draw(seed, eligible.length, eligible, [], 0, DRAW_TRIES))[:2]
    if [item.slot.owner for item in found] != ran or body.skips:
        return None
    slots = tuple(Small(item.attempt) for item in found)
    met = audit_draw.touched(seed, slots, eligible.length)
    body = _witnessed(body, replace(witness.message, beacon_round=number))
    closed = replace(body.batches[0].message, beacon_round=number, slots=slots)
    beacons = (BeaconEvidence(number, signature), *body.beacons[1:])
    if len(body.batches) > 1:
        return None
    return _closed(replace(body, beacons=beacons, slots=eligible.show(met)), closed)


def _witnessed(body: Receipt, witness: Witness) -> Receipt:
    """The client signs another Witness."""
    signed = seal(DOMAIN, witness, _session_key(body.session.message.session_key).sign)
    closed = replace(body.batches[0].message, witness_hash=signed.digest(DOMAIN))
    return _closed(replace(body, witness=signed), closed)


def _closed(body: Receipt, message: object) -> Receipt:
    first = seal(DOMAIN, message, _STATEMENT)  # type: ignore[type-var]
    return replace(body, batches=(first, *body.batches[1:]))  # type: ignore[arg-type]


def _session_key(address: Address) -> KeySigner:
    return next(one for n in range(8) if (one := key("session", n)).address == address)


_STATEMENT = key("statement").sign
