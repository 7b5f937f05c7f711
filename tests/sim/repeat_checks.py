"""What a receipt says of repeats: before a fault, two members of its class execute again.

Written from PROTOCOL §5 Faults alone.
"""

from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.units import Address, Comparator, Hash32, Label, Outcome, UnixSeconds
from sim import workload
from sim.parties import DOMAIN


def drawn_of(body: Receipt) -> tuple[ExecutionEvidence, ...]:
    """The executions that are no repeats."""
    return tuple(item for item, is_repeat in _all_of(body) if not is_repeat)


def repeats_of(body: Receipt) -> tuple[ExecutionEvidence, ...]:
    """The executions that repeat earlier ones: those of later batches that no round drew."""
    return tuple(item for item, is_repeat in _all_of(body) if is_repeat)


def contradicted(body: Receipt) -> set[Address]:
    """The owners that gave another result than before."""
    return {owner for owner, before, again in _pairs(body) if again not in (None, before)}


def has_differed(body: Receipt) -> bool:
    """Whether an owner gave another result than before."""
    return bool(contradicted(body))


def counting(body: Receipt) -> list[ExecutionEvidence]:
    """The executions that count for the result: no repeats, and none of who contradicted itself."""
    void = contradicted(body)
    return [item for item in drawn_of(body) if _owner(item) not in void]


def is_confirmed(body: Receipt, class_id: Hash32) -> bool:
    """Whether two of a class gave the accepted result again."""
    named = body.verdict.message.group
    agreed = {_result(item) for item in drawn_of(body) if _hash(item) in named}
    here = {_owner(item) for item in drawn_of(body) if _class(item) == class_id}
    pairs = [pair for pair in _pairs(body) if pair[0] in here]
    return sum(before == again and again in agreed for _, before, again in pairs) == 2


def is_exact(body: Receipt) -> bool:
    """Whether another result is a fault."""
    return body.compare.comparator is Comparator.EXACT


def check_members(body: Receipt) -> None:
    """I9: those who repeat are of one result, and another result was revealed. I5: nobody is
    faulted for another result without two repeats, or where two owners contradicted themselves.
    """
    verdict, drawn = body.verdict.message, drawn_of(body)
    results = {_owner(item): _result(item) for item in drawn}
    if repeats_of(body):
        assert all(results[_owner(item)] for item in repeats_of(body)), (
            "I9: who revealed nothing repeats a job"
        )
        assert len(set(results.values()) - {None}) > 1, "I9: a repeat without another result"
    assert len(contradicted(body)) < 2 or verdict.outcome is Outcome.UNRESOLVED, (
        "I5: a result counts although two that gave it gave another one too"
    )
    told = [item for item in body.executions if _hash(item) in verdict.faulted]
    assert all(is_confirmed(body, _class(item)) for item in told if item.reveal), (
        "I5: a fault that nobody of its class confirmed"
    )
    assert is_exact(body) or not (repeats_of(body) or any(item.reveal for item in told)), (
        "I5: somebody is asked to repeat, or is at fault, for a result within no tolerance"
    )
    left = {_hash(item) for item in drawn if _owner(item) in contradicted(body)}
    assert not left & set(verdict.group), "I5: who contradicted itself is in the group"


def check_differing(body: Receipt) -> None:
    """I4: under quorum-2 nobody is drawn after three results of which each two differ."""
    sets = [batch.message for batch in body.batches]
    last = max((at for at, one in enumerate(sets) if at and one.beacon_round), default=0)
    count = sum(len(one.ordered) for one in sets[:last])
    before = body.executions[:count]
    void = {
        _owner(item)
        for place, item in enumerate(before)
        if any(
            _owner(item) == _owner(other)
            and None not in (_result(item), _result(other))
            and _result(item) != _result(other)
            for other in before[:place]
        )
    }
    found = {_result(item) for item in before if _owner(item) not in void} - {None}
    is_quorum = body.ack.message.rule is Label.QUORUM_2
    assert not is_quorum or len(found) < 3, "I4: a further owner runs a job with three results"


class Images:
    """The images that gave one provider two results, and their clients (PROTOCOL 5.116)."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.seen: dict[tuple[Address, Hash32], UnixSeconds] = {}

    def check(self, body: Receipt, was_asked: bool) -> None:
        """I5: no later job of such a client with such an image is verified for a while. Others that
        gave another result are faulted: the group was asked to repeat, and two confirmed it.
        """
        pair, acked = (body.order.message.client, body.image), body.ack.message.ack_time
        since, verdict = self.seen.get(pair), body.verdict.message
        agreed = [item for item in drawn_of(body) if _hash(item) in verdict.group]
        group, classes = {_result(item) for item in agreed}, {_class(item) for item in agreed}
        outside = [
            item
            for item in body.executions
            if item.reveal
            and _result(item) not in group
            and _class(item) in classes
            and is_exact(body)
        ]
        assert was_asked or not outside, "I5: nobody was asked to confirm another result"
        sure = {_hash(item) for item in outside if is_confirmed(body, _class(item))}
        if not (since and verdict.time < since + self.seconds):
            assert sure <= set(verdict.faulted), "I5: a confirmed fault is not named"
        if since is not None and since < acked < since + self.seconds:
            assert body.ack.message.rule is Label.UNVERIFIED, "I5: its results cannot be verified"
        if len(contradicted(body)) >= 2:
            self.seen[pair] = max(body.verdict.message.time, since or UnixSeconds(0))


def _all_of(body: Receipt) -> list[tuple[ExecutionEvidence, bool]]:
    sets = [batch.message for batch in body.batches]
    again = [one.batch > 0 and not one.beacon_round for one in sets for _ in one.ordered]
    return list(zip(body.executions, again, strict=True))


def _pairs(body: Receipt) -> list[tuple[Address, Hash32 | None, Hash32 | None]]:
    results = {_owner(item): _result(item) for item in drawn_of(body)}
    return [(_owner(item), results[_owner(item)], _result(item)) for item in repeats_of(body)]


def _hash(item: ExecutionEvidence) -> Hash32:
    return digest(DOMAIN, item.assignment.message)


def _class(item: ExecutionEvidence) -> Hash32:
    return item.commit.message.class_id


def _owner(item: ExecutionEvidence) -> Address:
    return item.assignment.message.provider


def _result(item: ExecutionEvidence) -> Hash32 | None:
    if item.reveal is None:
        return None
    return result_digest(item.reveal.exit_status, workload.plain(item.reveal.output_digest))
