"""Checks a receipt's draws: rounds, seeds, tries, audit rates, and the slots that the tries met.

Each try of a draw is accounted for: its slot is not eligible, belongs to somebody who has an
execution, was drawn, or was skipped with a signed Assignment. So a coordinator cannot pass over a
provider in silence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import DRAW_TRIES, EXECUTIONS_MAX, SILENT_SKIPS_MAX, TIERS
from quorate_protocol.messages.eligible_list import place_in
from quorate_protocol.messages.receipt import Check, Receipt, SkipEvidence
from quorate_protocol.messages.signed import Assignment, CommitSet
from quorate_protocol.messages.stake_slot import FOREVER, StakeSlot
from quorate_protocol.rules import audit_draw, orders
from quorate_protocol.rules.audit_draw import Party, Skipped
from quorate_protocol.rules.receipts.repeat_batch import drawn_batches, is_repeat
from quorate_protocol.units import (
    KILLED,
    PPM_ONE,
    ZERO_ADDRESS,
    ZERO_HASH,
    Hash32,
    Label,
    Outcome,
    Round,
)

VerifyRound = Callable[[bytes, int, bytes], bool]
"""Whether the beacon signed a round. Arguments: public key, number of the round, signature."""

ALL_TRIES = range(DRAW_TRIES * audit_draw.DRAW_PASSES)
"""The tries of a draw of a later batch that finds nobody and that no silence ends."""


class _Draw(Struct, frozen=True):
    """One draw: its seed, and the tries that the receipt must show."""

    batch: int
    seed: Hash32
    taken: tuple[int, ...]  # tries that gave auditors, in order of the CommitSet's entries
    tries: Sequence[int]


class _Walk(Struct, frozen=True):
    """What the tries of one draw met."""

    problem: str  # "" when every try is accounted for
    drawn: list[StakeSlot]  # slots of the auditors, in order of the CommitSet's entries
    skips: list[Skipped]


def tries_of(
    message: CommitSet, seed: Hash32, skips: Sequence[Skipped], wanted: int = 1
) -> list[int]:
    """The tries of a closed batch's draw that its receipt shows. If the beacon wanted an audit and
    the first draw found fewer than `wanted`, they are those of a whole pass.
    """
    is_short = (
        message.batch == 0
        and len(message.slots) < wanted
        and audit_draw.is_audited(seed, message.audit_ppm)
    )
    return audit_draw.tries_in(skips, message.slots, message.batch, empty_passes=int(is_short))


def is_fast(receipt: Receipt) -> bool:
    """Whether no primary was matched: the beacon drew all of the first batch."""
    return orders.is_fast(receipt.order.message, receipt.ack.message.rule)


def _wanted(receipt: Receipt, batch: int) -> int:
    """The most executions that the draw of a batch asks for at once."""
    if batch == 0:
        return orders.first_draw(receipt.order.message, receipt.ack.message.rule)
    return EXECUTIONS_MAX if receipt.ack.message.rule is Label.ADAPTIVE else 1


def checks(receipt: Receipt, domain: Domain, verify_round: VerifyRound) -> Iterator[Check]:
    randomness = {}
    for number, beacon in enumerate(receipt.beacons):
        good = verify_round(receipt.beacon_key, beacon.round, beacon.signature)
        randomness[beacon.round] = sha256(beacon.signature)
        yield Check(f"signature:beacon[{number}]", good, f"round {beacon.round}")
    rounds = [batch.message.beacon_round for batch in receipt.batches]
    last = 0 if is_round_missing(receipt) else receipt.exhausted_by
    used = [number for number in (*rounds, last) if number]
    yield Check(
        "beacons", [item.round for item in receipt.beacons] == used, "one round for each draw"
    )
    touched: set[int] = set()
    skips: list[Skipped] = []
    members = 0
    for number, batch in enumerate(receipt.batches):
        message = batch.message
        first, members = members, members + len(message.ordered)
        if number > 0 and is_repeat(message):
            continue
        if message.beacon_round == 0:
            yield _undrawn(receipt, number)
            continue
        if message.beacon_round not in randomness:
            yield Check(f"draw[{number}]", False, f"beacon round {message.beacon_round} is missing")
            continue
        draw = _draw_of(receipt, message, randomness[message.beacon_round])
        touched.update(_indices(receipt, draw))
        matched = first + (number == 0 and not is_fast(receipt))
        walk = _walk(receipt, draw, receipt.taken_from_chain.parties[:matched], skips)
        skips = walk.skips
        yield from _drawn(receipt, number, draw, walk, members)
    yield from _exhausted(receipt, randomness, touched, skips)
    yield from _shown(receipt, touched)
    yield from _rounds(receipt)
    yield from _witnessed(receipt, domain, rounds)


def _undrawn(receipt: Receipt, number: int) -> Check:
    """Checks the batch of a job that its client stopped, or that nobody verifies. An execution that
    was cut short cannot be repeated, so no auditor is drawn.
    """
    message, verdict = receipt.batches[number].message, receipt.verdict.message
    alone = (
        (verdict.outcome is Outcome.LAPSED or verdict.label is Label.UNVERIFIED)
        and not message.slots
        and not message.audit_ppm
        and 1 <= len(message.ordered) <= (2 if is_fast(receipt) else 1)
        and len(receipt.batches) == 1
        and not receipt.skips
    )
    return Check(
        f"draw[{number}]",
        alone,
        "only a stopped or unverified job has no draw, and it has one batch",
    )


def _draw_of(receipt: Receipt, message: CommitSet, randomness: bytes) -> _Draw:
    seed = audit_draw.seed(randomness, message.job_id, message.secret, message.batch)
    tries = tries_of(message, seed, _skips(receipt), _wanted(receipt, 0))
    return _Draw(message.batch, seed, message.slots, tries)


def _skips(receipt: Receipt) -> list[Skipped]:
    """The receipt's skips, with the slots that its tries met. A forged one may have none."""
    nobody = StakeSlot(-1, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_HASH, FOREVER)
    slots = {item.slot.owner: item.slot for item in receipt.slots if item.slot is not None}
    return [
        Skipped(
            skip.batch,
            skip.attempt,
            slots.get(skip.assignment.message.provider, nobody),
            skip.decline is not None,
        )
        for skip in receipt.skips
    ]


