"""Checks a receipt's draws: rounds, seeds, tries, audit rates, and the slots that the tries met."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from quorate_protocol.crypto.eip712 import Domain, digest
from quorate_protocol.crypto.hashing import sha256
from quorate_protocol.limits import DRAW_TRIES, TIERS
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.rules import audit_draw
from quorate_protocol.rules.audit_draw import StakeSlot
from quorate_protocol.units import KILLED, PPM_ONE, Label, Outcome

VerifyRound = Callable[[bytes, int, bytes], bool]
"""Whether the beacon signed a round. Arguments: public key, number of the round, signature."""


def checks(receipt: Receipt, domain: Domain, verify_round: VerifyRound) -> Iterator[Check]:
    """Yields every check of the draws of all batches."""
    randomness = {}
    for number, beacon in enumerate(receipt.beacons):
        good = verify_round(receipt.beacon_key, beacon.round, beacon.signature)
        randomness[beacon.round] = sha256(beacon.signature)
        yield Check(f"signature:beacon[{number}]", good, f"round {beacon.round}")
    shown = {item.proof.index: item.slot for item in receipt.slots}
    touched: set[int] = set()
    for number, batch in enumerate(receipt.batches):
        message = batch.message
        owners = [entry.provider for entry in message.ordered]
        if message.beacon_round == 0 and receipt.verdict.message.outcome is Outcome.LAPSED:
            # The client stopped the job. An execution that was cut short cannot be repeated, so no
            # auditor is drawn.
            alone = receipt.stop is not None and not message.slots and len(owners) == 1
            yield Check(
                f"draw[{number}]",
                alone,
                "a job stopped by its client has one execution and no draw",
            )
            continue
        if message.beacon_round not in randomness:
            yield Check(f"draw[{number}]", False, f"beacon round {message.beacon_round} is missing")
            continue
        seed = audit_draw.seed(
            randomness[message.beacon_round], message.job_id, message.secret, message.batch
        )
        audited = audit_draw.is_audited(seed, message.audit_ppm) or message.batch > 0
        indices = audit_draw.touched(seed, message.slots, receipt.taken_from_chain.list_length)
        touched.update(indices)
        met = [shown.get(indices[attempt]) for attempt in message.slots]
        drawn = [slot for slot in met if slot is not None]
        expected = sorted(owners[1:] if message.batch == 0 else owners)
        is_theirs = sorted(slot.owner for slot in drawn) == expected and len(drawn) == len(
            message.slots
        )
        yield Check(
            f"draw[{number}]",
            is_theirs and _are_parties(receipt, drawn),
            "the drawn slots are those of the auditors",
        )
        tries = len(set(message.slots)) == len(message.slots) and all(
            attempt < DRAW_TRIES for attempt in message.slots
        )
        yield Check(f"tries[{number}]", tries, f"distinct tries of the draw, below {DRAW_TRIES}")
        is_rate = message.audit_ppm >= _least_rate(receipt) and (audited or not message.slots)
        yield Check(
            f"rate[{number}]",
            is_rate,
            f"auditPpm {message.audit_ppm}, at least {_least_rate(receipt)}",
        )
    yield from _shown(receipt, touched)
    rounds = [batch.message.beacon_round for batch in receipt.batches]
    yield from _rounds(receipt)
    if receipt.witness is not None and receipt.executions:
        witness, primary = (
            receipt.witness.message,
            digest(domain, receipt.executions[0].commit.message),
        )
        yield Check(
            "witness:commit", witness.commit_hash == primary, "the witness saw the primary's commit"
        )
        yield Check(
            "witness:round",
            rounds[:1] in ([witness.beacon_round], [0]),
            "the first draw uses the round that the witness names",
        )


def _rounds(receipt: Receipt) -> Iterator[Check]:
    """Checks that each later batch is drawn by the round that follows from the closing of the batch
    before.

    A coordinator that could choose the round would wait for one that draws its friends. It cannot
    give the closing an earlier time, because no batch is closed before its own round appears.
    """
    timing, batches = receipt.timing, [batch.message for batch in receipt.batches]
    for number, batch in enumerate(batches):
        if batch.beacon_round:
            is_after = batch.closed_at >= timing.appears_at(batch.beacon_round)
            yield Check(
                f"closedAt[{number}]",
                is_after,
                f"closed no earlier than beacon round {batch.beacon_round} appeared",
            )
    for number, (one, following) in enumerate(pairwise(batches), 1):
        first = last = timing.later_round(one.closed_at)
        if number == 1 and _was_held(receipt):
            # The job was executed again when a fault of its provider was found, when the provider
            # left, or when the hold was over.
            last = timing.later_round(one.closed_at + timing.max_hold)
        is_due = (
            one.beacon_round < following.beacon_round and first <= following.beacon_round <= last
        )
        due = f"{first}" if first == last else f"{first} to {last}"
        yield Check(
            f"round[{number}]",
            is_due,
            f"batch {number} is drawn by beacon round {due}, a period after revealBy",
        )


def _was_held(receipt: Receipt) -> bool:
    """Whether the job was first accepted without an audit and held, and executed again later."""
    reveal = receipt.executions[0].reveal
    is_alone = (
        len(receipt.batches[0].message.ordered) == 1 and receipt.ack.message.rule is Label.ADAPTIVE
    )
    return is_alone and reveal is not None and reveal.exit_status not in KILLED


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


def _are_parties(receipt: Receipt, drawn: list[StakeSlot]) -> bool:
    """Whether the receipt repeats the payout and the network of each drawn stake slot.

    The receipt lists them once for each owner, in `taken_from_chain.parties`.
    """
    known = {
        party.owner: (party.payout, party.network) for party in receipt.taken_from_chain.parties
    }
    return all(known.get(slot.owner) == (slot.payout, slot.network) for slot in drawn)


def _shown(receipt: Receipt, touched: set[int]) -> Iterator[Check]:
    """Checks that the receipt proves the entry of each index that a try met, and of no other.

    So a reader of the receipt also sees the slots that the draw passed over.
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
