"""Receipts that a coordinator and providers who help it could sign: every signature is good, and what they say is not.

Whoever assigns a job to a second primary of its choice, to one owner twice, or at other terms than the order's, must show it in a
receipt or show none. From every real receipt these are built with the real keys; `quorate verify` must refuse each.
"""

from collections.abc import Iterator
from dataclasses import replace

from quorate_protocol import audit
from quorate_protocol.commitment import assignment_id, commitment, result_digest
from quorate_protocol.eip712 import digest, struct_hash
from quorate_protocol.envelope import seal
from quorate_protocol.hashing import hash_list, sha256
from quorate_protocol.limits import DRAW_TRIES
from quorate_protocol.messages import CommitEntry
from quorate_protocol.receipt import ExecutionEvidence, Receipt
from quorate_protocol.units import Address, Hash32, Label, Outcome, Price, Seconds, Small
from sim.parties import DOMAIN, key

OWNERS = {key("owner", number).address: number for number in range(8)}
BLIND = Hash32(b"\x0f" * 32)
WORD = 256  # values of the field that numbers a draw's tries


def forgeries(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """(what is wrong, the receipt) for a real one with one auditor."""
    if body.verdict.message.outcome is not Outcome.ACCEPTED or len(body.batches) != 1 or len(body.executions) != 2:
        return
    first, second = body.executions
    primary, auditor = (item.assignment.message.provider for item in (first, second))
    friends = [slot.owner for slot in body.taken_from_chain.eligible if slot.owner not in (primary, auditor)]
    drawn = body.batches[0].message.slots
    if friends:
        yield "a second primary in the auditor's place", _with_auditor(body, friends[0], drawn)
        yield "an auditor from beyond the draw's tries", _with_auditor(body, friends[0], _tries(body, friends[0], DRAW_TRIES, WORD))
    yield "one owner in both places", _with_auditor(body, primary, _tries(body, primary, 0, DRAW_TRIES))
    yield "an auditor that ran something else", _with_auditor(body, auditor, drawn, spec_hash=Hash32(b"\x0c" * 32))
    dear = Price(body.order.message.max_price_per_hour + 1)
    yield "a price above the order's", _with_auditor(body, auditor, drawn, price_per_hour=dear)
    yield "a duration above the spec's", _with_auditor(body, auditor, drawn, max_duration=Seconds(body.spec.max_duration + 1))
    yield "another class", _with_auditor(body, auditor, drawn, host_class=Hash32(b"\x0d" * 32))
    if body.ack.message.rule is Label.QUORUM_2:
        yield "nobody but the primary", _alone(body)


def _tries(body: Receipt, owner: Address, first: int, end: int) -> tuple[Small, ...]:
    """A try of the draw that would be this owner's; the first one when there is none."""
    message, slots = body.batches[0].message, {slot.index: slot.owner for slot in body.taken_from_chain.eligible}
    randomness = sha256(body.beacons[0].signature)
    seed = audit.seed(randomness, message.job_id, message.secret, 0)
    length = body.taken_from_chain.list_length
    found = [attempt for attempt in range(first, end) if slots.get(audit.slot_index(seed, attempt, length)) == owner]
    return (Small(found[0] if found else first),)


def _with_auditor(body: Receipt, owner: Address, slots: tuple[Small, ...], **terms: object) -> Receipt:
    """The auditor's execution as if `owner` had done it at these terms, all of it signed by those who would have to."""
    first, old = body.executions
    operator = key("operator", OWNERS[owner])
    named = replace(old.assignment.message, provider=owner, assignment_id=assignment_id(body.ack.message.job_id, 9, BLIND))
    named = replace(named, **terms)  # type: ignore[arg-type]
    hashed = digest(DOMAIN, named)
    assert old.reveal is not None
    reveal = replace(old.reveal, assignment_hash=hashed, provider=owner)
    result = result_digest(reveal.exit_status, reveal.output_digest)
    commit = replace(old.commit.message, assignment_hash=hashed, commitment=commitment(hashed, owner, reveal.salt, result))
    accept = replace(old.accept.message, assignment_hash=hashed)
    forged = ExecutionEvidence(
        9,
        seal(DOMAIN, named, key("statement").sign),
        seal(DOMAIN, accept, operator.sign),
        seal(DOMAIN, commit, operator.sign),
        reveal,
        operator.address,
    )
    entry = CommitEntry(hashed, owner, digest(DOMAIN, commit))
    return _signed(body, (first, forged), (body.batches[0].message.ordered[0], entry), (body.batches[0].message.blinds[0], BLIND), slots)


def _alone(body: Receipt) -> Receipt:
    message = body.batches[0].message
    return _signed(body, body.executions[:1], message.ordered[:1], message.blinds[:1], ())


def _signed(
    body: Receipt,
    executions: tuple[ExecutionEvidence, ...],
    entries: tuple[CommitEntry, ...],
    blinds: tuple[Hash32, ...],
    slots: tuple[Small, ...],
) -> Receipt:
    """The receipt of these executions, with a CommitSet and a Verdict that fit them."""
    sign = key("statement").sign
    closed = replace(body.batches[0].message, ordered=entries, blinds=blinds, slots=slots)
    reveals = tuple(struct_hash(item.reveal) for item in executions if item.reveal is not None)
    members = tuple(digest(DOMAIN, item.assignment.message) for item in executions)
    verdict = replace(body.verdict.message, group=members, faulted=(), evidence_hash=hash_list(reveals))
    return replace(body, executions=executions, batches=(seal(DOMAIN, closed, sign),), verdict=seal(DOMAIN, verdict, sign))