def _drawn(
    receipt: Receipt, number: int, draw: _Draw, walk: _Walk, members: int
) -> Iterator[Check]:
    message = receipt.batches[number].message
    theirs = slice(members - len(walk.drawn), members)
    is_theirs = (
        _are_parties(receipt.taken_from_chain.parties[theirs], walk.drawn)
        and len(message.ordered) == len(walk.drawn) + (number == 0 and not is_fast(receipt))
        and all(
            _is_of_slot(receipt, item.assignment.message, slot)
            for item, slot in zip(receipt.executions[theirs], walk.drawn, strict=False)
        )
    )
    yield Check(
        f"draw[{number}]",
        is_theirs and not walk.problem,
        walk.problem or "the drawn slots are those of the auditors",
    )
    passes = {audit_draw.pass_of(attempt) for attempt in message.slots}
    tries = (
        len(set(message.slots)) == len(message.slots)
        and passes <= ({0} if number == 0 else {0, 1})
        and len(passes) <= 1
        and (number > 0 or message.slots == tuple(sorted(message.slots)))
        and (number > 0 or is_fast(receipt)) <= len(message.slots) <= _wanted(receipt, number)
    )
    yield Check(f"tries[{number}]", tries, f"distinct tries of one pass of {DRAW_TRIES}")
    audited = audit_draw.is_audited(draw.seed, message.audit_ppm) or number > 0
    is_rate = _least_rate(receipt) <= message.audit_ppm <= PPM_ONE and (
        audited or not message.slots
    )
    yield Check(
        f"rate[{number}]",
        is_rate and message.audit_ppm == receipt.batches[0].message.audit_ppm,
        f"auditPpm {message.audit_ppm}, at least {_least_rate(receipt)}, and one for all batches",
    )


def _are_parties(parties: Sequence[Party], drawn: Sequence[StakeSlot]) -> bool:
    return [(one.owner, one.payout, one.network) for one in parties] == [
        (slot.owner, slot.payout, slot.network) for slot in drawn
    ]


def _is_of_slot(receipt: Receipt, assignment: Assignment, slot: StakeSlot) -> bool:
    """Whether it names provider and pool of the slot. In another pool an owner has to decline."""
    number, _ = place_in(receipt.taken_from_chain.list_lengths, slot.index)
    return (assignment.provider, assignment.pool) == (slot.owner, receipt.pools[number].id())


def _indices(receipt: Receipt, draw: _Draw) -> list[int]:
    return audit_draw.indices_of(draw.seed, draw.tries, receipt.taken_from_chain.list_length)


