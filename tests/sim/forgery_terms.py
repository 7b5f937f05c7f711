"""Builds false receipts over real executions: with other dates, terms, witnesses, skips or outcome.

A coordinator signs them alone, with the client of the job, or with a provider of it.
"""

from collections.abc import Iterator

from quorate_protocol.codec.hashing import hash_list, hash_tuple
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import Receipt, SkipEvidence
from quorate_protocol.messages.signed import Ack, CommitSet, Session
from quorate_protocol.rules.receipts.receipt_bill import ran_of, result_of
from quorate_protocol.rules.settlement import is_clients_limit
from quorate_protocol.units import ZERO_HASH, Address, Bps, Hash32, Label, Outcome, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from sim.forgery_fast import is_fast
from sim.parties import DOMAIN, key

STATEMENT = key("statement")
ELSEWHERE = Hash32(b"\x0b" * 32)


def forgeries(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """Pairs (what is wrong, false receipt) made from a real receipt of any outcome, without its
    Verdict on them.
    """
    yield from _of_acks(body)
    yield from _of_sessions(body)
    yield from _of_witnesses(body)
    yield from _of_skips(body)
    yield from _of_stored(body)
    yield from _of_outcomes(body)
    yield "results of another image", replace(body, image=ELSEWHERE)


def altered(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """Receipts that a stranger alters. The Verdict stays, because only the coordinator signs it."""
    yield (
        "a longer hold",
        replace(body, timing=replace(body.timing, max_hold=body.timing.max_hold + 1)),
    )
    chain = body.taken_from_chain
    yield "another version", replace(body, version=body.version + 1)
    if chain.parties:
        other = replace(chain.parties[0], payout=Address(b"\x0a" * 20))
        parties = (other, *chain.parties[1:])
        yield "another payout", replace(body, taken_from_chain=replace(chain, parties=parties))


def _of_acks(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """An Ack signed again after the draw was known."""
    if body.witness is not None:
        other = replace(body.ack.message, escrowed=not body.ack.message.escrowed)
        yield "another Ack than was witnessed", _acked(body, other)
        return
    above = replace(body.ack.message, fee_bps=Bps(body.order.message.max_fee_bps + 1))
    yield "a fee above the order's", _acked(body, above)
    drawn_by = body.batches[0].message.beacon_round if body.batches else 0
    if drawn_by:
        late = replace(body.ack.message, ack_time=body.timing.appears_at(drawn_by))
        yield "an Ack after the round of the draw", _acked(body, late)


def _acked(body: Receipt, ack: Ack) -> Receipt:
    return replace(body, ack=seal(DOMAIN, ack, STATEMENT.sign))


def _of_sessions(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """The client signs another session for its coordinator."""
    clients = (key("client", number) for number in range(2))
    client = next(one for one in clients if one.address == body.session.message.client)
    session = body.session.message
    yield (
        "a session for another coordinator",
        _in_session(body, client, replace(session, coordinator=key("stranger").address)),
    )
    over = replace(session, expires=body.ack.message.ack_time)
    yield "a session past its end", _in_session(body, client, over)


def _in_session(body: Receipt, client: KeySigner, session: Session) -> Receipt:
    return replace(body, session=seal(DOMAIN, session, client.sign))


def _of_witnesses(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """The coordinator took a witness and does not show it."""
    if body.witness is None:
        return
    yield "a witness that is not shown", replace(body, witness=None)
    if body.order.message.accept_unwitnessed:
        dropped = _closed(body, 0, replace(body.batches[0].message, witness_hash=ZERO_HASH))
        yield "a witness that the CommitSet does not name", dropped


def _closed(body: Receipt, number: int, message: CommitSet) -> Receipt:
    batches = list(body.batches)
    batches[number] = seal(DOMAIN, message, STATEMENT.sign)
    return replace(body, batches=tuple(batches))


def _of_skips(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """Providers that the draw met are passed over without a trace, or are said to have declined."""
    for number, skip in enumerate(body.skips):
        rest = (*body.skips[:number], *body.skips[number + 1 :])
        yield "a skip that is not shown", replace(body, skips=rest)
        again = replace(skip.assignment.message, accept_by=UnixSeconds(0))
        asked = replace(skip, assignment=seal(DOMAIN, again, STATEMENT.sign), decline=None)
        moved = _with_skip(body, number, asked)
        yield "a skip of long before the draw", _naming_skips(moved, skip.batch)
        if skip.decline is not None and skip.batch < len(body.batches):
            silent = replace(skip, decline=None)
            yield "a Decline that is not shown", _with_skip(body, number, silent)
    if body.batches:
        first = body.batches[0].message
        yield "skips of another job", _closed(body, 0, replace(first, skips_hash=ELSEWHERE))


def _with_skip(body: Receipt, number: int, skip: SkipEvidence) -> Receipt:
    return replace(body, skips=(*body.skips[:number], skip, *body.skips[number + 1 :]))


def _naming_skips(body: Receipt, batch: int) -> Receipt:
    """The receipt with a CommitSet that names the skips shown; an empty draw has no CommitSet."""
    if batch >= len(body.batches):
        return body
    pairs = tuple(
        hash_tuple(
            item.assignment.digest(DOMAIN),
            ZERO_HASH if item.decline is None else item.decline.digest(DOMAIN),
        )
        for item in body.skips
        if item.batch == batch
    )
    named = replace(body.batches[batch].message, skips_hash=hash_list(pairs))
    return _closed(body, batch, named)


def _of_stored(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """A CommitReceipt of another commit, or one that is dated so that another round draws."""
    if not body.executions:
        return
    first, closed = body.executions[0], body.batches[0].message
    stored = first.commit_receipt.message
    lies: list[tuple[str, dict[str, object]]] = [
        ("a CommitReceipt of another commit", {"commit_hash": ELSEWHERE}),
        ("a commit after its batch was closed", {"time": UnixSeconds(closed.closed_at + 1)}),
        ("a commit before its assignment", {"time": UnixSeconds(1)}),
    ]
    if closed.beacon_round and not is_fast(body.order.message.verify_tier, body.ack.message.rule):
        known = body.timing.appears_at(closed.beacon_round)
        lies.append(("a commit stored when its round was known", {"time": known}))
    for wrong, changes in lies:
        message = replace(stored, **changes)  # type: ignore[arg-type]
        item = replace(first, commit_receipt=seal(DOMAIN, message, STATEMENT.sign))
        yield wrong, replace(body, executions=(item, *body.executions[1:]))


def _of_outcomes(body: Receipt) -> Iterator[tuple[str, Receipt]]:
    """The reveals decide the job, and the coordinator says that they do not, or the reverse."""
    said = body.verdict.message
    is_sure = body.ack.message.rule is not Label.ADAPTIVE or not _depends_on_trust(body)
    if said.outcome is Outcome.ACCEPTED:
        for outcome in (Outcome.UNRESOLVED, Outcome.CANNOT_VERIFY) if is_sure else ():
            nothing = replace(said, outcome=outcome, group=(), faulted=())
            yield f"{outcome.name} over results that agree", _saying(body, nothing)
        yield "a lapse without a Stop", _saying(body, replace(said, outcome=Outcome.LAPSED))
    elif said.outcome is Outcome.UNRESOLVED and len(body.executions) > 1:
        first = body.executions[0].commit.message.assignment_hash
        accepted = replace(said, outcome=Outcome.ACCEPTED, group=(first,), faulted=())
        yield "one of several results accepted", _saying(body, accepted)


def _depends_on_trust(body: Receipt) -> bool:
    """Whether an adaptive job is undecided for some trust of its providers.

    That is so if they gave two results, also where nobody was faulted because too few repeated the
    job. It is so at the client's own limit too: one group may be trusted too little for the tier.
    """
    results = {result_of(item) for item in body.executions}
    return (
        len(results) > 1
        or bool(body.verdict.message.faulted)
        or is_clients_limit(body.order.message, body.ack.message.fee_bps, ran_of(body))
    )


def _saying(body: Receipt, verdict: object) -> Receipt:
    return replace(body, verdict=seal(DOMAIN, verdict, STATEMENT.sign))  # type: ignore[type-var]
