"""What a receipt says of repeats: two members of the accepted group execute again before a fault.

Written from PROTOCOL §5 Faults alone.
"""

from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.units import Address, Hash32, Label, Outcome, UnixSeconds
from sim.parties import DOMAIN


def drawn_of(body: Receipt) -> tuple[ExecutionEvidence, ...]:
    """The executions that count for the result."""
    return body.executions[: len(body.executions) - len(repeats_of(body))]


def repeats_of(body: Receipt) -> tuple[ExecutionEvidence, ...]:
    """The executions that repeat earlier ones: the last batch, if no round drew it."""
    last = body.batches[-1].message
    is_repeat = len(body.batches) > 1 and not last.beacon_round
    return body.executions[len(body.executions) - len(last.ordered) :] if is_repeat else ()


def has_differed(body: Receipt) -> bool:
    """Whether a provider gave another result than before."""
    return any(again not in (None, before) for before, again in _pairs(body))


def is_confirmed(body: Receipt) -> bool:
    """Whether two gave their own result again."""
    return sum(again is not None and again == before for before, again in _pairs(body)) == 2


def check_members(body: Receipt) -> None:
    """I9: those who repeat are of one result, and another result was revealed. I5: nobody is
    faulted for another result without two repeats.
    """
    verdict, drawn = body.verdict.message, drawn_of(body)
    results = {_owner(item): _result(item) for item in drawn}
    if repeats_of(body):
        agreed = {results[_owner(item)] for item in repeats_of(body)}
        assert len(agreed) == 1 and None not in agreed, "I9: others than the group repeat a job"
        assert set(results.values()) - agreed - {None}, "I9: a repeat without another result"
    assert not has_differed(body) or verdict.outcome is Outcome.UNRESOLVED, (
        "I5: a result counts although one that gave it gave another one too"
    )
    told = [item for item in drawn if _hash(item) in verdict.faulted]
    assert is_confirmed(body) or not any(item.reveal for item in told), (
        "I5: a fault that nobody confirmed"
    )


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
        outside = [
            item
            for item in map(_hash, (item for item in drawn_of(body) if item.reveal))
            if verdict.outcome is Outcome.ACCEPTED and item not in verdict.group
        ]
        assert was_asked or not outside, "I5: nobody was asked to confirm another result"
        if is_confirmed(body) and not (since and verdict.time < since + self.seconds):
            assert set(outside) <= set(verdict.faulted), "I5: a confirmed fault is not named"
        if since is not None and since < acked < since + self.seconds:
            assert body.ack.message.rule is Label.UNVERIFIED, "I5: its results cannot be verified"
        if has_differed(body):
            self.seen[pair] = max(body.verdict.message.time, since or UnixSeconds(0))


def _pairs(body: Receipt) -> list[tuple[Hash32 | None, Hash32 | None]]:
    results = {_owner(item): _result(item) for item in drawn_of(body)}
    return [(results[_owner(item)], _result(item)) for item in repeats_of(body)]


def _hash(item: ExecutionEvidence) -> Hash32:
    return digest(DOMAIN, item.assignment.message)


def _owner(item: ExecutionEvidence) -> bytes:
    return item.assignment.message.provider


def _result(item: ExecutionEvidence) -> Hash32 | None:
    if item.reveal is None:
        return None
    return result_digest(item.reveal.exit_status, item.reveal.output_digest)