def _walk(
    receipt: Receipt, draw: _Draw, before: Sequence[Party], earlier: Sequence[Skipped]
) -> _Walk:
    """Repeats a draw try by try. `before` are those who had an execution, `earlier` all skips."""
    shown = {item.proof.index: item.slot for item in receipt.slots}
    skipped = {int(skip.attempt): skip for skip in receipt.skips if skip.batch == draw.batch}
    taken: list[Party] = list(before)
    drawn: dict[int, StakeSlot] = {}
    skips, problem = list(earlier), ""
    for attempt, index in zip(draw.tries, _indices(receipt, draw), strict=False):
        slot = shown.get(index)
        here = audit_draw.excluded_by(skips, draw.batch, audit_draw.pass_of(attempt))
        is_nobody = slot is None or audit_draw.is_taken(slot, [*taken, *here])
        skip = skipped.pop(attempt, None)
        if slot is None or is_nobody:
            if skip is not None or attempt in draw.taken:
                problem = f"try {attempt} met nobody who could be drawn"
        elif skip is None and attempt not in draw.taken:
            problem = f"try {attempt} passed over a provider without a signed Assignment"
        elif skip is not None and (
            attempt in draw.taken or not _is_of_slot(receipt, skip.assignment.message, slot)
        ):
            problem = f"try {attempt} met another provider or pool than the skipped Assignment's"
        elif skip is not None:
            skips.append(Skipped(draw.batch, attempt, slot, skip.decline is not None))
        else:
            taken.append(slot)
            drawn[attempt] = slot
    if skipped:
        problem = "a skip belongs to no try of its draw"
    problem = problem or _silence(receipt, draw, skips)
    slots = [drawn[attempt] for attempt in draw.taken if attempt in drawn]
    return _Walk(problem, slots, skips)


def _silence(receipt: Receipt, draw: _Draw, skips: Sequence[Skipped]) -> str:
    """Says in which pass a coordinator claimed more silence than ends a draw; "" if in none. A draw
    for several auditors asks them at once, so that many may be silent together.
    """
    wanted = _wanted(receipt, draw.batch)
    is_adaptive = wanted == EXECUTIONS_MAX
    for number in range(audit_draw.DRAW_PASSES):
        silent = [
            skip
            for skip in skips
            if (skip.batch, audit_draw.pass_of(skip.attempt)) == (draw.batch, number)
            and not skip.has_declined
        ]
        taken = sum(audit_draw.pass_of(attempt) == number for attempt in draw.taken)
        if len(silent) > SILENT_SKIPS_MAX + wanted - (0 if is_adaptive else taken):
            return f"{len(silent)} providers are claimed to be silent, more than end a draw"
    return ""


def _exhausted(
    receipt: Receipt, randomness: Mapping[Round, bytes], touched: set[int], skips: Sequence[Skipped]
) -> Iterator[Check]:
    """Checks the last draw, if it found nobody: none of its tries gave a further provider."""
    number = len(receipt.batches)
    if not receipt.exhausted_by:
        is_bound = all(skip.batch < number for skip in receipt.skips)
        yield Check("skips", is_bound, "each skip belongs to a draw of the receipt")
        return
    if receipt.batches and is_round_missing(receipt):
        # That it did not appear is the coordinator's word, as silence is (PROTOCOL 5.21).
        end = receipt.timing.appears_at(receipt.exhausted_by) + receipt.timing.max_hold
        yield Check(
            "missing round",
            receipt.verdict.message.time >= end and all(s.batch < number for s in receipt.skips),
            f"beacon round {receipt.exhausted_by} was missing for {receipt.timing.max_hold} s, "
            "as the coordinator says",
        )
        return
    if receipt.exhausted_by not in randomness or not receipt.batches:
        yield Check("exhausted", False, "the last draw has no batch before it, or no round")
        return
    last = receipt.batches[-1].message
    seed = audit_draw.seed(randomness[receipt.exhausted_by], last.job_id, last.secret, number)
    tries = audit_draw.tries_in(_skips(receipt), (), number, audit_draw.DRAW_PASSES)
    draw = _Draw(number, seed, (), tries)
    touched.update(_indices(receipt, draw))
    walk = _walk(receipt, draw, receipt.taken_from_chain.parties, skips)
    is_bound = all(skip.batch <= number for skip in receipt.skips)
    yield Check(
        "exhausted",
        not walk.problem and is_bound,
        walk.problem or "no try of the last draw gave a further provider",
    )


def _witnessed(receipt: Receipt, domain: Domain, rounds: list[Round]) -> Iterator[Check]:
    """Checks that the receipt shows the witness that the first CommitSet names, or none. The
    providers have that CommitSet, and the client knows what it witnessed.
    """
    shown = receipt.witness.digest(domain) if receipt.witness is not None else ZERO_HASH
    named = [batch.message.witness_hash for batch in receipt.batches]
    yield Check(
        "witness:set",
        named == [shown if number == 0 else ZERO_HASH for number in range(len(named))]
        and (receipt.witness is None or bool(named)),
        "the first CommitSet names the witness that the receipt shows",
    )
    yield Check(
        "witness:fast",
        receipt.witness is not None or not is_fast(receipt),
        "the client countersigned the Ack of a fast job before anybody was drawn",
    )
    if receipt.witness is not None and receipt.executions:
        witness = receipt.witness.message
        seen = digest(domain, receipt.executions[0].commit.message)
        yield Check(
            "witness:commit",
            witness.commit_hash == (ZERO_HASH if is_fast(receipt) else seen),
            "the witness saw the primary's commit; of a fast job it saw none",
        )
        yield Check(
            "witness:ack",
            witness.ack_hash == receipt.ack.digest(domain),
            "the witness knew this Ack",
        )
        yield Check(
            "witness:round",
            rounds[:1] in ([witness.beacon_round], [0]),
            "the first draw uses the round that the witness names",
        )


