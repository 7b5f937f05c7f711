"""Builds false receipts that a coordinator and helping providers could sign.

Every signature is good, and the content is wrong. A coordinator may assign a job to a second
primary of its choice, to one owner twice, or at other terms than the order's. Then it must show
that in a receipt or show none. These receipts are built from every real one with the real keys, and
`quorate verify` must refuse each.
"""

from collections.abc import Iterator
from functools import partial

from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import DRAW_TRIES, TIERS
from quorate_protocol.messages.commitment import assignment_id, commitment, result_digest
from quorate_protocol.messages.eligible_list import EligibleList, ShownSlot
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt, RegisteredProvider
from quorate_protocol.messages.signed import CommitEntry
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules import audit_draw
from quorate_protocol.units import (
    KILLED,
    ZERO_HASH,
    Address,
    BlockNumber,
    ExitStatus,
    Hash32,
    Label,
    Outcome,
    Ppm,
    Price,
    Round,
    Seconds,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from sim import forgery_fast, forgery_terms
from sim.parties import DOMAIN, key
from support.receipts import verdict_again

OWNERS = {key("owner", number).address: number for number in range(8)}
BLIND = Hash32(b"\x0f" * 32)
WORD = 256  # values of the field that numbers a draw's tries


def forgeries(body: Receipt, eligible: EligibleList) -> Iterator[tuple[str, Receipt]]:
    """Pairs (what is wrong, false receipt) made from a real receipt, with a Verdict that names the
    false evidence.

    The real one has one auditor, drawn from this list, or a dispute.
    """
    for wrong, forged in (*_forgeries(body, eligible), *forgery_terms.forgeries(body)):
        yield wrong, verdict_again(forged, DOMAIN, key("statement").sign)
    yield from forgery_terms.altered(body)


def _forgeries(body: Receipt, eligible: EligibleList) -> Iterator[tuple[str, Receipt]]:
    yield from _of_moments(body)
    if forgery_fast.is_fast(body.order.message.verify_tier, body.ack.message.rule):
        yield from forgery_fast.forgeries(body, eligible)
        return
    if (
        body.verdict.message.outcome is not Outcome.ACCEPTED
        or len(body.batches) != 1
        or len(body.executions) != 2
    ):
        return
    first, second = body.executions
    primary, auditor = (item.assignment.message.provider for item in (first, second))
    friends = [slot.owner for slot in eligible if slot.owner not in (primary, auditor)]
    drawn = body.batches[0].message.slots
    with_auditor = partial(_with_auditor, body, eligible)
    if friends:
        yield "a second primary in the auditor's place", with_auditor(friends[0], drawn)
        beyond = _tries(body, eligible, friends[0], DRAW_TRIES, WORD)
        yield "an auditor from beyond the draw's tries", with_auditor(friends[0], beyond)
        yield from _of_a_friend(body, eligible, friends[0])
    yield (
        "one owner in both places",
        with_auditor(primary, _tries(body, eligible, primary, 0, DRAW_TRIES)),
    )
    yield (
        "an auditor that ran something else",
        with_auditor(auditor, drawn, spec_hash=Hash32(b"\x0c" * 32)),
    )
    yield (
        "a price above the order's",
        with_auditor(
            auditor, drawn, price_per_hour=Price(body.order.message.max_price_per_hour + 1)
        ),
    )
    yield (
        "a duration above the spec's",
        with_auditor(
            auditor, drawn, max_duration=Seconds(first.assignment.message.max_duration + 1)
        ),
    )
    yield "another class", with_auditor(auditor, drawn, pool=Hash32(b"\x0d" * 32))
    if body.ack.message.rule is Label.QUORUM_2:
        yield "nobody but the primary", _alone(body)
    yield from _of_seeds(body, eligible)
    yield from _of_verdicts(body)
    yield from _of_slots(body, eligible)
    yield from _of_parties(body)


def _of_a_friend(
    body: Receipt, eligible: EligibleList, friend: Address
) -> Iterator[tuple[str, Receipt]]:
    """A chosen provider is made the auditor, and what the draw really met is hidden."""
    tried = _tries(body, eligible, friend, 0, DRAW_TRIES)
    forged, met = _with_auditor(body, eligible, friend, tried), _met(body, tried, eligible.length)
    theirs = next(slot for slot in eligible if slot.owner == friend)
    if met[-1] != met[0]:
        yield "no try before the friend's", replace(forged, slots=eligible.show(met[-1:]))
    # As if the first try had met the chosen provider: its own slot with its own proof, then both
    # moved to that index.
    first, (shown,) = (
        _with_auditor(body, eligible, friend, (Small(0),)),
        eligible.show([theirs.index]),
    )
    there = eligible.get(met[0])
    if there is None or there.owner != friend:
        yield "a friend's slot for another index", replace(first, slots=(shown,))
        moved = ShownSlot(replace(theirs, index=met[0]), replace(shown.proof, index=met[0]))
        yield "a friend's proof moved to another index", replace(first, slots=(moved,))
        (honest,) = eligible.show(met[:1])
        yield (
            "a friend's slot under another's proof",
            replace(first, slots=(ShownSlot(moved.slot, honest.proof),)),
        )
    lone = EligibleList([replace(theirs, index=0)], 1)
    chain = replace(first.taken_from_chain, list_lengths=(1,))
    yield "a list of friends only", replace(first, slots=lone.show([0]), taken_from_chain=chain)


def _of_seeds(body: Receipt, eligible: EligibleList) -> Iterator[tuple[str, Receipt]]:
    """Another seed is searched until the beacon draws the wanted auditor."""
    auditor, sign = body.executions[1].assignment.message.provider, key("statement").sign
    for wrong, changes in (
        ("a draw for another job", {"job_id": Hash32(b"\x0d" * 32)}),
        ("a first batch that is no first", {"batch": Small(7)}),
    ):
        closed = replace(body.batches[0].message, **changes)  # type: ignore[arg-type]
        moved = replace(body, batches=(seal(DOMAIN, closed, sign),))
        wanted = (
            [auditor]
            if closed.batch == 0
            else [body.executions[0].assignment.message.provider, auditor]
        )
        tries = tuple(
            attempt for owner in wanted for attempt in _tries(moved, eligible, owner, 0, DRAW_TRIES)
        )
        yield wrong, _with_auditor(moved, eligible, auditor, tries)
    if body.witness is not None:
        other = replace(
            body.witness.message, beacon_round=Round(body.witness.message.beacon_round + 1)
        )
        yield (
            "a draw by another round than was witnessed",
            replace(body, witness=seal(DOMAIN, other, _session_key(body).sign)),
        )


def _of_moments(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """The round by which a dispute continues does not follow from the closing time before it."""
    timing, (first, *later) = body.timing, [batch.message for batch in body.batches]
    if not first.beacon_round:
        return
    dated = {"a batch closed before its round": timing.appears_at(first.beacon_round) - 1}
    if later:
        dated["a dispute that goes on by a round before its reveals were due"] = timing.appears_at(
            later[0].beacon_round
        )
        dated["a dispute that goes on by a round of long after"] = (
            first.closed_at - timing.period - timing.max_hold
        )
    for wrong, moment in dated.items():
        closed = replace(first, closed_at=UnixSeconds(moment))
        yield (
            wrong,
            replace(body, batches=(seal(DOMAIN, closed, key("statement").sign), *body.batches[1:])),
        )


def _of_verdicts(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """The executions are real, but the verdict does not follow from them."""
    sign, said = key("statement").sign, body.verdict.message
    lies: dict[str, dict[str, object]] = {
        "a batch that is not shown": {"batches": Small(said.batches + 1)}
    }
    if len(said.group) == 2:
        lies["one execution counted twice"] = {"group": (said.group[0], said.group[0])}
        lies["the auditor in the primary's place"] = {"group": said.group[::-1]}
    for wrong, changes in lies.items():
        yield wrong, replace(body, verdict=seal(DOMAIN, replace(said, **changes), sign))  # type: ignore[arg-type]
    if body.ack.message.rule is Label.ADAPTIVE:
        rarer = replace(
            body.batches[0].message, audit_ppm=Ppm(TIERS[body.order.message.verify_tier].p_min - 1)
        )
        yield "a rate below the tier's", _alone(replace(body, batches=(seal(DOMAIN, rarer, sign),)))
        yield "a time-out that nobody looked at", _alone(_ending(body, 0, KILLED[0]))
        apart = _ending(body, 1, ExitStatus(3))
        said = replace(
            apart.verdict.message,
            group=apart.verdict.message.group[:1],
            faulted=apart.verdict.message.group[1:],
        )
        yield (
            "one execution against as good a one",
            replace(apart, verdict=seal(DOMAIN, said, sign)),
        )


def _ending(body: Receipt, number: int, status: ExitStatus) -> Receipt:
    """The receipt as if one execution had been committed and opened with another exit status."""
    old, entries = body.executions[number], list(body.batches[0].message.ordered)
    assert old.reveal is not None
    reveal = replace(old.reveal, exit_status=status)
    bound = commitment(
        entries[number].assignment_hash,
        reveal.provider,
        reveal.salt,
        result_digest(status, reveal.output_digest),
    )
    commit = replace(old.commit.message, commitment=bound)
    entries[number] = replace(entries[number], commit_hash=digest(DOMAIN, commit))
    again = replace(
        old,
        commit=seal(DOMAIN, commit, key("operator", OWNERS[reveal.provider]).sign),
        commit_receipt=seal(
            DOMAIN,
            replace(old.commit_receipt.message, commit_hash=digest(DOMAIN, commit)),
            key("statement").sign,
        ),
        reveal=reveal,
    )
    executions = tuple(again if item is old else item for item in body.executions)
    return _signed(
        replace(body, witness=None),
        executions,
        tuple(entries),
        body.batches[0].message.blinds,
        body.batches[0].message.slots,
    )


def _session_key(body: Receipt) -> KeySigner:
    keys = (key("session", number) for number in range(8))
    return next(one for one in keys if one.address == body.session.message.session_key)


def _of_slots(body: Receipt, eligible: EligibleList) -> Iterator[tuple[str, Receipt]]:
    """The executions are real, but the shown part of the list is not."""
    for number, item in enumerate(body.slots):
        rest = (*body.slots[:number], *body.slots[number + 1 :])
        yield "a try that is not shown", replace(body, slots=rest)
        hidden = (
            ShownSlot(None, item.proof)
            if item.slot is not None
            else ShownSlot(eligible.slots[0], item.proof)
        )
        yield "nobody where somebody is, or the reverse", _with_slot(body, number, hidden)
        yield (
            "a proof of another place",
            _with_slot(
                body, number, replace(item, proof=replace(item.proof, index=item.proof.index + 1))
            ),
        )
        yield (
            "a proof of a longer list",
            _with_slot(
                body, number, replace(item, proof=replace(item.proof, count=item.proof.count + 1))
            ),
        )
        if item.slot is not None:
            elsewhere = replace(item.slot, network=Hash32(b"\x0e" * 32))
            yield (
                "a slot of another network than at the Ack",
                _with_slot(body, number, replace(item, slot=elsewhere)),
            )
    length = eligible.length
    other = next(
        (
            index
            for index in range(length)
            if index not in {item.proof.index for item in body.slots}
        ),
        None,
    )
    if other is not None:
        more = sorted((*body.slots, *eligible.show([other])), key=lambda item: item.proof.index)
        yield "a slot that no try met", replace(body, slots=tuple(more))
    longer = EligibleList(eligible.slots, length + 1)
    shown = longer.show(_met(body, body.batches[0].message.slots, length + 1))
    yield (
        "a longer list",
        replace(
            body,
            slots=shown,
            taken_from_chain=replace(body.taken_from_chain, list_lengths=(length + 1,)),
        ),
    )


def _with_slot(body: Receipt, number: int, item: ShownSlot) -> Receipt:
    return replace(body, slots=(*body.slots[:number], item, *body.slots[number + 1 :]))


def _of_parties(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """Primary and auditor belong together, or are declared as if not."""
    primary, auditor = body.taken_from_chain.parties

    def of(*parties: RegisteredProvider) -> Receipt:
        return replace(body, taken_from_chain=replace(body.taken_from_chain, parties=parties))

    yield "one network for both", of(replace(primary, network=auditor.network), auditor)
    yield "one payout for both", of(replace(primary, payout=auditor.payout), auditor)
    yield (
        "an auditor of another network than its slot",
        of(primary, replace(auditor, network=Hash32(b"\x0e" * 32))),
    )
    yield "nobody said of the primary", of(auditor)


def _met(body: Receipt, slots: tuple[Small, ...], length: int) -> list[int]:
    """Indices that the draw of the first batch meets up to the last of these tries."""
    message = body.batches[0].message
    seed = audit_draw.seed(
        sha256(body.beacons[0].signature), message.job_id, message.secret, message.batch
    )
    return audit_draw.touched(seed, slots, length)


def _tries(
    body: Receipt, eligible: EligibleList, owner: Address, first: int, end: int
) -> tuple[Small, ...]:
    """A try of the draw that would draw this owner; the first try when there is none."""
    met = _met(body, (Small(end - 1),), eligible.length)
    places = ((attempt, eligible.get(met[attempt])) for attempt in range(first, end))
    return (
        Small(
            next(
                (attempt for attempt, slot in places if slot is not None and slot.owner == owner),
                first,
            )
        ),
    )


def _with_auditor(
    body: Receipt, eligible: EligibleList, owner: Address, slots: tuple[Small, ...], **terms: object
) -> Receipt:
    """The receipt as if `owner` had done the audit at these terms, with all signatures."""
    first, old = body.executions
    theirs = next(slot for slot in (*eligible.slots, *_as_slots(body)) if slot.owner == owner)
    known = RegisteredProvider(
        owner, key("operator", OWNERS[owner]).address, theirs.payout, theirs.network
    )
    chain = replace(body.taken_from_chain, parties=(body.taken_from_chain.parties[0], known))
    body = replace(
        body, slots=eligible.show(_met(body, slots, eligible.length)), taken_from_chain=chain
    )
    operator = key("operator", OWNERS[owner])
    named = replace(
        old.assignment.message,
        provider=owner,
        assignment_id=assignment_id(body.ack.message.job_id, 9, BLIND),
    )
    named = replace(named, **terms)  # type: ignore[arg-type]
    hashed = digest(DOMAIN, named)
    assert old.reveal is not None
    reveal = replace(old.reveal, assignment_hash=hashed, provider=owner)
    result = result_digest(reveal.exit_status, reveal.output_digest)
    commit = replace(
        old.commit.message,
        assignment_hash=hashed,
        commitment=commitment(hashed, owner, reveal.salt, result),
    )
    accept = replace(old.accept.message, assignment_hash=hashed)
    stored = replace(old.commit_receipt.message, commit_hash=digest(DOMAIN, commit))
    forged = ExecutionEvidence(
        9,
        seal(DOMAIN, named, key("statement").sign),
        seal(DOMAIN, accept, operator.sign),
        seal(DOMAIN, commit, operator.sign),
        seal(DOMAIN, stored, key("statement").sign),
        reveal,
        operator.address,
    )
    entry = CommitEntry(hashed, owner, digest(DOMAIN, commit))
    return _signed(
        body,
        (first, forged),
        (body.batches[0].message.ordered[0], entry),
        (body.batches[0].message.blinds[0], BLIND),
        slots,
    )


def _as_slots(body: Receipt) -> list[StakeSlot]:
    """The parties of a receipt as slots, although they may have no eligible slot."""
    parties = body.taken_from_chain.parties
    return [
        StakeSlot(-1, item.owner, item.operator_key, item.payout, item.network, BlockNumber(0))
        for item in parties
    ]


def _alone(body: Receipt) -> Receipt:
    message, chain = body.batches[0].message, body.taken_from_chain
    body = replace(body, slots=(), taken_from_chain=replace(chain, parties=chain.parties[:1]))
    return _signed(body, body.executions[:1], message.ordered[:1], message.blinds[:1], ())


def _signed(
    body: Receipt,
    executions: tuple[ExecutionEvidence, ...],
    entries: tuple[CommitEntry, ...],
    blinds: tuple[Hash32, ...],
    slots: tuple[Small, ...],
) -> Receipt:
    """The receipt of these executions, with a CommitSet and a Verdict that match them."""
    sign = key("statement").sign
    witness = body.witness.digest(DOMAIN) if body.witness is not None else ZERO_HASH
    closed = replace(
        body.batches[0].message, ordered=entries, blinds=blinds, slots=slots, witness_hash=witness
    )
    members = tuple(digest(DOMAIN, item.assignment.message) for item in executions)
    verdict = replace(body.verdict.message, group=members, faulted=())
    return replace(
        body,
        executions=executions,
        batches=(seal(DOMAIN, closed, sign),),
        verdict=seal(DOMAIN, verdict, sign),
    )