def _rounds(receipt: Receipt) -> Iterator[Check]:
    """Checks that each batch is drawn by the round that follows from what was signed before.

    A coordinator that could choose the round would wait for one that draws its friends. Batch 0 is
    drawn by the round that the primary names, and that of a fast job by the one that follows from
    its Ack. A later one is drawn by the round that follows from the closing of the batch before, a
    repeat too; no batch is closed before its own round appears.
    """
    timing, batches = receipt.timing, [batch.message for batch in receipt.batches]
    if batches and batches[0].beacon_round and receipt.executions:
        primary = receipt.executions[0]
        due = timing.first_round(
            primary.commit.message.beacon_round, primary.commit_receipt.message.time
        )
        if is_fast(receipt):
            due = timing.round_after_ack(receipt.ack.message.ack_time)
        yield Check(
            "round[0]",
            batches[0].beacon_round == due,
            f"batch 0 is drawn by beacon round {due}, by the primary's Commit and its receipt, or "
            "by the Ack of a fast job",
        )
    following = [(number, batches[number].beacon_round) for number in drawn_batches(receipt)]
    following += [(len(batches), receipt.exhausted_by)] if receipt.exhausted_by else []
    for (_, one), (number, after) in pairwise(following):
        closed_at = batches[number - 1].closed_at
        first = last = timing.later_round(closed_at)
        if number == 1 and was_held(receipt):
            # The job was executed again when a fault of its provider was found, when the provider
            # left, or when the hold was over.
            last = timing.later_round(closed_at + timing.max_hold)
        yield Check(
            f"round[{number}]",
            one < after and first <= after <= last,
            f"batch {number} is drawn by beacon round {first} to {last}, after revealBy",
        )


def is_round_missing(receipt: Receipt) -> bool:
    """Whether the coordinator says that the round of a further draw did not appear."""
    shown = {beacon.round for beacon in receipt.beacons}
    return receipt.exhausted_by != 0 and receipt.exhausted_by not in shown


def was_held(receipt: Receipt) -> bool:
    """Whether the job was first accepted without an audit and held, and executed again later."""
    reveal = receipt.executions[0].reveal
    is_alone = (
        len(receipt.batches[0].message.ordered) == 1 and receipt.ack.message.rule is Label.ADAPTIVE
    )
    is_result = reveal is not None and reveal.exit_status not in KILLED
    return is_alone and is_result and not is_audit_wanted(receipt)


def is_audit_wanted(receipt: Receipt) -> bool:
    first = receipt.batches[0].message
    for beacon in receipt.beacons[:1]:
        if beacon.round == first.beacon_round:
            seed = audit_draw.seed(sha256(beacon.signature), first.job_id, first.secret, 0)
            return audit_draw.is_audited(seed, first.audit_ppm)
    return False


def _least_rate(receipt: Receipt) -> int:
    """The least auditPpm that rule, tier and witness allow, whatever the provider's trust is."""
    order = receipt.order.message
    match receipt.ack.message.rule:
        case Label.QUORUM_2:
            return PPM_ONE
        case Label.ADAPTIVE:
            return (
                TIERS[order.verify_tier].p_min
                if receipt.witness is not None or order.accept_unwitnessed
                else PPM_ONE
            )
        case Label.UNVERIFIED | Label.NONE:
            return 0


def _shown(receipt: Receipt, touched: set[int]) -> Iterator[Check]:
    """Checks that the receipt proves the entry of each index that a try met, and of no other. So a
    reader of the receipt also sees the slots that the draw passed over.
    """
    ack, chain = receipt.ack.message, receipt.taken_from_chain
    yield Check(
        "slots",
        [item.proof.index for item in receipt.slots] == sorted(touched),
        "one slot for each index that the tries met",
    )
    for number, item in enumerate(receipt.slots):
        is_listed = (
            item.is_under(ack.eligible_root)
            and item.proof.count == chain.list_length
            and chain.block == ack.slot_block
        )
        is_active = item.slot is None or item.slot.is_active(ack.slot_block)
        yield Check(
            f"hash:slot[{number}]",
            is_listed and is_active,
            f"index {item.proof.index} under Ack.eligibleRoot and active",
        )


def attempts(skips: Sequence[SkipEvidence]) -> list[tuple[int, int]]:
    """(batch, attempt) of each skip, in the receipt's order."""
    return [(skip.batch, skip.attempt) for skip in skips]
